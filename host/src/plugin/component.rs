use wasmtime::Engine;
use wasmtime::component::Component;

/// The contract's package; its interfaces carry a version.
const PACKAGE: &str = "outboxd:plugin/";
const HANDLER: &str = "outboxd:plugin/handler@";
/// What this host speaks, for messages to people.
const SPEAKS: &str = "1.0";
const SPEAKS_MAJOR: &str = "1";

/// A larger file is not read. Bytes.
pub const COMPONENT_BYTES_MAX: u64 = 64 << 20;

/// What WebAssembly comes as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Component,
    /// What compilers for WASI 0.1 make, and what a component holds inside.
    Core,
}

/// Which of the two the bytes are, or what else they look like.
pub(crate) fn kind(bytes: &[u8]) -> Result<Kind, String> {
    if bytes.is_empty() {
        return Err("the file is empty".into());
    }
    if bytes.len() as u64 > COMPONENT_BYTES_MAX {
        return Err(format!("the file has {} bytes; a component has at most 64 MiB", bytes.len()));
    }
    if Engine::detect_precompiled(bytes).is_some() {
        return Err("this is a precompiled native artefact, which outboxd never loads from here; use the .wasm it was made from".into());
    }
    match bytes.get(..8) {
        Some(b"\0asm\x0d\0\x01\0") => check_whole(bytes).map(|()| Kind::Component),
        Some(b"\0asm\x01\0\0\0") => Ok(Kind::Core),
        Some([0, b'a', b's', b'm', ..]) => {
            Err("this is WebAssembly of an unknown version; rebuild it with current tools".into())
        }
        _ if is_text(bytes) => Err("this is text, not a component; compile it first".into()),
        _ => Err("this is no WebAssembly at all".into()),
    }
}

/// Says where a component was cut off: sections stand one after the other, each with its length.
fn check_whole(bytes: &[u8]) -> Result<(), String> {
    let mut at = 8;
    while at < bytes.len() {
        let end = section_length(&bytes[at + 1..]).map(|(digits, length)| at + 1 + digits + length);
        match end {
            Some(end) if end <= bytes.len() => at = end,
            _ => {
                return Err(format!("it is cut off: it ends at byte {}, within a section; copy it again", bytes.len()));
            }
        }
    }
    Ok(())
}

/// How many bytes a section's length takes, and what it says. Nothing where it is cut off or no number.
fn section_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (n, byte) in bytes.iter().take(5).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return Some((n + 1, length));
        }
    }
    None
}

/// Says what the bytes are, where they are no component.
pub(crate) fn check_kind(bytes: &[u8]) -> Result<(), String> {
    match kind(bytes)? {
        Kind::Component => Ok(()),
        Kind::Core => {
            Err("this is a core WebAssembly module, not a component; make one of it with `outboxd plugin build`, \
            or build it for wasm32-wasip2"
                .into())
        }
    }
}

fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(512)];
    start.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

/// Compiles, and turns a panic of the compiler into an error: what it was given may be anything.
pub(crate) fn compile(engine: &Engine, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.precompile_component(bytes)));
    match compiled {
        Ok(Ok(artefact)) => Ok(artefact),
        Ok(Err(error)) => Err(format!("it cannot be compiled: {}", one_line(&error))),
        Err(_) => Err("the compiler panicked on it, please report it".into()),
    }
}

/// Checks that the component is built for this host, in words that say for what else it was built.
pub(crate) fn check_world(engine: &Engine, component: &Component) -> Result<(), String> {
    let ty = component.component_type();
    let exports: Vec<String> = ty.exports(engine).map(|(name, _)| name.to_string()).collect();
    let versions: Vec<&str> = exports.iter().filter_map(|name| name.strip_prefix(HANDLER)).collect();
    let speaks = |version: &str| major(version) == SPEAKS_MAJOR;
    match versions.as_slice() {
        [] if exports.is_empty() => {
            return Err(format!("it exports nothing; a plugin exports outboxd:plugin/handler@{SPEAKS}.0"));
        }
        [] => {
            return Err(format!(
                "it exports {}, but no outboxd:plugin/handler; was it built for the world `plugin` of outboxd's wit/v1?",
                exports.join(", ")
            ));
        }
        [version] if speaks(version) => {}
        [version] => return Err(format!("it was built for outboxd:plugin {version}; this host speaks {SPEAKS}")),
        several => {
            return Err(format!(
                "it exports outboxd:plugin/handler in several versions ({}); keep one",
                several.join(", ")
            ));
        }
    }
    for (name, _) in ty.imports(engine) {
        let version = name.strip_prefix(PACKAGE).and_then(|rest| rest.split_once('@'));
        if let Some((_, version)) = version.filter(|(_, version)| !speaks(version)) {
            return Err(format!("it imports {name}, of outboxd:plugin {version}; this host speaks {SPEAKS}"));
        }
    }
    Ok(())
}

/// The largest memory that an instance starts with. Bytes.
pub(crate) fn memory_at_start(component: &Component) -> u64 {
    const PAGE: u64 = 64 << 10;
    let pages = component.resources_required().and_then(|needs| needs.max_initial_memory_size);
    pages.unwrap_or(0).saturating_mul(PAGE)
}

/// The names of what a component exports and imports.
pub(crate) fn surface(engine: &Engine, component: &Component) -> (Vec<String>, Vec<String>) {
    let ty = component.component_type();
    let exports = ty.exports(engine).map(|(name, _)| name.to_string()).collect();
    (exports, ty.imports(engine).map(|(name, _)| name.to_string()).collect())
}

fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

/// The whole chain of an error in one line.
pub(crate) fn one_line(error: &impl std::fmt::Display) -> String {
    let text = format!("{error:#}");
    outboxd_core::safe_text(&text.split_whitespace().collect::<Vec<_>>().join(" "), 1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_component_is_named() {
        for (bytes, words) in [
            (&b""[..], "empty"),
            (b"\0asm\x01\0\0\0", "core WebAssembly module"),
            (b"\0asm\x0a\0\x01\0", "unknown version"),
            (b"(component)", "text"),
            (b"\x7fELF\x02\x01\x01\0", "no WebAssembly"),
            (b"\0as", "no WebAssembly"),
            (b"\0asm\x0d\0\x01\0\x01", "it is cut off: it ends at byte 9"),
            (b"\0asm\x0d\0\x01\0\x01\x02\0", "cut off"),
            (b"\0asm\x0d\0\x01\0\x01\x80", "cut off"),
            (b"\0asm\x0d\0\x01\0\x01\xff\xff\xff\xff\xff", "cut off"),
        ] {
            let error = check_kind(bytes).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
