use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::cli::args::Global;
use crate::cli::{output, settings};

/// What `plugin check` found.
#[derive(Serialize)]
struct Checked {
    file: String,
    bytes: u64,
    digest: String,
    /// Why `[trust]` keeps it out until the digest is pinned or the component signed, where it does.
    untrusted: Option<String>,
    exports: Vec<String>,
    imports: Vec<String>,
    topics: Vec<String>,
    hosts: Vec<String>,
    private_networks: Vec<String>,
    tcp: Vec<String>,
    secrets: Vec<String>,
    /// Golden messages, all of which came out as they say.
    goldens: usize,
    /// The most that one call may hold.
    memory_bytes: u64,
    /// What an instance starts with.
    memory_bytes_at_start: u64,
    compile_ms: f64,
    /// The best of several starts of a fresh instance.
    start_ms: f64,
}

pub async fn check(global: &Global, file: &Path, json: bool) -> anyhow::Result<()> {
    let config = settings::load_plain(global)?;
    let goldens = super::goldens(file)?;
    let (name, content) = super::read(file)?;
    // No error: the digest that is to be pinned comes from here.
    let untrusted = config.trust.admit(&name, &content).err();
    let bytes = content.component.len() as u64;
    let one = super::load_content(&config, file, &name, content, vec![]).await?;
    let measured = one.measure().await.map_err(|why| super::refused(file, &why))?;
    for (name, golden) in &goldens {
        let played = one.rehearse(golden).await;
        played.map_err(|why| super::refused(file, &format!("golden message {name}: {why}")))?;
    }
    let manifest = &one.manifest;
    let checked = Checked {
        file: file.display().to_string(),
        bytes,
        digest: one.digest.clone(),
        untrusted,
        exports: measured.exports,
        imports: measured.imports,
        topics: manifest.topics.iter().map(ToString::to_string).collect(),
        hosts: manifest.grants.hosts.iter().map(ToString::to_string).collect(),
        private_networks: manifest.grants.private_networks.iter().map(ToString::to_string).collect(),
        tcp: manifest.grants.tcp.iter().map(ToString::to_string).collect(),
        secrets: manifest.grants.secrets.keys().cloned().collect(),
        goldens: goldens.len(),
        memory_bytes: manifest.limits.memory,
        memory_bytes_at_start: measured.memory_bytes_at_start,
        compile_ms: ms(measured.compile),
        start_ms: ms(measured.start),
    };
    if json {
        return output::json(&checked);
    }
    let or_nothing = |list: &[String]| if list.is_empty() { "nothing".to_owned() } else { list.join(" ") };
    match &checked.untrusted {
        None => output::line(format!("{} would be accepted", checked.file)),
        Some(why) => output::line(format!("{} would be accepted if it were trusted: {why}", checked.file)),
    }
    output::line(format!("exports   {}", or_nothing(&checked.exports)));
    output::line(format!("imports   {}", or_nothing(&checked.imports)));
    output::line(format!("handles   {}", or_nothing(&checked.topics)));
    let tcp = checked.tcp.iter().map(|peer| format!("tcp://{peer}"));
    let reaches: Vec<String> = checked.hosts.iter().cloned().chain(tcp).collect();
    output::line(format!("reaches   {}", or_nothing(&reaches)));
    output::line(format!("secrets   {}", or_nothing(&checked.secrets)));
    output::line(format!("plays     {} golden messages as they say", checked.goldens));
    output::line(format!(
        "memory    {:.1} MiB at its start, {} MiB a call at most",
        checked.memory_bytes_at_start as f64 / f64::from(1 << 20),
        checked.memory_bytes >> 20
    ));
    output::line(format!("size      {} bytes", checked.bytes));
    output::line(format!("compiles  in {:.0} ms, once for each version", checked.compile_ms));
    output::line(format!("starts    in {:.2} ms, before each message", checked.start_ms));
    output::line(format!("digest    {}", checked.digest));
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
