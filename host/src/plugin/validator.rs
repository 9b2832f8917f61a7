use std::path::Path;
use std::sync::Arc;

use outboxd_core::{RetryPolicy, one_line, planted};
use tracing::warn;

use super::cache::Cache;
use super::component::check_kind;
use super::folder::Content;
use super::golden;
use super::grants::Ceiling;
use super::manifest::Manifest;
use super::sandbox::Sandbox;
use super::trust::Trust;
use super::version::Version;

/// What is said of one manifest has at most so many characters.
const ERRORS_CHARS_MAX: usize = 2000;

/// Stands between bytes and a version that serves: what does not come through here serves nothing.
pub(crate) struct Validator {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) ceiling: Ceiling,
    pub(crate) default_retry: RetryPolicy,
}

impl Validator {
    /// The version that this content is, ready to be called; the text says what is wrong with it. `file` is the component:
    /// its golden messages lie beside it, and are played at every start, for only code is kept, never a verdict.
    pub(crate) async fn validate(&self, name: &str, file: &Path, content: &Content) -> Result<Arc<Version>, String> {
        let beside = file.to_path_buf();
        let goldens =
            tokio::task::spawn_blocking(move || golden::read(&beside)).await.map_err(|error| error.to_string())??;
        let version = self.prepare(name, content).await?;
        for (file, golden) in goldens {
            let played = version.rehearse(&self.sandbox, golden).await;
            played.map_err(|why| format!("golden message {file}: {why}"))?;
        }
        for secret in version.secret_names.iter().filter(|secret| self.sandbox.secrets.get(secret).is_none()) {
            warn!(plugin = %name, "plugin {name} is granted the secret {secret:?}, but outboxd.toml has none of that name in [secrets]");
        }
        Ok(version)
    }

    /// The version of `folder` that served before the relay was started, where the file is bad now. It is spared the golden
    /// messages: those that lie there may be the bad file's own, and it has passed those that it came with.
    pub(crate) async fn last_good(&self, folder: &Path, name: &str) -> Option<Arc<Version>> {
        let (cache, folder, owned) = (self.cache.clone(), folder.to_path_buf(), name.to_string());
        let content = tokio::task::spawn_blocking(move || cache.last_good(&folder, &owned)).await.ok()??;
        match self.prepare(name, &content).await {
            Ok(version) => Some(version),
            Err(error) => {
                warn!(plugin = %name, "the last good version of plugin {name} does not load either: {error}");
                None
            }
        }
    }

    async fn prepare(&self, name: &str, content: &Content) -> Result<Arc<Version>, String> {
        let text = content.manifest.as_deref().unwrap_or_default();
        let manifest = Manifest::parse(&format!("{name}.toml"), text, name, &self.ceiling, &self.default_retry)
            .map_err(|errors| {
                let all: Vec<_> = errors.iter().map(ToString::to_string).collect();
                one_line(&all.join("; "), ERRORS_CHARS_MAX)
            })?;
        let (trust, owned, unchecked) = (self.trust.clone(), name.to_string(), content.clone());
        let admitted = tokio::task::spawn_blocking(move || trust.admit(&owned, &unchecked));
        admitted.await.map_err(|error| error.to_string())??;
        prepare(&self.sandbox, self.cache.clone(), name, content, manifest).await
    }
}

/// Checks, compiles, links and tries out one component.
pub(crate) async fn prepare(
    sandbox: &Arc<Sandbox>,
    cache: Arc<Cache>,
    name: &str,
    content: &Content,
    manifest: Manifest,
) -> Result<Arc<Version>, String> {
    let (engine, uncompiled) = (sandbox.engine.clone(), content.clone());
    let compiled = tokio::task::spawn_blocking(move || {
        check_kind(&uncompiled.component)?;
        cache.component(&engine, planted!(30, the_first(&uncompiled), &uncompiled))
    });
    let component = compiled.await.map_err(|error| format!("the compiler failed, please report it: {error}"))??;
    let version = Arc::new(Version::link(sandbox, &component, name, &content.digest, manifest)?);
    version.try_out(sandbox).await?;
    Ok(version)
}

/// For the planted bug of a reload that mixes versions.
#[cfg(feature = "planted-bugs")]
fn the_first(content: &Content) -> &'static Content {
    static FIRST: std::sync::OnceLock<Content> = std::sync::OnceLock::new();
    FIRST.get_or_init(|| content.clone())
}
