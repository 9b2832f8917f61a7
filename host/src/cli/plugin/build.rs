//! From a core module, which is what compilers of C and Go stop at, to a component. The contract and the adapter for the
//! module's WASI 0.1 imports are in this binary, so that no other tool is needed.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME as ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER as ADAPTER,
};
use wasmparser::{Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{Resolve, SourceMap};

use super::templates;
use crate::cli::output;
use crate::cli::settings::WrongSettings;
use crate::plugin::{Kind, kind, one_line};

/// What a core module calls the contract's one export.
const HANDLE: &str = "outboxd:plugin/handler@1.0.0#handle";
/// The widest world of the contract; of its imports a component gets those that its module uses.
const WORLD: &str = "plugin-wasi-http";

/// Writes the component that `file` becomes to `output`, or to `NAME.wasm` where `file` is `NAME.core.wasm`.
pub fn build(file: &Path, output: Option<PathBuf>) -> anyhow::Result<()> {
    let output = match output {
        Some(output) => output,
        None => beside(file)?,
    };
    let module = std::fs::read(file).with_context(|| format!("cannot read {file:?}"))?;
    let component = component_of(module).map_err(|why| anyhow!("{file:?} cannot become a plugin: {why}"))?;
    // The file appears whole, so that a relay that watches never reads half of it.
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let readable = std::fs::Permissions::from_mode(0o666);
    let written = tempfile::Builder::new().permissions(readable).tempfile_in(folder).and_then(|new| {
        std::fs::write(new.path(), &component)?;
        new.persist(&output).map_err(|error| error.error)
    });
    written.with_context(|| format!("cannot write {output:?}"))?;
    output::line(format!("{} is a component of {} bytes", output.display(), component.len()));
    Ok(())
}

fn beside(file: &Path) -> anyhow::Result<PathBuf> {
    let stem = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".core.wasm"));
    let named = stem.filter(|stem| !stem.is_empty()).map(|stem| file.with_file_name(format!("{stem}.wasm")));
    named.ok_or_else(|| {
        WrongSettings::one(format!("{file:?} is not called NAME.core.wasm: say where to write with --output"))
    })
}

fn component_of(mut module: Vec<u8>) -> Result<Vec<u8>, String> {
    if kind(&module)? == Kind::Component {
        return Err("it is a component already; `outboxd plugin check` says whether it is a plugin".into());
    }
    let broken = |error| format!("it is damaged: {}", one_line(&error));
    let surface = Surface::of(&module).map_err(broken)?;
    surface.check()?;
    if !surface.says_its_world {
        let (resolve, world) = contract().map_err(|error| format!("the contract in this binary: {error:#}"))?;
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
            .map_err(|error| one_line(&error))?;
    }
    let encoder = ComponentEncoder::default().module(&module);
    let encoder = encoder.and_then(|encoder| encoder.adapter(ADAPTER_NAME, ADAPTER));
    let encoded = encoder.and_then(|encoder| encoder.validate(true).encode());
    encoded.map_err(|error| one_line(&error))
}

/// The contract as templates carry it, and the world to build for.
fn contract() -> anyhow::Result<(Resolve, wit_parser::WorldId)> {
    // A package is one file, or all files of a folder below deps.
    let mut packages: BTreeMap<&str, SourceMap> = BTreeMap::new();
    for (path, text) in templates::WIT {
        let package = match path.split('/').collect::<Vec<_>>().as_slice() {
            ["wit", "deps", folder, _file] => *folder,
            _ => path,
        };
        packages.entry(package).or_default().push_str(path, *text);
    }
    let main = packages.remove("wit/plugin.wit").context("it lacks wit/plugin.wit")?;
    let parse = |sources: SourceMap| sources.parse().map_err(|(sources, error)| anyhow!(error.render(&sources)));
    let deps = packages.into_values().map(parse).collect::<anyhow::Result<Vec<_>>>()?;
    let mut resolve = Resolve::default();
    let package = resolve.push_groups(parse(main)?, deps)?;
    let world = resolve.select_world(&[package], Some(WORLD))?;
    Ok((resolve, world))
}

/// What a core module shows of itself.
#[derive(Default)]
struct Surface {
    exports: Vec<String>,
    imports: Vec<(String, String)>,
    /// Some binding generators leave the world they generated for in the module; it is kept then.
    says_its_world: bool,
}

impl Surface {
    fn of(module: &[u8]) -> wasmparser::Result<Surface> {
        let mut surface = Surface::default();
        for payload in Parser::new(0).parse_all(module) {
            match payload? {
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import?;
                        surface.imports.push((import.module.into(), import.name.into()));
                    }
                }
                Payload::ExportSection(exports) => {
                    for export in exports {
                        surface.exports.push(export?.name.into());
                    }
                }
                Payload::CustomSection(section) if section.name().starts_with("component-type") => {
                    surface.says_its_world = true;
                }
                _ => {}
            }
        }
        Ok(surface)
    }

    /// The mistakes that are easily made, in words that say what to do.
    fn check(&self) -> Result<(), String> {
        let has = |wanted: &str| self.exports.iter().any(|export| export == wanted);
        if has("_start") {
            return Err("it is a program, with a `_start` that runs once; build it as a reactor: \
                `-mexec-model=reactor` for clang, `-buildmode=c-shared` for Go"
                .into());
        }
        if !self.says_its_world && !has(HANDLE) {
            let listed = if self.exports.is_empty() { "nothing".to_owned() } else { self.exports.join(", ") };
            let listed = outboxd_core::safe_text(&listed, 500);
            return Err(format!("it exports {listed}, but no {HANDLE:?}, which is what a relay calls"));
        }
        // The names of interfaces have a colon.
        let is_known = |module: &str| module.contains(':') || module == ADAPTER_NAME;
        let unknown = self.imports.iter().find(|(module, _)| !is_known(module));
        match unknown {
            None => Ok(()),
            Some((module, name)) => Err(format!(
                "it imports {:?} from {:?}, which nobody provides; was it declared and never linked?",
                outboxd_core::safe_text(name, 100),
                outboxd_core::safe_text(module, 100)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use wit_parser::WorldItem;

    use super::super::args::Lang;
    use super::*;

    const HANDLER: &str = r#"
        (func (export "outboxd:plugin/handler@1.0.0#handle")
            (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64) (result i32) unreachable)
        (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable)"#;

    fn built(imports: &str, body: &str) -> Result<Vec<u8>, String> {
        component_of(wat::parse_str(format!("(module {imports} {body})")).unwrap())
    }

    #[test]
    fn a_module_becomes_a_component_with_the_imports_that_it_uses() {
        let component = built(
            r#"(import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))
            (import "outboxd:plugin/context@1.0.0" "deadline-ms" (func (result i64)))"#,
            HANDLER,
        )
        .unwrap();

        assert_eq!(kind(&component), Ok(Kind::Component));
        let text = String::from_utf8_lossy(&component).into_owned();
        assert!(text.contains("outboxd:plugin/context@1.0.0") && text.contains("wasi:random/random@0.2"));
        assert!(!text.contains("outboxd:plugin/secrets@1.0.0") && !text.contains("wasi:http/outgoing-handler"));
    }

    #[test]
    fn a_module_that_says_its_world_keeps_it() {
        let (resolve, _) = contract().unwrap();
        let package = resolve.worlds.iter().find_map(|(_, world)| world.package.filter(|_| world.name == "plugin"));
        let world = resolve.select_world(&[package.unwrap()], Some("plugin")).unwrap();
        let streaming = r#"(import "wasi:http/outgoing-handler@0.2.12" "handle" (func (param i32 i32 i32 i32)))"#;
        let built = |imports: &str| {
            let mut module = wat::parse_str(format!("(module {imports} {HANDLER})")).unwrap();
            embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
            component_of(module)
        };

        assert_eq!(kind(&built("").unwrap()), Ok(Kind::Component));
        let error = built(streaming).unwrap_err();
        assert!(error.contains("wasi:http/outgoing-handler"), "{error}");
    }

    #[test]
    fn what_cannot_become_a_plugin_says_why_in_one_line() {
        let component = built("", HANDLER).unwrap();
        let module = |imports, body| wat::parse_str(format!("(module {imports} {body})")).unwrap();
        for (bytes, words) in [
            (component, "it is a component already"),
            (b"int main() {}".to_vec(), "this is text"),
            (b"\x7fELF\x02\x01\x01\0".to_vec(), "no WebAssembly"),
            (b"\0asm\x01\0\0\0\x01\xff".to_vec(), "it is damaged: "),
            (module("", ""), "it exports nothing, but no \"outboxd:plugin/handler@1.0.0#handle\""),
            (
                module("", r#"(func (export "handle"))"#),
                "it exports handle, but no \"outboxd:plugin/handler@1.0.0#handle\"",
            ),
            (module("", r#"(func (export "_start"))"#), "-mexec-model=reactor"),
            (module(r#"(import "env" "cJSON_Parse" (func))"#, HANDLER), "it imports \"cJSON_Parse\" from \"env\""),
            (module(r#"(import "outboxd:plugin/queue@1.0.0" "push" (func))"#, HANDLER), "outboxd:plugin/queue@1.0.0"),
            (module(r#"(import "outboxd:plugin/context@1.0.0" "deadline" (func))"#, HANDLER), "deadline"),
            (module(r#"(import "wasi_snapshot_preview1" "fork" (func))"#, HANDLER), "fork"),
            (module("", r#"(func (export "outboxd:plugin/handler@1.0.0#handle"))"#), "handler@1.0.0#handle"),
        ] {
            let error = component_of(bytes).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_bindings_of_the_templates_know_every_function_of_the_contract() {
        let text = |lang| templates::of(lang).into_iter().flatten().map(|(_, text)| *text).collect::<String>();
        let (go, c) = (text(Lang::Go), text(Lang::C));
        let (resolve, _) = contract().unwrap();
        let (_, world) = resolve.worlds.iter().find(|(_, world)| world.name == "plugin").unwrap();
        let interfaces = world.imports.values().filter_map(|import| match import {
            WorldItem::Interface { id, .. } => Some(*id),
            _ => None,
        });
        let mut count = 0;
        for interface in interfaces {
            let name = resolve.id_of(interface).unwrap();
            for function in resolve.interfaces[interface].functions.keys() {
                count += 1;
                assert!(go.contains(&format!("//go:wasmimport {name} {function}\n")), "Go lacks {name} {function}");
                let import = format!("__import_module__(\"{name}\"), __import_name__(\"{function}\")");
                assert!(c.contains(&import), "C lacks {name} {function}");
            }
        }
        assert!(count >= 11, "only {count} functions");
    }

    #[test]
    fn the_output_lies_beside_the_core_module() {
        assert_eq!(beside(Path::new("a/orders.core.wasm")).unwrap(), Path::new("a/orders.wasm"));
        assert!(beside(Path::new("a/orders.wasm")).is_err());
        assert!(beside(Path::new(".core.wasm")).is_err());
    }
}
