//! `outboxd doctor`: what is wrong here, and what to do about it. Looks, and changes nothing.

mod host;

use std::process::ExitCode;

use outboxd_core::one_line;
use outboxd_store::{Finding, Verdict, examine};

use super::args::{DoctorArgs, Global};
use super::output;
use super::settings::{self, WrongSettings};
use crate::config::{Overrides, Purpose};

/// Exits with 1 where something fails.
pub async fn doctor(global: &Global, args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let overrides = || Overrides { plugins: args.plugins.clone(), ..Overrides::default() };
    let config = settings::load(global, overrides(), Purpose::Outbox)?;
    let mut findings = vec![configuration(settings::load(global, overrides(), Purpose::Plugins).err())];
    findings.extend(examine(&settings::store_options(&config)?, args.snapshot_max).await?);
    findings.extend(host::examine(&config));
    if args.json {
        output::json(&findings)?;
    } else {
        output::line(findings.iter().map(shown).collect::<Vec<_>>().join("\n"));
    }
    let worst = findings.iter().map(|finding| finding.verdict).max();
    Ok(if worst == Some(Verdict::Fail) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What `outboxd run` would refuse and looking at the outbox does not: secrets without a value.
fn configuration(error: Option<anyhow::Error>) -> Finding {
    match error.map(|error| error.downcast::<WrongSettings>()) {
        None => Finding::ok("configuration", "complete"),
        Some(Ok(wrong)) => {
            Finding::fail("configuration", wrong.to_string().replace('\n', "; "), "put it right: \"run\" refuses it")
        }
        Some(Err(error)) => Finding::fail("configuration", format!("{error:#}"), "put it right: \"run\" refuses it"),
    }
}

fn shown(finding: &Finding) -> String {
    let verdict = match finding.verdict {
        Verdict::Ok => output::green("ok  "),
        Verdict::Warn => output::yellow("warn"),
        Verdict::Fail => output::red("fail"),
    };
    let line = format!("{verdict}  {:<15} {}", finding.check, one_line(&finding.found, 1000));
    match &finding.advice {
        Some(advice) => format!("{line}\n      {:<15} {}", "", one_line(&format!("→ {advice}"), 1000)),
        None => line,
    }
}
