//! What one call costs, by language, beside the same work in the host's own code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler};
use outboxd::plugin::{Ceiling, Content, Manifest, OnePlugin, SandboxOptions};
use outboxd_core::{Attempt, Claim, LeaseId, Message, MessageId, Outcome, Payload, RetryPolicy};
use outboxd_test_support::{guests, tools};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cpu::{self, micros};
use crate::plugins::CONCURRENCY;
use crate::report::Report;
use crate::stage::PAYLOAD;

/// A handler that reads its message as JSON and succeeds.
struct Language {
    name: &'static str,
    component: PathBuf,
}

/// Each language for `during` with a fresh instance for every message, and as long with instances that are used again.
pub async fn measure(report: &mut Report, during: Duration) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let native = busy(Arc::new(Native), during).await;
    report.add("native handler, a call", native.cpu, "µs of a core");
    for Language { name, component } in languages(folder.path()) {
        let cache = folder.path().join(format!("cache of {name}"));
        let component: Vec<u8> = std::fs::read(component).expect("a component");
        let load = |manifest| {
            OnePlugin::load(
                SandboxOptions::default(),
                Some(&cache),
                name,
                Content::new(component.clone().into(), None),
                manifest,
            )
        };
        for of in ["compile", "cached load"] {
            let measured = load(manifest("")).await.expect("it loads").measure().await.expect("it starts");
            report.add(format!("{name}: {of}"), measured.compile.as_secs_f64() * 1e3, "ms");
        }

        let fresh = load(manifest("")).await.expect("it loads");
        let start = fresh.measure().await.expect("it starts").start;
        report.add(format!("{name}: start an instance"), micros(start), "µs");
        let held = fresh.invoke(&claim()).await.expect("it is called").memory_bytes;
        report.add(format!("{name}: memory of an instance"), held as f64 / f64::from(1 << 20), "MiB");
        let call = busy(fresh.handler.clone(), during).await;
        let target = (name == "Rust").then_some("at most 25");
        report.add_with_target(format!("{name}: a call, fresh instance"), call.cpu, "µs of a core", target);
        report.add(format!("{name}: fresh instance, over native"), call.cpu / native.cpu, "x");
        report.add(format!("{name}: a call alone, fresh instance"), alone(&fresh.handler, during / 4).await, "µs");

        let reused = load(manifest("[instances]\nreuse = 1000")).await.expect("it loads");
        let call = busy(reused.handler.clone(), during).await;
        report.add(format!("{name}: a call, used instance"), call.cpu, "µs of a core");
        report.add(format!("{name}: used instance, over native"), call.cpu / native.cpu, "x");
    }
}

/// What a call took on average.
struct Cost {
    /// Microseconds that all threads of this process computed: guest, sandbox, and the way to it and back.
    cpu: f64,
}

/// As many calls at once as a plugin's concurrency is by default.
async fn busy(handler: Arc<dyn Handler>, during: Duration) -> Cost {
    // What is done once for each version, and the first page faults of the pool.
    for _ in 0..CONCURRENCY {
        call(&handler, &claim()).await;
    }
    let (begun, cpu) = (Instant::now(), cpu::own());
    let mut callers = JoinSet::new();
    for _ in 0..CONCURRENCY {
        let (handler, threads) = (handler.clone(), handler.threads().unwrap_or_else(Handle::current));
        let caller = async move {
            let (claim, mut calls) = (claim(), 0_u64);
            while calls == 0 || begun.elapsed() < during {
                call(&handler, &claim).await;
                calls += 1;
            }
            calls
        };
        // Where a relay has its attempts live.
        callers.spawn_on(caller, &threads);
    }
    let calls: u64 = callers.join_all().await.into_iter().sum();
    Cost { cpu: micros(cpu::own() - cpu) / calls as f64 }
}

/// One call after the other, on an idle machine: microseconds from the start of a call to its end.
async fn alone(handler: &Arc<dyn Handler>, during: Duration) -> f64 {
    let (claim, begun, mut calls) = (claim(), Instant::now(), 0_u32);
    while calls == 0 || begun.elapsed() < during {
        call(handler, &claim).await;
        calls += 1;
    }
    micros(begun.elapsed()) / f64::from(calls)
}

async fn call(handler: &Arc<dyn Handler>, claim: &Claim) {
    let handled = handler.handle(claim, CallControl { stop: CancellationToken::new() }).await;
    assert_eq!(handled.outcome, Outcome::Success);
}

/// The same work without a sandbox.
struct Native;

#[async_trait]
impl Handler for Native {
    async fn handle(&self, claim: &Claim, _call: CallControl) -> Handled {
        let order: serde_json::Value = serde_json::from_slice(claim.message.payload.as_bytes()).expect("JSON");
        assert_eq!(order["do"], "succeed");
        // Else sixteen callers would be one after the other.
        tokio::task::yield_now().await;
        Handled::new(Outcome::Success)
    }
}

/// Those whose tools can be had here.
fn languages(folder: &Path) -> Vec<Language> {
    let mut languages = vec![Language { name: "Rust", component: guests::guest("parse") }];
    if let Some(clang) = tools::tool("clang") {
        languages.push(Language { name: "C", component: project(folder, "c", "handler.c", &clang) });
    }
    if let Some(go) = tools::tool("go") {
        languages.push(Language { name: "Go", component: project(folder, "go", "plugin.go", &go.join("bin")) });
    }
    let wit = outboxd_test_support::repository().join("wit/v1");
    if let Some(tool) = tools::tool("componentize-qjs") {
        let component = folder.join("js.wasm");
        let mut build = Command::new(tool.join("node_modules/.bin/componentize-qjs"));
        build.arg("--wit").arg(&wit).args(["-n", "plugin", "--sync", "--js"]).arg(handlers().join("parse.js"));
        run(build.arg("-o").arg(&component));
        languages.push(Language { name: "JavaScript", component });
    }
    if let Some(tool) = tools::tool("componentize-py") {
        let component = folder.join("py.wasm");
        let mut build = Command::new(tool.join("bin/componentize-py"));
        build.arg("-d").arg(wit).args(["-w", "plugin", "componentize", "parse", "-p"]).arg(handlers());
        run(build.arg("-o").arg(&component));
        languages.push(Language { name: "Python", component });
    }
    languages
}

/// The component of a project as `plugin new` makes it, with our handler for its `file` and the language's `tools`.
fn project(folder: &Path, language: &str, file: &str, tools: &Path) -> PathBuf {
    let outboxd = Path::new(env!("CARGO_BIN_EXE_outboxd"));
    let name = format!("in-{language}");
    run(Command::new(outboxd).args(["plugin", "new", &name, "--lang", language]).current_dir(folder));
    let handler = handlers().join("parse").with_extension(language);
    std::fs::copy(handler, folder.join(&name).join(file)).expect("the handler is copied");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = [tools, outboxd.parent().expect("a folder")].map(Path::to_owned);
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&path))).expect("a path");
    run(Command::new(folder.join(&name).join("build")).env("PATH", path));
    folder.join(&name).join(name).with_extension("wasm")
}

fn handlers() -> PathBuf {
    outboxd_test_support::repository().join("tests/bench/handlers")
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn manifest(text: &str) -> Manifest {
    Manifest::parse("handler.toml", text, "handler", &Ceiling::default(), &RetryPolicy::default()).expect("a manifest")
}

fn claim() -> Claim {
    let message = Message {
        id: MessageId(uuid::Uuid::now_v7()),
        topic: "handler".into(),
        key: None,
        payload: Payload::Bytes(PAYLOAD.into()),
        headers: vec![],
        created_at_ms: 0,
    };
    Claim {
        message,
        lease_id: LeaseId(uuid::Uuid::new_v4()),
        attempt: Attempt(1),
        lapses: 0,
        lapsed: false,
        order: outboxd_core::Order::None,
        key_failures: 0,
        expired: false,
    }
}
