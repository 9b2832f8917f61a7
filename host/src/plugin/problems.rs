use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::warn;

/// What is wrong in the folder just now, by file name: said once in the log, and shown for as long as it is so.
#[derive(Default)]
pub(crate) struct Problems(Mutex<BTreeMap<String, Problem>>);

/// Why a file does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) digest: Option<String>,
    pub(crate) error: String,
}

/// Whether a problem is to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Now,
    Before,
}

/// Whether a plugin serves in spite of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    AnEarlierVersionServes,
    NothingServes,
}

impl Meanwhile {
    pub(crate) fn of(serves: bool) -> Meanwhile {
        if serves { Meanwhile::AnEarlierVersionServes } else { Meanwhile::NothingServes }
    }
}

/// So many files that are no plugins are named in the log at a time.
const SKIPPED_LINES_MAX: usize = 20;

impl Problems {
    /// Notes that a file is refused.
    pub(crate) fn refuse(&self, name: &str, digest: &str, error: String, said: Said, meanwhile: Meanwhile) {
        let file = format!("{name}.wasm");
        if said == Said::Now {
            let meanwhile = match meanwhile {
                Meanwhile::AnEarlierVersionServes => "; the version before it goes on serving",
                Meanwhile::NothingServes => "",
            };
            warn!(plugin = %name, "plugin {file} is not loaded: {error}{meanwhile}");
            metrics::counter!("outboxd_plugin_reloads_total", "plugin" => name.to_string(), "result" => "rejected")
                .increment(1);
        }
        self.lock().insert(file, Problem { digest: Some(digest.into()), error });
    }

    /// Notes the files that are no plugins, and why. Answers those of them that were not known as such.
    pub(crate) fn skip(&self, skipped: &BTreeMap<String, String>) -> Vec<String> {
        let mut problems = self.lock();
        let mut new = vec![];
        for (file, why) in skipped {
            let problem = Problem { digest: None, error: why.clone() };
            if problems.get(file) == Some(&problem) {
                continue;
            }
            if new.len() < SKIPPED_LINES_MAX {
                warn!("{file:?} in the plugin folder is skipped: {why}");
            }
            problems.insert(file.clone(), problem);
            new.push(file.clone());
        }
        if new.len() > SKIPPED_LINES_MAX {
            warn!("{} more files in the plugin folder are skipped", new.len() - SKIPPED_LINES_MAX);
        }
        new
    }

    pub(crate) fn clear(&self, name: &str) {
        self.lock().remove(&format!("{name}.wasm"));
    }

    /// Forgets the files that are not `there` any more.
    pub(crate) fn retain(&self, there: impl Fn(&str) -> bool) {
        self.lock().retain(|file, _| there(file));
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Problem> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Problem>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
