use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use outboxd_core::RetryPolicy;
use tracing::{info, warn};

use super::cache::Cache;
use super::component::check_kind;
use super::folder::{Content, Look, Stamps, look};
use super::golden::{self, Golden};
use super::grants::Ceiling;
use super::manifest::Manifest;
use super::registry::{Canary, Plugin, PluginSet, Registry};
use super::rollout::Trial;
use super::sandbox::Sandbox;
use super::version::Version;

/// Turns what lies in the folder into the set that serves.
///
/// A bad file never replaces a good one: the last good version goes on serving, and what is wrong is said once for each
/// content.
pub(crate) struct Loader {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) dir: PathBuf,
    pub(crate) cache: Arc<Cache>,
    pub(crate) ceiling: Ceiling,
    pub(crate) default_retry: RetryPolicy,
    pub(crate) default_concurrency: usize,
    /// Held for a whole scan: two at once would load everything twice.
    pub(crate) memory: tokio::sync::Mutex<Memory>,
    /// What is wrong just now, by file name. For people.
    pub(crate) problems: Mutex<BTreeMap<String, Problem>>,
}

/// What a scan remembers for the next one.
#[derive(Default)]
pub(crate) struct Memory {
    stamps: BTreeMap<String, Stamps>,
    /// The digest that was tried last, good or bad.
    tried: BTreeMap<String, String>,
    /// Since when no scan has found it.
    missing: BTreeMap<String, Instant>,
    folder_problem: Option<String>,
}

/// Why a file does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) digest: Option<String>,
    pub(crate) error: String,
}

/// Whether to look again before anything happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// A file was changing, or is newly gone.
    Soon,
    No,
}

/// So many files that are no plugins are named in the log at a time.
const SKIPPED_LINES_MAX: usize = 20;

/// A file that is gone is unloaded when it stays gone for so long: editors and rsync delete and create.
const MISSING_MAX: Duration = Duration::from_secs(2);

impl Loader {
    /// Looks at the folder once and brings the set up to date.
    pub(crate) async fn scan(&self) -> Again {
        let mut memory = self.memory.lock().await;
        let (dir, known) = (self.dir.clone(), memory.stamps.clone());
        let looked = tokio::task::spawn_blocking(move || look(&dir, &known)).await;
        let looked = looked.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let looked = match looked {
            Ok(looked) => looked,
            Err(error) => {
                // The running set stays: a folder that is unmounted for a moment is no order to stop.
                let problem = format!("the plugin folder {:?} cannot be read: {error}", self.dir);
                if memory.folder_problem.as_ref() != Some(&problem) {
                    warn!("{problem}; what is loaded goes on");
                    memory.folder_problem = Some(problem);
                }
                return Again::No;
            }
        };
        memory.folder_problem = None;
        self.apply(&mut memory, looked).await
    }

    async fn apply(&self, memory: &mut Memory, looked: Look) -> Again {
        let mut again = if looked.unstable { Again::Soon } else { Again::No };
        let before = self.registry.set.load_full();
        let mut wanted: BTreeMap<String, Arc<Plugin>> =
            before.plugins.iter().map(|plugin| (plugin.version.name.to_string(), plugin.clone())).collect();
        self.report_skipped(&looked.skipped);
        for name in wanted.keys().filter(|name| !looked.found.contains_key(*name)).cloned().collect::<Vec<_>>() {
            // What is there and cannot be read now stays; what is gone goes, after a while.
            if looked.skipped.contains_key(&format!("{name}.wasm")) {
                continue;
            }
            if memory.missing.entry(name.clone()).or_insert_with(Instant::now).elapsed() < MISSING_MAX {
                again = Again::Soon;
                continue;
            }
            self.cache.forget_good(&self.dir, &name);
            info!(plugin = %name, "plugin {name} is gone; its topics are no longer served");
            count(&name, "removed");
            wanted.remove(&name);
        }
        memory.missing.retain(|name, _| wanted.contains_key(name) && !looked.found.contains_key(name));
        self.forget(memory, &looked);
        for (name, found) in looked.found {
            memory.stamps.insert(name.clone(), found.stamps);
            let Some(content) = found.content else { continue };
            let digest = content.digest.clone();
            if let Some(plugin) = wanted.get(&name).filter(|plugin| *plugin.version.digest == *digest).cloned() {
                // Back to what serves: an earlier complaint is void, and a trial is over.
                self.clear(&name);
                memory.tried.insert(name.clone(), digest);
                if plugin.canary.is_some() {
                    let (sandbox, version) = (self.sandbox.clone(), plugin.version.clone());
                    wanted.insert(name, Plugin::new(sandbox, version, found.file, self.default_concurrency));
                }
                continue;
            }
            if wanted
                .get(&name)
                .and_then(|plugin| plugin.canary.as_ref())
                .is_some_and(|canary| *canary.version.digest == *digest)
            {
                continue;
            }
            let said_before = memory.tried.insert(name.clone(), digest.clone()) == Some(digest.clone());
            let loaded = match self.refused_before(&name, &digest) {
                Some(why) => Err(why),
                None => self.load(&name, &found.file, content.clone()).await,
            };
            let serve =
                |version| Plugin::new(self.sandbox.clone(), version, found.file.clone(), self.default_concurrency);
            match loaded {
                Ok(version) => {
                    self.clear(&name);
                    let rollout = version.manifest.rollout;
                    match wanted.get(&name).filter(|_| rollout.canary > 0.0) {
                        Some(old) => {
                            let canary = Arc::new(Canary { version, trial: Trial::new(rollout), content });
                            let plugin = old.with_canary(self.sandbox.clone(), canary, &self.registry);
                            wanted.insert(name, plugin);
                        }
                        None => {
                            self.keep_good(&name, content).await;
                            wanted.insert(name, serve(version));
                        }
                    }
                }
                Err(error) => {
                    if !wanted.contains_key(&name)
                        && let Some(version) = self.last_good(&name, &found.file).await
                    {
                        wanted.insert(name.clone(), serve(version));
                    }
                    self.complain(&name, Some(digest), error, said_before, wanted.contains_key(&name));
                }
            }
        }
        self.swap(&before, wanted);
        again
    }

    /// Everything between bytes and a version that could serve.
    async fn load(&self, name: &str, file: &Path, content: Content) -> Result<Arc<Version>, String> {
        let manifest_file = file.with_extension("toml");
        let shown = manifest_file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = content.manifest.as_deref().unwrap_or_default();
        let manifest = Manifest::parse(&shown, text, name, &self.ceiling, &self.default_retry)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let beside = file.to_path_buf();
        let goldens =
            tokio::task::spawn_blocking(move || golden::read(&beside)).await.map_err(|error| error.to_string())??;
        let version =
            prepare(&self.sandbox, self.cache.clone(), name, content.component, content.digest, manifest).await?;
        rehearse(&self.sandbox, &version, goldens).await?;
        for secret in version.secret_names.iter().filter(|secret| self.sandbox.secrets.get(secret).is_none()) {
            warn!(plugin = %name, "plugin {name} is granted the secret {secret:?}, but outboxd.toml has none of that name in [secrets]");
        }
        Ok(version)
    }

    /// Why a version is not tried again: it was sent back, and its file is the same still.
    fn refused_before(&self, name: &str, digest: &str) -> Option<String> {
        let mut sent_back = self.registry.sent_back();
        match sent_back.get(name) {
            Some((bad, why)) if bad == digest => Some(why.clone()),
            Some(_) => {
                sent_back.remove(name);
                None
            }
            None if self.cache.is_bad(&self.dir, name, digest) => {
                Some("it was rolled back before the relay was started; change the file to try again".into())
            }
            None => None,
        }
    }

    async fn keep_good(&self, name: &str, content: Content) {
        let (cache, dir, owned) = (self.cache.clone(), self.dir.clone(), name.to_string());
        let kept = tokio::task::spawn_blocking(move || cache.keep_good(&dir, &owned, &content)).await;
        if let Ok(Err(error)) = kept {
            warn!(plugin = %name, "plugin {name} cannot be kept for the next start: {error}");
        }
    }

    /// The version that served before the relay was started, where the file is bad now.
    async fn last_good(&self, name: &str, file: &Path) -> Option<Arc<Version>> {
        let (cache, dir, owned) = (self.cache.clone(), self.dir.clone(), name.to_string());
        let content = tokio::task::spawn_blocking(move || cache.last_good(&dir, &owned)).await.ok()??;
        match self.load(name, file, content).await {
            Ok(version) => Some(version),
            Err(error) => {
                warn!(plugin = %name, "the last good version of plugin {name} does not load either: {error}");
                None
            }
        }
    }

    /// Swaps the wanted set in, but for new versions whose topics collide: their predecessors stay.
    fn swap(&self, before: &PluginSet, wanted: BTreeMap<String, Arc<Plugin>>) {
        let _one = self.registry.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // A trial may have ended while files were read: what it came to stays.
        let now = self.registry.set.load_full();
        let current = |plugin: Arc<Plugin>| match before.find(&plugin.version.name) {
            Some(old) if Arc::ptr_eq(old, &plugin) => now.find(&plugin.version.name).cloned().unwrap_or(plugin),
            _ => plugin,
        };
        let mut plugins: Vec<Arc<Plugin>> = wanted.into_values().map(current).collect();
        while let Some((i, j, error)) = PluginSet::conflict(&plugins) {
            let is_new =
                |plugin: &Arc<Plugin>| before.find(&plugin.version.name).is_none_or(|old| !Arc::ptr_eq(old, plugin));
            let mut offenders: Vec<usize> = [j, i].into_iter().filter(|at| is_new(&plugins[*at])).collect();
            if offenders.is_empty() {
                // Cannot be: the running set has no conflict. Were it so, dropping one ends the loop.
                offenders.push(j);
            }
            for at in offenders {
                let plugin = plugins[at].clone();
                let name = plugin.version.name.to_string();
                let old = before.find(&name).cloned();
                self.complain(&name, Some(plugin.version.digest.to_string()), error.clone(), false, old.is_some());
                match old {
                    Some(old) if is_new(&plugin) => plugins[at] = old,
                    _ => {
                        plugins.remove(at);
                    }
                }
            }
        }
        let same = plugins.len() == before.plugins.len()
            && plugins.iter().zip(&before.plugins).all(|(a, b)| Arc::ptr_eq(a, b));
        if same {
            return;
        }
        for plugin in &plugins {
            let version = &plugin.version;
            if before.find(&version.name).is_none_or(|old| !Arc::ptr_eq(old, plugin)) {
                if let Some(canary) = &plugin.canary {
                    let (digest, rollout) = (&canary.version.digest, canary.version.manifest.rollout);
                    let share = rollout.canary * 100.0;
                    info!(plugin = %version.name, %digest, "plugin {} {} gets {share} % of the messages for {} calls", version.name, &digest[..12], rollout.calls);
                    count(&version.name, "canary");
                    continue;
                }
                let topics: Vec<String> = version.manifest.topics.iter().map(ToString::to_string).collect();
                let short = &version.digest[..12];
                info!(plugin = %version.name, digest = %version.digest, "plugin {} {short} serves {}", version.name, topics.join(", "));
                count(&version.name, "loaded");
                gauge(version, 1.0);
            }
        }
        for old in &before.plugins {
            if !plugins
                .iter()
                .any(|plugin| plugin.version.digest == old.version.digest && plugin.version.name == old.version.name)
            {
                gauge(&old.version, 0.0);
            }
        }
        self.registry.set.store(Arc::new(PluginSet { plugins }));
    }

    fn complain(&self, name: &str, digest: Option<String>, error: String, said_before: bool, is_served: bool) {
        let file = format!("{name}.wasm");
        if !said_before {
            let meanwhile = if is_served { "; the version before it goes on serving" } else { "" };
            warn!(plugin = %name, "plugin {file} is not loaded: {error}{meanwhile}");
            count(name, "rejected");
        }
        self.problems().insert(file, Problem { digest, error });
    }

    fn report_skipped(&self, skipped: &BTreeMap<String, String>) {
        let mut problems = self.problems();
        let mut new = 0;
        for (file, why) in skipped {
            let problem = Problem { digest: None, error: why.clone() };
            if problems.get(file) == Some(&problem) {
                continue;
            }
            new += 1;
            if new <= SKIPPED_LINES_MAX {
                warn!("{file:?} in the plugin folder is skipped: {why}");
            }
            problems.insert(file.clone(), problem);
        }
        if new > SKIPPED_LINES_MAX {
            warn!("{} more files in the plugin folder are skipped", new - SKIPPED_LINES_MAX);
        }
    }

    /// Drops what is remembered of files that are there no more.
    fn forget(&self, memory: &mut Memory, looked: &Look) {
        memory.stamps.retain(|name, _| looked.found.contains_key(name));
        memory.tried.retain(|name, _| looked.found.contains_key(name));
        self.problems().retain(|file, _| {
            looked.skipped.contains_key(file)
                || file.strip_suffix(".wasm").is_some_and(|name| looked.found.contains_key(name))
        });
    }

    fn clear(&self, name: &str) {
        self.problems().remove(&format!("{name}.wasm"));
    }

    pub(crate) fn problems(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Problem>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks, compiles, links and tries out one component.
pub(crate) async fn prepare(
    sandbox: &Arc<Sandbox>,
    cache: Arc<Cache>,
    name: &str,
    bytes: Bytes,
    digest: String,
    manifest: Manifest,
) -> Result<Arc<Version>, String> {
    let engine = sandbox.engine.clone();
    let compiled = tokio::task::spawn_blocking(move || {
        check_kind(&bytes)?;
        cache.component(&engine, &bytes)
    });
    let component = compiled.await.map_err(|error| format!("the compiler failed, please report it: {error}"))??;
    let version = Arc::new(Version::link(sandbox, &component, name, &digest, manifest)?);
    version.try_out(sandbox).await?;
    Ok(version)
}

/// Plays golden messages through a version that is about to serve; each must come out as it says.
async fn rehearse(
    sandbox: &Arc<Sandbox>,
    version: &Arc<Version>,
    goldens: Vec<(String, Golden)>,
) -> Result<(), String> {
    for (file, golden) in goldens {
        version.rehearse(sandbox, golden).await.map_err(|why| format!("golden message {file}: {why}"))?;
    }
    Ok(())
}

fn count(plugin: &str, result: &'static str) {
    metrics::counter!("outboxd_plugin_reloads_total", "plugin" => plugin.to_string(), "result" => result).increment(1);
}

fn gauge(version: &Version, value: f64) {
    let labels = [("plugin", version.name.to_string()), ("digest", version.digest.to_string())];
    metrics::gauge!("outboxd_plugin_info", &labels).set(value);
}
