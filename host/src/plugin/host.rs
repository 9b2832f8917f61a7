use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, UNIX_EPOCH};

use outboxd_core::{Claim, Outcome, RetryPolicy};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::cache::Cache;
use super::component;
use super::egress::{Exchange, Exchanges};
use super::folder::Content;
use super::golden::Golden;
use super::grants::Ceiling;
use super::loader::Loader;
use super::manifest::Manifest;
use super::problems::{Problem, Problems};
use super::registry::{Guest, Plugin, Registry};
use super::sandbox::{Sandbox, SandboxOptions};
use super::trust::Trust;
use super::validator::{Validator, prepare};
use super::watch::Watch;
use crate::handler::{CallControl, Handler, Handlers};

/// What a host of plugins is made of.
#[derive(Clone)]
pub struct PluginOptions {
    /// The watched folder. Made where it is missing.
    pub dir: PathBuf,
    /// Where compiled plugins are kept; nothing: nowhere. Never inside `dir`.
    pub cache_dir: Option<PathBuf>,
    pub watch: Watch,
    /// Default: whatever lies in the folder is loaded.
    pub trust: Trust,
    pub ceiling: Ceiling,
    /// The policy of plugins whose manifest has no `[retry]`.
    pub default_policy: RetryPolicy,
    /// The concurrency of plugins whose manifest has none.
    pub default_concurrency: usize,
    pub sandbox: SandboxOptions,
}

impl Default for PluginOptions {
    fn default() -> Self {
        PluginOptions {
            dir: "plugins".into(),
            cache_dir: None,
            watch: Watch::Auto,
            trust: Trust::default(),
            ceiling: Ceiling::default(),
            default_policy: RetryPolicy::default(),
            default_concurrency: 16,
            sandbox: SandboxOptions::default(),
        }
    }
}

/// The plugins of one folder.
pub struct PluginHost {
    loader: Loader,
    registry: Arc<Registry>,
    watch: Watch,
}

/// What people see of one plugin.
#[derive(Clone, Debug, Serialize)]
pub struct PluginInfo {
    pub name: String,
    pub file: String,
    /// Of the version that serves; of the one that was refused where none does.
    pub digest: Option<String>,
    /// Of the version that served before, if one did since the start.
    pub previous: Option<String>,
    pub topics: Vec<String>,
    pub hosts: Vec<String>,
    pub private_networks: Vec<String>,
    pub tcp: Vec<String>,
    /// Names only.
    pub secrets: Vec<String>,
    /// What one call may use; nothing where no manifest could be read.
    pub limits: Option<LimitsInfo>,
    /// `live`, `canary` (a newer version is on trial beside it), `parked` or `bad`.
    pub state: &'static str,
    /// The digest of the version on trial, with its calls and faults so far.
    pub canary: Option<CanaryInfo>,
    /// Why the file in the folder does not serve; beside `live`, the version before it does.
    pub error: Option<String>,
    /// Milliseconds since the epoch.
    pub loaded_at_ms: Option<u64>,
    pub calls: u64,
    /// Calls that failed by the plugin's own doing.
    pub faults: u64,
    pub last_error: Option<String>,
}

/// What one call may use, as its manifest says.
#[derive(Clone, Debug, Serialize)]
pub struct LimitsInfo {
    pub memory_bytes: u64,
    pub cpu_ms: u64,
    pub deadline_ms: u64,
    /// Calls at once.
    pub concurrency: usize,
}

/// A version on trial.
#[derive(Clone, Debug, Serialize)]
pub struct CanaryInfo {
    pub digest: String,
    pub calls: u64,
    pub faults: u64,
}

impl PluginHost {
    /// Sets the sandbox up. Nothing is loaded before [`PluginHost::scan_once`].
    pub fn start(options: PluginOptions) -> Result<Arc<PluginHost>, String> {
        let cache = Cache::open_or_temporary(options.cache_dir.as_deref(), options.sandbox.compiler.clone())?;
        let cache = Arc::new(cache);
        let sandbox = Arc::new(Sandbox::new(options.sandbox)?);
        if let Err(error) = std::fs::create_dir_all(&options.dir) {
            warn!("the plugin folder {:?} is missing and cannot be made: {error}", options.dir);
        }
        let registry = Arc::new(Registry {
            set: arc_swap::ArcSwap::default(),
            changing: std::sync::Mutex::default(),
            sent_back: std::sync::Mutex::default(),
            cache: cache.clone(),
            dir: options.dir.clone(),
            sandbox: sandbox.clone(),
            default_concurrency: options.default_concurrency,
        });
        let validator = Validator {
            sandbox: sandbox.clone(),
            cache: cache.clone(),
            trust: Arc::new(options.trust),
            ceiling: options.ceiling,
            default_retry: options.default_policy,
        };
        let loader = Loader {
            sandbox,
            registry: registry.clone(),
            dir: options.dir,
            cache,
            validator,
            default_concurrency: options.default_concurrency,
            memory: tokio::sync::Mutex::default(),
            problems: Problems::default(),
        };
        Ok(Arc::new(PluginHost { loader, registry, watch: options.watch }))
    }

    /// Looks at the folder and loads what is new in it. When it returns, the set serves.
    pub async fn scan_once(&self) {
        self.loader.scan().await;
    }

    /// The same, and what was refused is tried again, in case the reason lay elsewhere. What serves is not.
    pub async fn scan_anew(&self) {
        self.loader.forget_stamps().await;
        self.loader.scan().await;
    }

    /// Keeps the set up to date with the folder, until `shutdown`.
    pub async fn watch(&self, shutdown: CancellationToken) {
        self.loader.watch(self.watch, shutdown).await;
    }

    /// The seam for the relay.
    pub fn handlers(&self) -> Arc<dyn Handlers> {
        self.registry.clone()
    }

    /// Every plugin that serves and every file that does not, by name.
    pub fn list(&self) -> Vec<PluginInfo> {
        let set = self.registry.set.load_full();
        let mut problems = self.loader.problems.all();
        for (name, (digest, why)) in self.registry.sent_back().iter() {
            let problem = Problem { digest: Some(digest.clone()), error: why.clone() };
            problems.entry(format!("{name}.wasm")).or_insert(problem);
        }
        let mut list: Vec<PluginInfo> = set.plugins.iter().map(|plugin| info(plugin)).collect();
        for (file, problem) in problems {
            let name = file.strip_suffix(".wasm").unwrap_or(&file).to_string();
            match list.iter_mut().find(|info| info.name == name) {
                Some(info) => info.error = Some(problem.error),
                None => list.push(PluginInfo {
                    name,
                    file,
                    digest: problem.digest,
                    previous: None,
                    topics: vec![],
                    hosts: vec![],
                    private_networks: vec![],
                    tcp: vec![],
                    secrets: vec![],
                    limits: None,
                    state: "bad",
                    canary: None,
                    error: Some(problem.error),
                    loaded_at_ms: None,
                    calls: 0,
                    faults: 0,
                    last_error: None,
                }),
            }
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }
}

/// One component without a folder: for `plugin check`, `plugin invoke` and tests.
pub struct OnePlugin {
    pub manifest: Manifest,
    /// As a relay shows it.
    pub digest: String,
    pub handler: Arc<dyn Handler>,
    guest: Arc<Guest>,
    /// How long it took to check and compile it, with nothing cached, and to start it once.
    loading: Duration,
}

/// What one message came to, and what it took.
#[derive(Clone, Debug)]
pub struct Invoked {
    pub outcome: Outcome,
    /// The first hundred.
    pub requests: Vec<Exchange>,
    /// The start of the last answer, secrets struck out.
    pub response_excerpt: Option<String>,
    pub cpu: Duration,
    /// The most memory it held.
    pub memory_bytes: u64,
}

/// What a component is made of and what it costs.
#[derive(Clone, Debug)]
pub struct Measured {
    pub exports: Vec<String>,
    pub imports: Vec<String>,
    pub memory_bytes_at_start: u64,
    pub compile: Duration,
    /// The best of several fresh instances.
    pub start: Duration,
}

/// So many starts are timed.
const STARTS: usize = 10;

impl OnePlugin {
    /// Checks, compiles, links and tries out `content` as the plugin `name`, under `manifest`: what it was read to mean. The
    /// text says what is wrong, in one line.
    pub async fn load(
        options: SandboxOptions,
        cache_dir: Option<&Path>,
        name: &str,
        content: Content,
        manifest: Manifest,
    ) -> Result<OnePlugin, String> {
        let cache = Arc::new(Cache::open_or_temporary(cache_dir, options.compiler.clone())?);
        let sandbox = Arc::new(Sandbox::new(options)?);
        let started = Instant::now();
        let version = prepare(&sandbox, cache, name, &content, manifest.clone()).await?;
        let loading = started.elapsed();
        let guest = Arc::new(Guest { sandbox, version });
        Ok(OnePlugin { manifest, digest: content.digest, handler: guest.clone(), guest, loading })
    }

    /// Hands one message over, through the plugin's grants. The text says what failed on the host's side.
    pub async fn invoke(&self, claim: &Claim) -> Result<Invoked, String> {
        let exchanges = Arc::new(Exchanges::default());
        let egress = self.guest.version.egress.watched(exchanges.clone());
        let control = CallControl { stop: CancellationToken::new() };
        let report = self.guest.version.call(&self.guest.sandbox, claim.clone(), control, Some(egress)).await?;
        Ok(Invoked {
            outcome: report.verdict.outcome,
            requests: exchanges.take(),
            response_excerpt: report.response_excerpt,
            cpu: report.cpu,
            memory_bytes: report.memory as u64,
        })
    }

    /// Starts some instances, and says what the component is made of and what it costs.
    pub async fn measure(&self) -> Result<Measured, String> {
        let mut start = Duration::MAX;
        for _ in 0..STARTS {
            start = start.min(self.guest.version.try_out(&self.guest.sandbox).await?);
        }
        let component = self.guest.version.pre.instance_pre().component();
        let (exports, imports) = component::surface(&self.guest.sandbox.engine, component);
        let memory_bytes_at_start = component::memory_at_start(component);
        let compile = self.loading.saturating_sub(start);
        Ok(Measured { exports, imports, memory_bytes_at_start, compile, start })
    }

    /// Plays a golden message through; the text says what came instead of what was expected.
    pub async fn rehearse(&self, golden: &Golden) -> Result<(), String> {
        self.guest.version.rehearse(&self.guest.sandbox, golden.clone()).await
    }
}

fn info(plugin: &Plugin) -> PluginInfo {
    let version = &plugin.version;
    let manifest = &version.manifest;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    PluginInfo {
        name: version.name.to_string(),
        file: plugin.file.display().to_string(),
        digest: Some(version.digest.to_string()),
        previous: version.previous.get().map(|digest| digest.to_string()),
        topics: manifest.topics.iter().map(ToString::to_string).collect(),
        hosts: manifest.grants.hosts.iter().map(ToString::to_string).collect(),
        private_networks: manifest.grants.private_networks.iter().map(ToString::to_string).collect(),
        tcp: manifest.grants.tcp.iter().map(ToString::to_string).collect(),
        secrets: manifest.grants.secrets.keys().cloned().collect(),
        limits: Some(LimitsInfo {
            memory_bytes: manifest.limits.memory,
            cpu_ms: ms(manifest.limits.cpu),
            deadline_ms: ms(manifest.limits.deadline),
            concurrency: plugin.concurrency(),
        }),
        state: match (version.is_parked(), &plugin.canary) {
            (true, _) => "parked",
            (false, Some(_)) => "canary",
            (false, None) => "live",
        },
        canary: plugin.canary.as_ref().map(|canary| {
            let (calls, faults) = canary.trial.so_far();
            CanaryInfo { digest: canary.version.digest.to_string(), calls, faults }
        }),
        error: None,
        loaded_at_ms: plugin.loaded_at.duration_since(UNIX_EPOCH).ok().map(ms),
        calls: version.stats.calls.load(Ordering::Relaxed),
        faults: version.stats.faults.load(Ordering::Relaxed),
        last_error: version.stats.last_error(),
    }
}
