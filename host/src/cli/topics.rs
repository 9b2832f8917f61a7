//! `outboxd pause` and `outboxd resume`.

use outboxd_store::Changed;

use super::args::Global;
use super::{output, settings};

pub async fn pause(global: &Global, topic: &str) -> anyhow::Result<()> {
    let text = match settings::connect(global).await?.admin.pause(topic).await? {
        Changed::Yes => "is paused: no relay claims its messages until it is resumed",
        Changed::No => "was paused already",
    };
    output::line(format!("topic {topic:?} {text}"));
    Ok(())
}

pub async fn resume(global: &Global, topic: &str) -> anyhow::Result<()> {
    let text = match settings::connect(global).await?.admin.resume(topic).await? {
        Changed::Yes => "is resumed",
        Changed::No => "was not paused",
    };
    output::line(format!("topic {topic:?} {text}"));
    Ok(())
}
