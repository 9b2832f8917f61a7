use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer, SigningKey};
use outboxd::plugin::{MinisignKey, PluginHost, PluginOptions, Trust};
use outboxd_core::Outcome;

use crate::folder::{OK, cancels, deliver, entry, options_of};
use crate::guest::build;

const KEY_ID: [u8; 8] = *b"test-key";

/// The public key of `key` as minisign writes it.
fn public(key: &SigningKey) -> MinisignKey {
    let bytes = [b"Ed", &KEY_ID[..], key.verifying_key().as_bytes()].concat();
    MinisignKey::parse(&STANDARD.encode(bytes)).unwrap()
}

/// A signature as `minisign -l` makes it.
fn sign(key: &SigningKey, bytes: &[u8]) -> String {
    let comment = "a test";
    let signature = key.sign(bytes).to_bytes();
    let global = key.sign(&[&signature, comment.as_bytes()].concat()).to_bytes();
    format!(
        "untrusted comment: a test\n{}\ntrusted comment: {comment}\n{}\n",
        STANDARD.encode([b"Ed", &KEY_ID[..], &signature].concat()),
        STANDARD.encode(global)
    )
}

#[tokio::test]
async fn only_what_carries_a_signature_by_the_key_serves() {
    let dir = tempfile::tempdir().unwrap();
    let (file, signature) = (dir.path().join("orders.wasm"), dir.path().join("orders.wasm.minisig"));
    let (ours, other) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
    let trust = Trust { minisign_key: Some(public(&ours)), ..Trust::default() };
    let host = PluginHost::start(PluginOptions { trust, ..options_of(dir.path()) }).unwrap();
    let component = build(OK);
    std::fs::write(&file, &component).unwrap();
    host.scan_once().await;
    assert!(entry(&host, "orders").error.unwrap().contains("not signed"));

    // A signature that comes after its component is enough of a change.
    std::fs::write(&signature, sign(&ours, &component)).unwrap();
    host.scan_once().await;
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));

    let next = build(&cancels("next"));
    std::fs::write(&file, &next).unwrap();
    for wrong in [sign(&ours, &component), sign(&other, &next), "nonsense".into(), String::new()] {
        std::fs::write(&signature, wrong).unwrap();
        host.scan_once().await;
        let entry = entry(&host, "orders");
        assert!(entry.error.as_ref().is_some_and(|error| error.contains("orders.wasm.minisig")), "{entry:?}");
        assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success), "the version before it serves");
    }
    std::fs::write(&signature, sign(&ours, &next)).unwrap();
    host.scan_once().await;
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Cancel { error: "next".into() }));
}

#[tokio::test]
async fn only_what_is_pinned_serves_where_pins_are_required() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    let start = |trust| PluginHost::start(PluginOptions { trust, ..options_of(dir.path()) }).unwrap();
    let open = start(Trust::default());
    open.scan_once().await;
    let digest = entry(&open, "orders").digest.unwrap();

    let pins = [("orders".to_string(), vec![digest])].into();
    let host = start(Trust { pins, require_pins: true, ..Trust::default() });
    host.scan_once().await;
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));

    std::fs::write(dir.path().join("bills.wasm"), build(OK)).unwrap();
    std::fs::write(dir.path().join("orders.toml"), "topics = [\"orders\", \"bills\"]").unwrap();
    host.scan_once().await;
    assert!(entry(&host, "bills").error.unwrap().contains("no pin"));
    assert!(entry(&host, "orders").error.unwrap().contains("not among its pins"), "the manifest counts too");
    assert!(host.handlers().route("bills").is_none());
}
