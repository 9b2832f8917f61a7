use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use outboxd_core::{Admission, Blame, Claim, Health, MessageId, Outcome, safe_text};
use tokio_util::sync::CancellationToken;
use wasmtime::component::Component;
use wasmtime_wasi_config::WasiConfigVariables;

use super::bindings::HostSidePre;
use super::component::{check_world, memory_at_start, one_line};
use super::cpu::CpuMeter;
use super::egress::Egress;
use super::golden::Golden;
use super::instance::{self, Report};
use super::manifest::Manifest;
use super::outcome::{Evidence, Verdict};
use super::reuse::Idle;
use super::sandbox::Sandbox;
use super::state::CallState;
use super::usage::Usage;
use crate::handler::CallControl;

/// One content of a plugin, ready to be called: compiled, linked, granted.
pub(crate) struct Version {
    pub(crate) name: Arc<str>,
    /// SHA-256 over component and manifest, in hexadecimal.
    pub(crate) digest: Arc<str>,
    /// The digest of the version that served before it, for whoever has to go back.
    pub(crate) previous: OnceLock<Arc<str>>,
    pub(crate) manifest: Manifest,
    pub(crate) pre: HostSidePre<CallState>,
    pub(crate) egress: Arc<Egress>,
    pub(crate) settings: Arc<WasiConfigVariables>,
    pub(crate) secret_names: Arc<[String]>,
    pub(crate) stats: Stats,
    pub(crate) usage: Usage,
    /// Instances between two messages.
    pub(crate) idle: Idle,
    health: Mutex<Health>,
    /// The kinds of failure whose backtrace was logged.
    told: Mutex<BTreeSet<String>>,
}

/// More kinds of failure than these are not told apart: texts of errors may hold anything.
const KINDS_MAX: usize = 20;

/// What a version has done since it was loaded.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) calls: AtomicU64,
    pub(crate) faults: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Version {
    /// Links a compiled component: everything that can be wrong with it is found here, before a message is.
    pub(crate) fn link(
        sandbox: &Sandbox,
        component: &Component,
        name: &str,
        digest: &str,
        manifest: Manifest,
    ) -> Result<Version, String> {
        check_world(&sandbox.engine, component)?;
        check_resources(component, &manifest)?;
        let pre = sandbox
            .linker(manifest.profile)
            .instantiate_pre(component)
            .and_then(HostSidePre::new)
            .map_err(|error| format!("it asks for something this host does not have: {}", one_line(&error)))?;
        let settings = manifest.settings.iter().map(|(key, value)| (key.clone(), value.clone()));
        Ok(Version {
            name: name.into(),
            digest: digest.into(),
            previous: OnceLock::new(),
            egress: sandbox.egress(&manifest.grants),
            settings: Arc::new(settings.collect()),
            secret_names: manifest.grants.secrets.keys().cloned().collect(),
            pre,
            manifest,
            stats: Stats::default(),
            usage: Usage::new(name.into()),
            idle: Idle::default(),
            health: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Measures one call.
    pub(crate) fn meter(&self) -> Arc<CpuMeter> {
        CpuMeter::new(self.manifest.limits.cpu)
    }

    /// Runs one piece of work on the guests' threads, measured. The error is a failure of the host's own.
    async fn run<F>(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        work: impl FnOnce(Arc<Sandbox>, Arc<Version>, Arc<CpuMeter>) -> F,
    ) -> Result<F::Output, String>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (place, version) = (sandbox.clone(), self.clone());
        let done = sandbox.threads.run(self.meter(), |cpu| work(place, version, cpu)).await;
        done.map_err(|error| format!("outboxd itself failed, please report it: {error}"))
    }

    /// Hands one message over, with requests that go elsewhere than out where `egress` says so.
    pub(crate) async fn call(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        claim: Claim,
        control: CallControl,
        egress: Option<Arc<Egress>>,
    ) -> Result<Report, String> {
        let work = |sandbox: Arc<Sandbox>, version: Arc<Version>, cpu| async move {
            instance::call(&sandbox, &version, &claim, control, cpu, egress).await
        };
        self.run(sandbox, work).await
    }

    /// Starts an instance and throws it away: a component that cannot start is found before the first message. Answers how
    /// long that took.
    pub(crate) async fn try_out(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<Duration, String> {
        let work = |sandbox: Arc<Sandbox>, version: Arc<Version>, cpu| async move {
            let started = Instant::now();
            instance::try_out(&sandbox, &version, cpu).await.map(|()| started.elapsed())
        };
        self.run(sandbox, work).await?
    }

    /// Plays a golden message through; the text says what came instead of what was expected.
    pub(crate) async fn rehearse(self: &Arc<Self>, sandbox: &Arc<Sandbox>, golden: Golden) -> Result<(), String> {
        let script = Arc::new(golden.script());
        let egress = self.egress.rehearsal(script.clone());
        let claim = golden.claim(self.manifest.default_topic(&self.name));
        let control = CallControl { stop: CancellationToken::new() };
        let report = self.call(sandbox, claim, control, Some(egress)).await?;
        golden.judge(&report.verdict.outcome, &script)?;
        if report.verdict.evidence == Evidence::Success {
            self.health().succeeded();
        }
        Ok(())
    }

    /// Files what a call has shown, and puts the blame where it belongs.
    pub(crate) fn file(&self, verdict: Verdict, message: MessageId) -> Outcome {
        self.stats.calls.fetch_add(1, Ordering::Relaxed);
        let mut outcome = verdict.outcome;
        match verdict.evidence {
            Evidence::Success => self.health().succeeded(),
            Evidence::Fault => {
                self.stats.faults.fetch_add(1, Ordering::Relaxed);
                let was_parked = self.health().is_parked();
                let judged = self.health().faulted(message, Instant::now());
                if let Outcome::Fault { reason, error, blame } = &mut outcome {
                    *blame = judged;
                    self.stats.note(error);
                    if judged == Blame::Plugin && !was_parked {
                        let previous =
                            self.previous.get().map(|digest| format!(" (before it served {})", &digest[..12]));
                        tracing::warn!(plugin = %self.name, digest = %self.digest, reason = %reason,
                            "plugin {}{} fails by itself; its topics are parked, no attempt is spent: {error}",
                            self.name, previous.unwrap_or_default());
                    }
                }
            }
            Evidence::None => match &outcome {
                Outcome::Retry { error, .. } | Outcome::Cancel { error } | Outcome::Fault { error, .. } => {
                    self.stats.note(error)
                }
                Outcome::Success | Outcome::Refused { .. } => {}
            },
        }
        outcome
    }

    /// Logs the backtrace of a failure, once for each kind.
    pub(crate) fn tell_once(&self, error: &wasmtime::Error) {
        let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return };
        let kind = safe_text(&error.root_cause().to_string(), 200);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < KINDS_MAX && told.insert(kind.clone()) {
            let backtrace = safe_text(&backtrace.to_string(), 4 << 10);
            tracing::warn!(plugin = %self.name, digest = %self.digest, "plugin {} failed: {kind}\n{backtrace}", self.name);
        }
    }

    pub(crate) fn admission(&self) -> Admission {
        self.health().admission(Instant::now())
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.health().is_parked()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stats {
    fn note(&self, error: &str) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What an instance needs at its start must fit its limit and the pool: better an error now than at the first message.
fn check_resources(component: &Component, manifest: &Manifest) -> Result<(), String> {
    let Some(needs) = component.resources_required() else { return Ok(()) };
    let largest = memory_at_start(component);
    if largest > manifest.limits.memory {
        return Err(format!(
            "it starts with {} MiB of memory, more than its limit of {} MiB; raise limits.memory in its manifest",
            largest.div_ceil(1 << 20),
            manifest.limits.memory >> 20
        ));
    }
    if needs.max_initial_table_size.unwrap_or(0) > super::engine::TABLE_ELEMENTS_MAX as u64 {
        return Err(format!("it starts with a table of more than {} elements", super::engine::TABLE_ELEMENTS_MAX));
    }
    if needs.num_memories > 16 || needs.num_tables > 64 {
        return Err(format!(
            "it needs {} memories and {} tables; at most 16 and 64 are to be had",
            needs.num_memories, needs.num_tables
        ));
    }
    Ok(())
}
