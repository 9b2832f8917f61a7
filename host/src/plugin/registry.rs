use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use outboxd_core::{Blame, Claim, Outcome, Reason, RetryPolicy, TopicPattern};
use tokio::runtime::Handle;

use super::cache::Cache;
use super::folder::Content;
use super::outcome::Evidence;
use super::rollout::{Decision, Trial};
use super::sandbox::Sandbox;
use super::version::Version;
use crate::handler::{CallControl, Handled, Handler, Handlers, Route};

/// A version that serves, with what the relay needs to know of it.
pub(crate) struct Plugin {
    pub(crate) version: Arc<Version>,
    /// A newer one that has yet to prove itself.
    pub(crate) canary: Option<Arc<Canary>>,
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
        let handler = Arc::new(Guest { sandbox, version: version.clone() });
        Arc::new(Plugin {
            canary: None,
            policy: Arc::new(version.manifest.retry.clone()),
            concurrency: version.manifest.concurrency.unwrap_or(default_concurrency).max(1),
            handler,
            loaded_at: SystemTime::now(),
            version,
            file,
        })
    }
}

/// A version on trial: it gets a share of the messages of the one that serves.
pub(crate) struct Canary {
    pub(crate) version: Arc<Version>,
    pub(crate) trial: Trial,
    /// What it was made of, for the next start.
    pub(crate) content: Content,
}

impl Plugin {
    /// This plugin with `canary` on trial beside it.
    pub(crate) fn with_canary(
        &self,
        sandbox: Arc<Sandbox>,
        canary: Arc<Canary>,
        registry: &Arc<Registry>,
    ) -> Arc<Self> {
        let share = Share {
            stable: Guest { sandbox: sandbox.clone(), version: self.version.clone() },
            fresh: Guest { sandbox, version: canary.version.clone() },
            canary: canary.clone(),
            registry: Arc::downgrade(registry),
        };
        Arc::new(Plugin {
            version: self.version.clone(),
            canary: Some(canary),
            file: self.file.clone(),
            loaded_at: self.loaded_at,
            policy: self.policy.clone(),
            concurrency: self.concurrency,
            handler: Arc::new(share),
        })
    }

    /// Its calls at once.
    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// The topics of the version that serves, and of the one on trial.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &TopicPattern> {
        let fresh = self.canary.iter().flat_map(|canary| &canary.version.manifest.topics);
        self.version.manifest.topics.iter().chain(fresh)
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
                for topic in a.topics() {
                    if let Some(other) = b.topics().find(|other| other.overlaps(topic)) {
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
pub(crate) struct Registry {
    pub(crate) set: ArcSwap<PluginSet>,
    /// Held while a new set is made from the one that serves.
    pub(crate) changing: Mutex<()>,
    /// Versions that were sent back, by plugin: digest and why.
    pub(crate) sent_back: Mutex<BTreeMap<String, (String, String)>>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) dir: PathBuf,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) default_concurrency: usize,
}

impl Registry {
    /// Ends a trial: the fresh version takes over, or is sent back until its file changes.
    fn end_trial(&self, canary: &Arc<Canary>, decision: Decision) {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let set = self.set.load_full();
        let name = &canary.version.name;
        let of_trial = |plugin: &&Arc<Plugin>| plugin.canary.as_ref().is_some_and(|other| Arc::ptr_eq(other, canary));
        // Another file may have come meanwhile.
        let Some(old) = set.plugins.iter().find(of_trial) else { return };
        let (calls, faults) = canary.trial.so_far();
        let digest = &canary.version.digest;
        let winner = if decision == Decision::TakeOver {
            tracing::info!(plugin = %name, %digest, "plugin {name} {} takes over after {calls} calls", &digest[..12]);
            let kept = self.cache.keep_good(&self.dir, name, &canary.content);
            if let Err(error) = kept {
                tracing::warn!(plugin = %name, "plugin {name} cannot be kept for the next start: {error}");
            }
            canary.version.clone()
        } else {
            let last = canary.version.stats.last_error().unwrap_or_default();
            let why = format!(
                "it was rolled back: it failed {faults} messages by itself in {calls} calls, last with: {last}"
            );
            tracing::warn!(plugin = %name, %digest, "plugin {name} {}: {why}; the version before it goes on serving", &digest[..12]);
            metrics::counter!("outboxd_plugin_reloads_total", "plugin" => name.to_string(), "result" => "rolled-back")
                .increment(1);
            self.cache.mark_bad(&self.dir, name, digest).ok();
            self.sent_back().insert(name.to_string(), (digest.to_string(), why));
            old.version.clone()
        };
        let plugin = Plugin::new(self.sandbox.clone(), winner, old.file.clone(), self.default_concurrency);
        let swap = |other: &Arc<Plugin>| if Arc::ptr_eq(other, old) { plugin.clone() } else { other.clone() };
        self.set.store(Arc::new(PluginSet { plugins: set.plugins.iter().map(swap).collect() }));
    }

    pub(crate) fn sent_back(&self) -> MutexGuard<'_, BTreeMap<String, (String, String)>> {
        self.sent_back.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            order: plugin.version.manifest.order,
            spacing: plugin.version.manifest.spacing,
            rate: plugin.version.manifest.rate,
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

/// Two versions behind the seam, one of them on trial.
struct Share {
    stable: Guest,
    fresh: Guest,
    canary: Arc<Canary>,
    /// The registry holds this: it must not hold the registry.
    registry: Weak<Registry>,
}

#[async_trait]
impl Handler for Share {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        let id = claim.message.id;
        if !self.canary.trial.takes(id, fastrand::f64()) {
            return self.stable.handle(claim, call).await;
        }
        let (mut handled, evidence) = self.fresh.call(claim, call).await;
        if let Outcome::Fault { blame, .. } = &mut handled.outcome
            && evidence == Evidence::Fault
        {
            // The message pays nothing for a trial: it comes again, to the version that serves.
            *blame = Blame::Plugin;
        }
        let decision = self.canary.trial.note(id, evidence);
        if decision != Decision::GoOn
            && let Some(registry) = self.registry.upgrade()
        {
            let canary = self.canary.clone();
            // It writes files.
            tokio::task::spawn_blocking(move || registry.end_trial(&canary, decision));
        }
        handled
    }

    fn threads(&self) -> Option<Handle> {
        self.stable.threads()
    }
}

#[async_trait]
impl Handler for Guest {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        self.call(claim, call).await.0
    }

    fn threads(&self) -> Option<Handle> {
        Some(self.sandbox.threads.begin_on())
    }
}

impl Guest {
    async fn call(&self, claim: &Claim, call: CallControl) -> (Handled, Evidence) {
        let called = self.version.call(&self.sandbox, claim.clone(), call, None).await;
        let digest = Some(self.version.digest.clone());
        match called {
            Ok(report) => {
                self.version.usage.note(&claim.message.topic, report.cpu, report.memory);
                let evidence = report.verdict.evidence;
                let handled = Handled {
                    outcome: self.version.file(report.verdict, claim.message.id),
                    digest,
                    http_status: report.http_status,
                    response_excerpt: report.response_excerpt,
                    pause_key: report.pause_key,
                    target: report.target,
                };
                (handled, evidence)
            }
            Err(error) => {
                tracing::error!(message.id = %claim.message.id, "message {}: {error}", claim.message.id);
                let outcome = Outcome::Fault { reason: Reason::Panic, error, blame: Blame::Host };
                (Handled { digest, ..Handled::new(outcome) }, Evidence::None)
            }
        }
    }
}
