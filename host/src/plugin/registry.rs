use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use outboxd_core::{Blame, Claim, Outcome, Reason, RetryPolicy};
use tokio_util::task::AbortOnDropHandle;

use super::instance;
use super::sandbox::Sandbox;
use super::version::Version;
use crate::handler::{CallControl, Handled, Handler, Handlers, Route};

/// A version that serves, with what the relay needs to know of it.
pub(crate) struct Plugin {
    pub(crate) version: Arc<Version>,
    pub(crate) file: PathBuf,
    pub(crate) loaded_at: SystemTime,
    policy: Arc<RetryPolicy>,
    concurrency: usize,
    handler: Arc<dyn Handler>,
}

impl Plugin {
    pub(crate) fn new(
        sandbox: Arc<Sandbox>,
        version: Arc<Version>,
        file: PathBuf,
        default_concurrency: usize,
    ) -> Arc<Self> {
        Arc::new(Plugin {
            policy: Arc::new(version.manifest.retry.clone()),
            concurrency: version.manifest.concurrency.unwrap_or(default_concurrency).max(1),
            handler: Arc::new(Guest { sandbox, version: version.clone() }),
            loaded_at: SystemTime::now(),
            version,
            file,
        })
    }
}

/// All plugins that serve: a value. A reload builds a new one and swaps it in; calls under way keep the version they began on.
#[derive(Default)]
pub(crate) struct PluginSet {
    /// In the order of their names.
    pub(crate) plugins: Vec<Arc<Plugin>>,
}

impl PluginSet {
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Plugin>> {
        self.plugins.iter().find(|plugin| &*plugin.version.name == name)
    }

    /// Two plugins whose topics overlap, if there are any; the text names both and says what to do.
    pub(crate) fn conflict(plugins: &[Arc<Plugin>]) -> Option<(usize, usize, String)> {
        for (i, a) in plugins.iter().enumerate() {
            for (j, b) in plugins.iter().enumerate().skip(i + 1) {
                for topic in &a.version.manifest.topics {
                    if let Some(other) = b.version.manifest.topics.iter().find(|other| other.overlaps(topic)) {
                        let (a, b) = (a.file.display(), b.file.display());
                        let what = if topic == other {
                            format!("topic \"{topic}\"")
                        } else {
                            format!("topics \"{topic}\" and \"{other}\"")
                        };
                        return Some((
                            i,
                            j,
                            format!("{what}: handled by both \"{a}\" and \"{b}\"; remove it from one manifest"),
                        ));
                    }
                }
            }
        }
        None
    }
}

/// The set that serves just now.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) set: ArcSwap<PluginSet>,
}

impl Handlers for Registry {
    fn route(&self, topic: &str) -> Option<Route> {
        let set = self.set.load();
        let serves =
            |plugin: &&Arc<Plugin>| plugin.version.manifest.topics.iter().any(|pattern| pattern.matches(topic));
        let plugin = set.plugins.iter().find(serves)?;
        Some(Route {
            plugin: plugin.version.name.clone(),
            handler: plugin.handler.clone(),
            policy: plugin.policy.clone(),
            concurrency: plugin.concurrency,
            admission: plugin.version.admission(),
        })
    }

    fn plugins(&self) -> usize {
        self.set.load().plugins.len()
    }
}

/// A version behind the relay's seam.
pub(crate) struct Guest {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) version: Arc<Version>,
}

#[async_trait]
impl Handler for Guest {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        let (sandbox, version, owned) = (self.sandbox.clone(), self.version.clone(), claim.clone());
        let work = async move { instance::call(&sandbox, &version, &owned, call).await };
        // On the guests' own threads. Dropping this future aborts the call.
        let called = AbortOnDropHandle::new(self.sandbox.guests().spawn(work)).await;
        let digest = Some(self.version.digest.clone());
        match called {
            Ok(report) => {
                let labels = [("topic", claim.message.topic.clone()), ("plugin", self.version.name.to_string())];
                metrics::histogram!("outboxd_guest_cpu_seconds", &labels).record(report.cpu.as_secs_f64());
                metrics::histogram!("outboxd_guest_memory_bytes", &labels).record(report.memory as f64);
                Handled {
                    outcome: self.version.file(report.verdict, claim.message.id),
                    digest,
                    http_status: report.http_status,
                    response_excerpt: report.response_excerpt,
                }
            }
            Err(error) => {
                tracing::error!(message.id = %claim.message.id, "the host failed during a call, please report it: {error}");
                let error = "outboxd itself failed during the call, please report it".to_string();
                Handled { digest, ..Handled::new(Outcome::Fault { reason: Reason::Panic, error, blame: Blame::Host }) }
            }
        }
    }
}
