use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::cache::Cache;
use super::folder::{Content, Look, Stamps, look, read_one};
use super::problems::{Meanwhile, Problems, Said};
use super::registry::{Canary, Plugin, PluginSet, Registry};
use super::rollout::Trial;
use super::sandbox::Sandbox;
use super::validator::Validator;
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
    pub(crate) validator: Validator,
    pub(crate) default_concurrency: usize,
    /// Held for a whole scan: two at once would load everything twice.
    pub(crate) memory: tokio::sync::Mutex<Memory>,
    /// What is wrong just now. For people.
    pub(crate) problems: Problems,
}

/// What a scan remembers for the next one.
#[derive(Default)]
pub(crate) struct Memory {
    stamps: BTreeMap<String, Stamps>,
    /// The digest that was tried last, good or bad.
    tried: BTreeMap<String, String>,
    /// Since when no scan has found it.
    missing: BTreeMap<String, Instant>,
    /// Since when no scan has found its manifest, which was there before.
    without_manifest: BTreeMap<String, Instant>,
    /// Good in itself, but its topics are another's: it serves as soon as they are free.
    colliding: BTreeMap<String, Candidate>,
    folder_problem: Option<String>,
    has_looked: bool,
}

/// What a scan would have serve.
#[derive(Clone)]
struct Candidate {
    plugin: Arc<Plugin>,
    /// What it was made of, where that is to be kept for the next start. Not held while it waits for its topics.
    content: Option<Content>,
    past: Past,
}

/// Of two that claim one topic, one that has served goes before one that has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Past {
    HasServed,
    IsNew,
}

/// Whether to look again before anything happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// A file was changing, or is newly gone.
    Soon,
    No,
}

/// A file that is gone counts as gone when it stays so for so long: editors and rsync delete and create.
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

    /// Has the next scan read every file again.
    pub(crate) async fn forget_stamps(&self) {
        self.memory.lock().await.stamps.clear();
    }

    async fn apply(&self, memory: &mut Memory, looked: Look) -> Again {
        let before = self.registry.set.load_full();
        let newly_skipped = self.problems.skip(&looked.skipped);
        let again = if looked.unstable { Again::Soon } else { Again::No };
        let (gone, mut again) = self.gone(memory, &before, &looked, again);
        self.forget(memory, &looked);

        let mut candidates = BTreeMap::new();
        for (name, found) in looked.found {
            if memory.stamps.get(&name).is_some_and(|before| found.stamps.lost_manifest(before)) {
                // Without it the plugin would serve another topic and reach nothing.
                if memory.without_manifest.entry(name.clone()).or_insert_with(Instant::now).elapsed() < MISSING_MAX {
                    again = Again::Soon;
                    continue;
                }
            }
            memory.without_manifest.remove(&name);
            memory.stamps.insert(name.clone(), found.stamps);
            let candidate = match found.content {
                None => memory.colliding.get(&name).cloned(),
                Some(content) => {
                    memory.colliding.remove(&name);
                    self.consider(memory, &name, &found.file, content, before.find(&name)).await
                }
            };
            candidates.extend(candidate.map(|candidate| (name, candidate)));
        }
        for file in newly_skipped {
            let Some(name) = file.strip_suffix(".wasm").filter(|name| before.find(name).is_none()) else { continue };
            let candidate = self.last_good(name, &self.dir.join(&file)).await;
            candidates.extend(candidate.map(|candidate| (name.to_string(), candidate)));
        }
        let waited: Vec<String> = memory.colliding.keys().cloned().collect();
        for (name, candidate) in self.swap(memory, &gone, candidates) {
            match candidate.content {
                Some(content) => self.keep_good(&name, content).await,
                None if waited.contains(&name) => self.keep_good_again(&name, &candidate.plugin).await,
                None => {}
            }
        }
        again
    }

    /// The plugins that serve and whose files are gone for good; those whose files are newly gone wait for the next look.
    fn gone(&self, memory: &mut Memory, before: &PluginSet, looked: &Look, mut again: Again) -> (Vec<String>, Again) {
        // What is there and cannot be read now stays; what is gone goes, after a while.
        let is_there =
            |name: &str| looked.found.contains_key(name) || looked.skipped.contains_key(&format!("{name}.wasm"));
        let mut gone = vec![];
        for name in before.plugins.iter().map(|plugin| &*plugin.version.name).filter(|name| !is_there(name)) {
            if memory.missing.entry(name.into()).or_insert_with(Instant::now).elapsed() < MISSING_MAX {
                again = Again::Soon;
                continue;
            }
            info!(plugin = %name, "plugin {name} is gone; its topics are no longer served");
            count(name, "removed");
            self.cache.forget_good(&self.dir, name);
            gone.push(name.to_string());
        }
        if !memory.has_looked && !looked.unstable {
            // What was removed while no relay ran is not to come back either. A file that changes as it is read is there.
            self.cache.forget_all_good_but(&self.dir, is_there);
            memory.has_looked = true;
        }
        memory.missing.retain(|name, _| before.find(name).is_some() && !is_there(name) && !gone.contains(name));
        (gone, again)
    }

    /// What is to become of new content, if anything. `serving` is the plugin of that name that serves.
    async fn consider(
        &self,
        memory: &mut Memory,
        name: &str,
        file: &Path,
        content: Content,
        serving: Option<&Arc<Plugin>>,
    ) -> Option<Candidate> {
        let digest = content.digest.clone();
        let said = match memory.tried.insert(name.into(), digest.clone()) {
            Some(tried) if tried == digest => Said::Before,
            _ => Said::Now,
        };
        if let Some(plugin) = serving.filter(|plugin| *plugin.version.digest == *digest) {
            // Back to what serves: an earlier complaint is void, and a trial is over.
            self.problems.clear(name);
            let serve = || self.serve(plugin.version.clone(), file);
            return plugin.canary.is_some().then(|| Candidate {
                plugin: serve(),
                content: None,
                past: Past::HasServed,
            });
        }
        if serving.and_then(|plugin| plugin.canary.as_ref()).is_some_and(|canary| *canary.version.digest == *digest) {
            return None;
        }
        let validated = match self.refused_before(name, &digest) {
            Some(why) => Err(why),
            None => self.validator.validate(name, file, &content).await,
        };
        if let Ok(version) = &validated {
            self.problems.clear(name);
            if let Some(old) = serving {
                version.previous.set(old.version.digest.clone()).ok();
            }
        }
        match (validated, serving) {
            (Ok(version), Some(old)) if version.manifest.rollout.canary > 0.0 => {
                let trial = Trial::new(version.manifest.rollout);
                let canary = Arc::new(Canary { version, trial, content });
                let plugin = old.with_canary(self.sandbox.clone(), canary, &self.registry);
                Some(Candidate { plugin, content: None, past: Past::IsNew })
            }
            (Ok(version), _) => {
                let past = if self.cache.is_good(&self.dir, name, &content) { Past::HasServed } else { Past::IsNew };
                Some(Candidate { plugin: self.serve(version, file), content: Some(content), past })
            }
            (Err(error), _) => {
                let earlier = if serving.is_none() { self.last_good(name, file).await } else { None };
                let meanwhile = Meanwhile::of(serving.is_some() || earlier.is_some());
                self.problems.refuse(name, &digest, error, said, meanwhile);
                earlier
            }
        }
    }

    /// The version that served before the relay was started, where the file is bad now.
    async fn last_good(&self, name: &str, file: &Path) -> Option<Candidate> {
        let version = self.validator.last_good(&self.dir, name).await?;
        Some(Candidate { plugin: self.serve(version, file), content: None, past: Past::HasServed })
    }

    fn serve(&self, version: Arc<Version>, file: &Path) -> Arc<Plugin> {
        Plugin::new(self.sandbox.clone(), version, file.into(), self.default_concurrency)
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

    /// Keeps what waited for its topics, whose component was not held in memory meanwhile.
    async fn keep_good_again(&self, name: &str, plugin: &Plugin) {
        let file = plugin.file.clone();
        let read = tokio::task::spawn_blocking(move || read_one(&file)).await;
        // What has changed since is the next scan's.
        if let Ok(Ok((_, content))) = read
            && content.digest == *plugin.version.digest
        {
            self.keep_good(name, content).await;
        }
    }

    /// Swaps the candidates in, but for new ones whose topics collide: their predecessors stay. Answers what was swapped in.
    fn swap(
        &self,
        memory: &mut Memory,
        gone: &[String],
        mut candidates: BTreeMap<String, Candidate>,
    ) -> BTreeMap<String, Candidate> {
        let _one = self.registry.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // As it is now: a trial may have ended while files were read, and what it came to stays.
        let now = self.registry.set.load_full();
        let mut wanted: BTreeMap<&str, Arc<Plugin>> =
            now.plugins.iter().map(|plugin| (&*plugin.version.name, plugin.clone())).collect();
        wanted.retain(|name, _| !gone.iter().any(|gone| gone == name));
        wanted.extend(candidates.iter().map(|(name, candidate)| (name.as_str(), candidate.plugin.clone())));
        let mut plugins: Vec<Arc<Plugin>> = wanted.into_values().collect();
        while let Some((i, j, error)) = PluginSet::conflict(&plugins) {
            let candidate = |at: &usize| candidates.get(&*plugins[*at].version.name);
            let is_new = |at: &usize| candidate(at).is_some_and(|candidate| candidate.past == Past::IsNew);
            let mut offenders: Vec<usize> = [j, i].into_iter().filter(is_new).collect();
            if offenders.is_empty() {
                // Both have served, at different times: the one that serves now stays. Dropping one ends the loop.
                offenders.push([j, i].into_iter().find(|at| candidate(at).is_some()).unwrap_or(j));
            }
            for at in offenders {
                let name = plugins[at].version.name.to_string();
                let old = now.find(&name).filter(|old| !Arc::ptr_eq(old, &plugins[at])).cloned();
                if let Some(candidate) = candidates.remove(&name) {
                    self.refuse_colliding(memory, &name, candidate, error.clone(), Meanwhile::of(old.is_some()));
                }
                match old {
                    Some(old) => plugins[at] = old,
                    None => drop(plugins.remove(at)),
                }
            }
        }
        for name in candidates.keys() {
            if memory.colliding.remove(name).is_some() {
                self.problems.clear(name);
            }
        }
        tell(&now.plugins, &plugins);
        self.registry.set.store(Arc::new(PluginSet { plugins }));
        candidates
    }

    fn refuse_colliding(
        &self,
        memory: &mut Memory,
        name: &str,
        candidate: Candidate,
        error: String,
        meanwhile: Meanwhile,
    ) {
        let said = if memory.colliding.contains_key(name) { Said::Before } else { Said::Now };
        let Plugin { version, canary, .. } = &*candidate.plugin;
        let digest = canary.as_ref().map_or(&version.digest, |canary| &canary.version.digest).clone();
        self.problems.refuse(name, &digest, error, said, meanwhile);
        memory.colliding.insert(name.into(), Candidate { content: None, ..candidate });
    }

    /// Drops what is remembered of files that are there no more.
    fn forget(&self, memory: &mut Memory, looked: &Look) {
        memory.stamps.retain(|name, _| looked.found.contains_key(name));
        memory.tried.retain(|name, _| looked.found.contains_key(name));
        memory.colliding.retain(|name, _| looked.found.contains_key(name));
        memory.without_manifest.retain(|name, _| looked.found.contains_key(name));
        self.problems.retain(|file| {
            looked.skipped.contains_key(file)
                || file.strip_suffix(".wasm").is_some_and(|name| looked.found.contains_key(name))
        });
    }
}

/// Says what begins to serve, and what has ended.
fn tell(before: &[Arc<Plugin>], after: &[Arc<Plugin>]) {
    for plugin in after.iter().filter(|plugin| !before.iter().any(|old| Arc::ptr_eq(old, plugin))) {
        let version = &plugin.version;
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
    let serves = |old: &Version| {
        after.iter().any(|plugin| plugin.version.digest == old.digest && plugin.version.name == old.name)
    };
    for old in before.iter().filter(|old| !serves(&old.version)) {
        gauge(&old.version, 0.0);
    }
}

fn count(plugin: &str, result: &'static str) {
    metrics::counter!("outboxd_plugin_reloads_total", "plugin" => plugin.to_string(), "result" => result).increment(1);
}

fn gauge(version: &Version, value: f64) {
    let labels = [("plugin", version.name.to_string()), ("digest", version.digest.to_string())];
    metrics::gauge!("outboxd_plugin_info", &labels).set(value);
}
