//! How soon a version serves, with real plugins and the real compiler: after a start, and after it was written. The times are
//! printed and not asserted, for a test machine may be busy; what makes them short is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outboxd::plugin::{ChildCompiler, Compiler, PluginHost, PluginInfo, PluginOptions, SandboxOptions, Secrets};
use outboxd_test_support::guests;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

fn plugins() -> PathBuf {
    outboxd_test_support::repository().join("plugins")
}

/// Lays the plugin `source` of this repository under `name`, with its manifest and golden messages, for a topic of its own.
fn lay(folder: &Path, source: &str, name: &str, component: &[u8]) {
    let from = plugins().join(source);
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file of the plugin");
    let manifest = read(&from.join(format!("{source}.toml")));
    let topics = manifest.lines().find(|line| line.starts_with("topics = ")).expect("its topics");
    let prefix = topics.split('"').nth(1).and_then(|topic| topic.strip_suffix('*')).expect("a topic with a prefix");
    let own = |text: &str| text.replace(prefix, &format!("{name}."));
    std::fs::write(folder.join(format!("{name}.toml")), own(&manifest)).unwrap();
    let goldens = folder.join(format!("{name}.tests"));
    std::fs::create_dir(&goldens).unwrap();
    for entry in std::fs::read_dir(from.join(format!("{source}.tests"))).expect("golden messages") {
        let path = entry.unwrap().path();
        std::fs::write(goldens.join(path.file_name().unwrap()), own(&read(&path))).unwrap();
    }
    std::fs::write(folder.join(format!("{name}.wasm")), component).unwrap();
}

fn start(dir: &Path, cache: &Path, compiler: &Path) -> Arc<PluginHost> {
    let secrets = [("SHOP_KEY", "whsec_c2hvcA=="), ("RESEND_KEY", "re_key")];
    PluginHost::start(PluginOptions {
        dir: dir.into(),
        cache_dir: Some(cache.into()),
        sandbox: SandboxOptions {
            secrets: secrets.into_iter().map(|(name, value)| (name.into(), value.into())).collect::<Secrets>(),
            compiler: Compiler::Child(ChildCompiler::new(compiler.into())),
            ..SandboxOptions::default()
        },
        ..PluginOptions::default()
    })
    .unwrap()
}

fn assert_all_serve(list: &[PluginInfo], number: usize) {
    let wrong: Vec<_> = list.iter().filter(|plugin| plugin.state != "live" || plugin.error.is_some()).collect();
    assert!(list.len() == number && wrong.is_empty(), "{} plugins, of them {wrong:#?}", list.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_compiles_nothing_that_was_compiled_before_and_plays_every_golden_message() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (Some(email), Some(slack)) = (guests::ready("email"), guests::ready("slack")) else { return };
    let webhook = std::fs::read(guests::plugin("webhook")).unwrap();
    lay(dir.path(), "email", "email", &std::fs::read(email).unwrap());
    lay(dir.path(), "slack", "slack", &std::fs::read(slack).unwrap());
    for n in 0..8 {
        let name = format!("shop{n}");
        lay(dir.path(), "webhook", &name, &guests::marked(&webhook, &name));
    }
    let cold = Instant::now();
    let first = start(dir.path(), cache.path(), Path::new(env!("CARGO_BIN_EXE_outboxd")));
    first.scan_once().await;
    println!("ten plugins, nothing compiled before: {:?}", cold.elapsed());
    assert_all_serve(&first.list(), 10);
    drop(first);
    let golden = dir.path().join("slack.tests/posts-a-line.json");
    let expects_less = std::fs::read_to_string(&golden).unwrap().replace("success", "cancel");

    // With this compiler, whatever has to be compiled is refused.
    let warm = Instant::now();
    let second = start(dir.path(), cache.path(), Path::new("/nowhere/compiler"));
    second.scan_once().await;
    println!("ten plugins, all compiled before: {:?}", warm.elapsed());
    assert_all_serve(&second.list(), 10);
    drop(second);

    // Only code is kept, never a verdict.
    std::fs::write(&golden, expects_less).unwrap();
    let third = start(dir.path(), cache.path(), Path::new("/nowhere/compiler"));
    third.scan_once().await;
    let list = third.list();
    let slack = list.iter().find(|plugin| plugin.name == "slack").unwrap();
    assert!(slack.error.as_ref().is_some_and(|error| error.contains("posts-a-line.json")), "{slack:?}");
    assert_eq!(slack.state, "live", "what served before goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_plugin_serves_soon_after_its_last_byte() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let webhook = std::fs::read(guests::plugin("webhook")).unwrap();
    lay(dir.path(), "webhook", "shop", &webhook);
    let host = start(dir.path(), cache.path(), Path::new(env!("CARGO_BIN_EXE_outboxd")));
    host.scan_once().await;
    let shutdown = CancellationToken::new();
    let watching = tokio::spawn({
        let (host, shutdown) = (host.clone(), shutdown.clone());
        async move { host.watch(shutdown).await }
    });

    for (what, versions) in [("compiled", ["1", "2", "3", "4", "5"]), ("from the cache", ["1", "2", "3", "4", "5"])] {
        let mut took = vec![];
        for version in versions {
            took.push(serves_after(&host, &dir.path().join("shop.wasm"), &guests::marked(&webhook, version)).await);
        }
        took.sort_unstable();
        println!("from the last byte to serving, {what}: {:?} as a rule, {:?} at most", took[2], took[4]);
    }

    shutdown.cancel();
    watching.await.unwrap();
}

/// How long it takes from the last byte of a slow copy until that content serves.
async fn serves_after(host: &PluginHost, file: &Path, component: &[u8]) -> Duration {
    let before = host.list()[0].digest.clone();
    let mut copy = std::fs::File::create(file).unwrap();
    for part in component.chunks(16 << 10) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        std::io::Write::write_all(&mut copy, part).unwrap();
    }
    drop(copy);
    let written = Instant::now();
    while host.list()[0].digest == before {
        assert!(written.elapsed() < Duration::from_secs(60), "{:?}", host.list());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_all_serve(&host.list(), 1);
    written.elapsed()
}
