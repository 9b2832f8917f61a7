use std::fs;
use std::path::PathBuf;

/// Every sentence of the manuals names the test that holds it: the names must lead somewhere.
#[test]
fn every_test_that_the_manual_names_exists() {
    let root = outboxd_test_support::repository();
    let read = |manual: &str| fs::read_to_string(root.join(manual)).unwrap();
    let manuals = read("docs/sandbox.md") + &read("docs/reload.md").replace("```", "");
    let mut missing = vec![];
    let mut found = 0;
    for name in manuals.split('`').skip(1).step_by(2) {
        let Some((place, test)) = name.rsplit_once("::").filter(|(place, _)| !place.is_empty()) else { continue };
        let file = match place.strip_prefix("plugin::").and_then(|place| place.strip_suffix("::tests")) {
            Some(module) => root.join(format!("host/src/plugin/{}.rs", module.replace("::", "/"))),
            None => {
                let suites = ["sandbox", "relay"].map(|suite| root.join(format!("tests/{suite}/{place}.rs")));
                suites.iter().find(|file| file.exists()).unwrap_or(&suites[0]).clone()
            }
        };
        match fs::read_to_string(&file) {
            Ok(text) if text.contains(&format!("fn {test}(")) => found += 1,
            _ => missing.push(name),
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(found >= 40, "the manual names {found} tests only");
}

/// And so must the guests.
#[test]
fn every_guest_that_the_manual_names_exists() {
    let root = outboxd_test_support::repository();
    let manual = fs::read_to_string(root.join("docs/sandbox.md")).unwrap();
    let guests: Vec<PathBuf> = manual
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.contains('-') && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
        .filter(|name| !["hmac-sha256", "ed25519"].contains(name))
        .map(|name| root.join(format!("tests/guests/wat/{name}.wat")))
        .collect();
    let missing: Vec<&PathBuf> = guests.iter().filter(|path| !path.exists()).collect();
    assert!(missing.is_empty() && guests.len() >= 8, "{missing:?} of {}", guests.len());
}
