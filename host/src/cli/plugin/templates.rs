//! The projects that `plugin new` writes. `{{name}}` in a path or a text becomes the plugin's name.

use super::args::Lang;

/// A file of a project: its path and its text.
pub type File = (&'static str, &'static str);

/// The files of a folder; `path = file` where the project's is called otherwise.
macro_rules! files {
    (@text $from:literal $path:literal = $file:literal) => { files!(@text $from $file) };
    (@text $from:literal $file:literal) => { include_str!(concat!("../../../../", $from, "/", $file)) };
    ($from:literal: $($path:literal $(= $file:literal)?),* $(,)?) => {
        &[$(($path, files!(@text $from $path $(= $file)?))),*]
    };
}

/// What every project holds.
pub const COMMON: &[File] = files!("plugins/templates/common":
    "{{name}}.toml" = "manifest.toml",
    "{{name}}.tests/delivers.json" = "delivers.json",
    "{{name}}.tests/waits.json" = "waits.json",
    "{{name}}.tests/waits-without-a-time.json" = "waits-without-a-time.json",
    "{{name}}.tests/refuses.json" = "refuses.json",
);

/// The contract, for the toolchain's binding generator.
pub const WIT: &[File] = files!("wit/v1":
    "wit/plugin.wit" = "plugin.wit",
    "wit/deps/cli.wit" = "deps/cli.wit",
    "wit/deps/clocks.wit" = "deps/clocks.wit",
    "wit/deps/filesystem.wit" = "deps/filesystem.wit",
    "wit/deps/http.wit" = "deps/http.wit",
    "wit/deps/io.wit" = "deps/io.wit",
    "wit/deps/logging.wit" = "deps/logging.wit",
    "wit/deps/random.wit" = "deps/random.wit",
    "wit/deps/sockets.wit" = "deps/sockets.wit",
    "wit/deps/wasi-config/store.wit" = "deps/wasi-config/store.wit",
    "wit/deps/wasi-config/world.wit" = "deps/wasi-config/world.wit",
);

const RUST: &[File] = files!("plugins/templates/rust":
    ".gitignore" = "gitignore",
    "Cargo.toml",
    "README.md",
    "build",
    "src/lib.rs",
);

/// The crate that plugins in Rust are written with: a copy that is the project's own, since it is on no registry.
const SDK_RUST: &[File] = files!("plugins/sdk-rust":
    "sdk/Cargo.toml" = "Cargo.toml",
    "sdk/src/http.rs" = "src/http.rs",
    "sdk/src/lib.rs" = "src/lib.rs",
);

const JS: &[File] = files!("plugins/templates/js":
    ".gitignore" = "gitignore",
    "README.md",
    "build",
    "outboxd.d.ts",
    "outboxd.js",
    "package.json",
    "plugin.js",
);

// Its manifest is written over the common one.
const PYTHON: &[File] = files!("plugins/templates/python":
    "{{name}}.toml" = "manifest.toml",
    ".gitignore" = "gitignore",
    "README.md",
    "app.py",
    "build",
    "outboxd.py",
    "pyrightconfig.json",
    "requirements.txt",
    "stubs/componentize_py_types.py",
    "stubs/wit_world/__init__.py",
    "stubs/wit_world/exports/__init__.py",
    "stubs/wit_world/exports/handler.py",
    "stubs/wit_world/imports/__init__.py",
    "stubs/wit_world/imports/context.py",
    "stubs/wit_world/imports/http.py",
    "stubs/wit_world/imports/logging.py",
    "stubs/wit_world/imports/messages.py",
    "stubs/wit_world/imports/secrets.py",
    "stubs/wit_world/imports/store.py",
);

const GO: &[File] = files!("plugins/templates/go":
    ".gitignore" = "gitignore",
    "README.md",
    "build",
    "go.mod",
    "plugin.go",
    "sdk/gen/export_outboxd_plugin_handler/handle.go",
    "sdk/gen/outboxd_plugin_context/empty.s",
    "sdk/gen/outboxd_plugin_context/wit_bindings.go",
    "sdk/gen/outboxd_plugin_http/empty.s",
    "sdk/gen/outboxd_plugin_http/wit_bindings.go",
    "sdk/gen/outboxd_plugin_messages/empty.s",
    "sdk/gen/outboxd_plugin_messages/wit_bindings.go",
    "sdk/gen/outboxd_plugin_secrets/empty.s",
    "sdk/gen/outboxd_plugin_secrets/wit_bindings.go",
    "sdk/gen/wasi_config_store/empty.s",
    "sdk/gen/wasi_config_store/wit_bindings.go",
    "sdk/gen/wasi_logging_logging/empty.s",
    "sdk/gen/wasi_logging_logging/wit_bindings.go",
    "sdk/gen/wit_exports.go",
    "sdk/go.mod",
    "sdk/http.go",
    "sdk/outboxd.go",
    "sdk/wit/LICENSE",
    "sdk/wit/README.md",
    "sdk/wit/runtime/runtime.go",
    "sdk/wit/types/option.go",
    "sdk/wit/types/result.go",
    "sdk/wit/types/tuple.go",
    "sdk/wit/types/unit.go",
);

const C: &[File] = files!("plugins/templates/c":
    ".gitignore" = "gitignore",
    "README.md",
    "build",
    "gen/plugin.c",
    "gen/plugin.h",
    "handler.c",
    "json.c",
    "outboxd.c",
    "outboxd.h",
);

/// What a language adds, in two parts.
pub fn of(lang: Lang) -> [&'static [File]; 2] {
    match lang {
        Lang::Rust => [RUST, SDK_RUST],
        Lang::Js => [JS, &[]],
        Lang::Python => [PYTHON, &[]],
        Lang::Go => [GO, &[]],
        Lang::C => [C, &[]],
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn files_of(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files_of(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_file_of_the_templates_is_written_by_plugin_new() {
        let root = outboxd_test_support::repository();
        for (folder, list) in [
            ("plugins/templates/common", COMMON),
            ("plugins/templates/rust", RUST),
            ("plugins/sdk-rust", SDK_RUST),
            ("plugins/templates/js", JS),
            ("plugins/templates/python", PYTHON),
            ("plugins/templates/go", GO),
            ("plugins/templates/c", C),
            ("wit/v1", WIT),
        ] {
            let mut on_disk = files_of(&root.join(folder));
            // A project has a README of its own, and one lock file, which its first build makes.
            on_disk.retain(|file| {
                folder != "plugins/sdk-rust" || !(file.ends_with("Cargo.lock") || file.ends_with("README.md"))
            });
            for file in &on_disk {
                let text = std::fs::read_to_string(file).unwrap();
                assert!(list.iter().any(|(_, listed)| *listed == text), "{file:?} is not listed");
            }
            assert_eq!(on_disk.len(), list.len(), "{folder}");
        }
    }
}
