//! The projects that `plugin new` writes. `{{name}}` in a path or a text becomes the plugin's name.

use crate::cli::args::Lang;

/// A file of a project: its path and its text.
pub type File = (&'static str, &'static str);

macro_rules! files {
    ($from:literal: $($path:literal = $file:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../", $from, "/", $file)))),*]
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
    "Cargo.toml" = "Cargo.toml",
    "README.md" = "README.md",
    "build" = "build",
    "sdk/Cargo.toml" = "sdk/Cargo.toml",
    "sdk/src/http.rs" = "sdk/src/http.rs",
    "sdk/src/lib.rs" = "sdk/src/lib.rs",
    "src/lib.rs" = "src/lib.rs",
);

const JS: &[File] = files!("plugins/templates/js":
    ".gitignore" = "gitignore",
    "README.md" = "README.md",
    "build" = "build",
    "outboxd.d.ts" = "outboxd.d.ts",
    "outboxd.js" = "outboxd.js",
    "package.json" = "package.json",
    "plugin.js" = "plugin.js",
);

const PYTHON: &[File] = files!("plugins/templates/python":
    ".gitignore" = "gitignore",
    "README.md" = "README.md",
    "app.py" = "app.py",
    "build" = "build",
    "outboxd.py" = "outboxd.py",
    "pyrightconfig.json" = "pyrightconfig.json",
    "requirements.txt" = "requirements.txt",
    "stubs/componentize_py_types.py" = "stubs/componentize_py_types.py",
    "stubs/wit_world/__init__.py" = "stubs/wit_world/__init__.py",
    "stubs/wit_world/exports/__init__.py" = "stubs/wit_world/exports/__init__.py",
    "stubs/wit_world/exports/handler.py" = "stubs/wit_world/exports/handler.py",
    "stubs/wit_world/imports/__init__.py" = "stubs/wit_world/imports/__init__.py",
    "stubs/wit_world/imports/context.py" = "stubs/wit_world/imports/context.py",
    "stubs/wit_world/imports/http.py" = "stubs/wit_world/imports/http.py",
    "stubs/wit_world/imports/logging.py" = "stubs/wit_world/imports/logging.py",
    "stubs/wit_world/imports/messages.py" = "stubs/wit_world/imports/messages.py",
    "stubs/wit_world/imports/secrets.py" = "stubs/wit_world/imports/secrets.py",
    "stubs/wit_world/imports/store.py" = "stubs/wit_world/imports/store.py",
);

/// What a language adds.
pub fn of(lang: Lang) -> &'static [File] {
    match lang {
        Lang::Rust => RUST,
        Lang::Js => JS,
        Lang::Python => PYTHON,
    }
}
