use std::time::Duration;

use outboxd::handler::CallControl;
use outboxd::plugin::{PluginHost, PluginOptions, Watch};
use outboxd_core::{Admission, Outcome};
use outboxd_test_support::guests;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::folder::{OK, Watching, cancels, deliver, entry, large, start, until, until_answers, watching};
use crate::guest::build;
use crate::harness::{claim, options, word};

#[tokio::test]
async fn a_file_in_the_folder_serves_the_topic_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    let host = start(dir.path());

    host.scan_once().await;

    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
    assert!(host.handlers().route("other").is_none());
    assert_eq!(entry(&host, "orders").state, "live");
}

#[tokio::test]
async fn a_bad_file_never_replaces_a_good_one_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build(OK)).unwrap();
    let host = start(dir.path());
    host.scan_once().await;
    let good = entry(&host, "orders").digest;

    for (bad, words) in [
        (b"".to_vec(), "empty"),
        (b"(component)".to_vec(), "text"),
        (wat::parse_str("(module)").unwrap(), "core WebAssembly module"),
        (wat::parse_str("(component)").unwrap(), "exports nothing"),
        (build(OK)[..400].to_vec(), "cut off"),
        (b"\0asm\x0d\0\x01\0\x07\x02\x01\xff".to_vec(), "cannot be compiled"),
        (build("(func $main (result i32) (call $ok)) (func $s unreachable) (start $s)"), "cannot be started"),
    ] {
        std::fs::write(&file, bad).unwrap();
        host.scan_once().await;

        let entry = entry(&host, "orders");
        assert!(entry.error.as_ref().is_some_and(|error| error.contains(words)), "{words}: {entry:?}");
        assert_eq!((entry.state, &entry.digest), ("live", &good));
        assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
    }
}

#[tokio::test]
async fn a_manifest_that_goes_beyond_the_ceiling_is_refused_by_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    std::fs::write(dir.path().join("orders.toml"), "[limits]\nmemory = \"4GiB\"\n").unwrap();
    let host = start(dir.path());

    host.scan_once().await;

    let entry = entry(&host, "orders");
    assert_eq!(entry.state, "bad");
    assert!(entry.error.unwrap().starts_with("orders.toml:2: limits.memory: "));
}

#[tokio::test]
async fn a_new_version_is_live_soon_after_it_is_written_and_a_removed_one_goes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    let host = start(dir.path());
    let shutdown = CancellationToken::new();
    let watching = tokio::spawn({
        let (host, shutdown) = (host.clone(), shutdown.clone());
        async move { host.watch(shutdown).await }
    });

    // The third is compiled already.
    for answer in ["one", "two", "one"] {
        std::fs::write(&file, build(&cancels(answer))).unwrap();
        let written = Instant::now();
        until(answer, async || deliver(&host, "orders").await == Some(Outcome::Cancel { error: answer.into() })).await;
        println!("version {answer:?} was live {:?} after its last byte", written.elapsed());
    }
    std::fs::remove_file(&file).unwrap();
    until("removed", async || host.handlers().route("orders").is_none()).await;

    shutdown.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_fails_by_itself_is_parked_and_a_good_file_resumes_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build("(func $main (result i32) unreachable)")).unwrap();
    let host = start(dir.path());
    host.scan_once().await;

    let outcome = deliver(&host, "orders").await.unwrap();
    assert_eq!(word(&outcome), "trap");
    assert_eq!(entry(&host, "orders").state, "parked");
    assert!(matches!(host.handlers().route("orders").unwrap().admission, Admission::Parked { .. }));

    std::fs::write(&file, build(OK)).unwrap();
    host.scan_once().await;

    assert_eq!(host.handlers().route("orders").unwrap().admission, Admission::Open);
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
}

#[tokio::test]
async fn a_manifest_that_is_away_for_a_moment_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("orders.toml");
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    std::fs::write(&manifest, "topics = [\"shop\"]").unwrap();
    let host = start(dir.path());
    host.scan_once().await;

    std::fs::remove_file(&manifest).unwrap();
    host.scan_once().await;
    assert_eq!(deliver(&host, "shop").await, Some(Outcome::Success));
    std::fs::write(&manifest, "topics = [\"shop\"]").unwrap();
    host.scan_once().await;
    assert_eq!(deliver(&host, "shop").await, Some(Outcome::Success));

    // Removed for good, it is as if it had never been there.
    std::fs::remove_file(&manifest).unwrap();
    let topic_of_its_name = async || {
        host.scan_once().await;
        host.handlers().route("orders").is_some()
    };
    until("without its manifest", topic_of_its_name).await;
    assert!(host.handlers().route("shop").is_none());
}

#[tokio::test]
async fn a_version_that_is_parked_names_the_one_that_served_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build(OK)).unwrap();
    let host = start(dir.path());
    host.scan_once().await;
    let good = entry(&host, "orders").digest;

    std::fs::write(&file, build("(func $main (result i32) unreachable)")).unwrap();
    host.scan_once().await;
    deliver(&host, "orders").await;

    let parked = entry(&host, "orders");
    assert_eq!((parked.state, parked.previous), ("parked", good));
}

#[tokio::test]
async fn what_is_no_plain_file_is_skipped_and_never_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder.wasm")).unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.path().join("dangling.wasm")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("device.wasm")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket.wasm")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(dir.path().join("pipe.wasm")).status().unwrap().success());
    std::fs::File::create(dir.path().join("huge.wasm")).unwrap().set_len(4 << 30).unwrap();
    std::fs::write(dir.path().join("or*.wasm"), build(OK)).unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    let host = start(dir.path());

    tokio::time::timeout(Duration::from_secs(10), host.scan_once()).await.expect("a scan that ends");

    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
    for name in ["folder", "dangling", "device", "socket", "pipe", "huge", "or*"] {
        assert_eq!(entry(&host, name).state, "bad", "{name}");
    }
}

#[tokio::test]
async fn without_watching_only_a_scan_sees_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let host = PluginHost::start(PluginOptions {
        dir: dir.path().into(),
        watch: Watch::Off,
        sandbox: options(),
        ..PluginOptions::default()
    })
    .unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();

    tokio::time::timeout(Duration::from_secs(5), host.watch(CancellationToken::new())).await.expect("returns at once");

    assert!(host.handlers().route("orders").is_none());
}

#[tokio::test]
async fn every_prefix_of_a_good_component_is_refused_and_the_version_before_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    std::fs::write(&file, build(OK)).unwrap();
    let host = start(dir.path());
    host.scan_once().await;
    let good = entry(&host, "orders").digest;
    let whole = large("whole");
    let real = std::fs::read(guests::plugin("webhook")).unwrap();
    assert!(whole.len() > 100 << 10 && real.len() > 100 << 10, "many prefixes");

    for component in [&real, &whole] {
        for end in (0..component.len()).step_by(4096) {
            std::fs::write(&file, &component[..end]).unwrap();
            host.scan_once().await;

            let entry = entry(&host, "orders");
            assert!(entry.error.is_some() && entry.digest == good, "{end} bytes: {entry:?}");
            assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success), "at {end} bytes");
        }
    }
    std::fs::write(&file, &whole).unwrap();
    host.scan_once().await;
    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Cancel { error: "whole".into() }));
    assert_eq!(entry(&host, "orders").error, None);
}

#[tokio::test]
async fn every_way_of_copying_ends_with_the_new_version_serving() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("orders.wasm");
    let Watching { host, _end } = watching(dir.path());

    // A slow copy, in place.
    let bytes = large("slow copy");
    for chunk in bytes.chunks(16 << 10) {
        std::io::Write::write_all(
            &mut std::fs::OpenOptions::new().create(true).append(true).open(&file).unwrap(),
            chunk,
        )
        .unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    until_answers(&host, "slow copy").await;
    // Truncated in place, then written.
    std::fs::write(&file, "").unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    std::fs::write(&file, build(&cancels("truncated"))).unwrap();
    until_answers(&host, "truncated").await;
    // Renamed over, as rsync and editors do.
    std::fs::write(dir.path().join(".orders.wasm.tmp"), build(&cancels("renamed"))).unwrap();
    std::fs::rename(dir.path().join(".orders.wasm.tmp"), &file).unwrap();
    until_answers(&host, "renamed").await;
    // Deleted and created again, within the time that a deletion is given.
    std::fs::remove_file(&file).unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(host.handlers().route("orders").is_some(), "unloaded too soon");
    std::fs::write(&file, build(&cancels("created again"))).unwrap();
    until_answers(&host, "created again").await;
    // The same size and an older time: the digest decides.
    std::fs::write(&file, build(&cancels("created agAIN"))).unwrap();
    std::fs::File::open(&file).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    until_answers(&host, "created agAIN").await;
}

#[tokio::test]
async fn a_folder_of_links_is_swapped_as_a_whole() {
    // As Kubernetes mounts a ConfigMap: plugins/orders.wasm → ..data/orders.wasm, ..data → ..1
    let dir = tempfile::tempdir().unwrap();
    let version = |n: u32, answer: &str| {
        std::fs::create_dir(dir.path().join(format!("..{n}"))).unwrap();
        std::fs::write(dir.path().join(format!("..{n}/orders.wasm")), build(&cancels(answer))).unwrap();
        std::os::unix::fs::symlink(format!("..{n}"), dir.path().join("..new")).unwrap();
        std::fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
    };
    version(1, "first");
    std::os::unix::fs::symlink("..data/orders.wasm", dir.path().join("orders.wasm")).unwrap();
    let Watching { host, _end } = watching(dir.path());
    until_answers(&host, "first").await;

    version(2, "second");

    until_answers(&host, "second").await;
}

#[tokio::test]
async fn the_folder_itself_may_be_a_link_that_changes_or_be_removed_and_made_again() {
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join("plugins");
    for (place, answer) in [("a", "a"), ("b", "b")] {
        std::fs::create_dir(root.path().join(place)).unwrap();
        std::fs::write(root.path().join(place).join("orders.wasm"), build(&cancels(answer))).unwrap();
    }
    std::os::unix::fs::symlink("a", &link).unwrap();
    let Watching { host, _end } = watching(&link);
    until_answers(&host, "a").await;

    std::os::unix::fs::symlink("b", root.path().join("new")).unwrap();
    std::fs::rename(root.path().join("new"), &link).unwrap();
    until_answers(&host, "b").await;

    std::fs::remove_dir_all(root.path().join("b")).unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(host.handlers().route("orders").is_some(), "a folder that is away is no order to stop");
    std::fs::create_dir(root.path().join("b")).unwrap();
    std::fs::write(root.path().join("b/orders.wasm"), build(&cancels("again"))).unwrap();
    until_answers(&host, "again").await;
}

#[tokio::test]
async fn a_poison_message_on_a_working_plugin_pays_for_itself() {
    // Traps on a payload that begins with "!", succeeds on all others.
    let guest = "(func $main (result i32)
        (if (i32.eq (i32.load8_u (global.get $payload)) (i32.const 33)) (then unreachable)) (call $ok))";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.wasm"), build(guest)).unwrap();
    let host = start(dir.path());
    host.scan_once().await;
    let handler = host.handlers().route("orders").unwrap().handler;
    let control = || CallControl { stop: CancellationToken::new() };
    assert_eq!(handler.handle(&claim("{}"), control()).await.outcome, Outcome::Success);
    let poison = claim("!");

    for _ in 0..10 {
        let outcome = handler.handle(&poison, control()).await.outcome;
        assert_eq!(crate::harness::blame(&outcome), Some(outboxd_core::Blame::Message));
    }

    assert_eq!(entry(&host, "orders").state, "live");
    assert_eq!(host.handlers().route("orders").unwrap().admission, Admission::Open);
}

#[tokio::test]
async fn ten_thousand_files_that_are_no_plugins_hide_no_good_one() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..10_000 {
        std::fs::File::create(dir.path().join(format!("empty{n}.wasm"))).unwrap();
    }
    std::fs::write(dir.path().join("orders.wasm"), build(OK)).unwrap();
    let host = start(dir.path());

    tokio::time::timeout(Duration::from_secs(20), host.scan_once()).await.expect("a scan that ends");

    assert_eq!(deliver(&host, "orders").await, Some(Outcome::Success));
}
