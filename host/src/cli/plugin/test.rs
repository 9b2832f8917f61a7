use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::cli::args::Global;
use crate::cli::{output, settings};

/// Plays the golden messages beside a component, or beside each component of a folder.
pub async fn test(global: &Global, path: &Path) -> anyhow::Result<()> {
    let config = settings::load_plain(global)?;
    let (mut played, mut failed) = (0, 0);
    for file in components(path)? {
        let goldens = super::goldens(&file)?;
        if goldens.is_empty() {
            output::line(format!("{}: no golden messages in {:?}", file.display(), file.with_extension("tests")));
            continue;
        }
        let one = super::load(&config, &file, vec![]).await?;
        for (name, golden) in goldens {
            played += 1;
            match one.rehearse(&golden).await {
                Ok(()) => output::line(format!("ok      {name}")),
                Err(why) => {
                    failed += 1;
                    output::line(format!("FAILED  {name}: {why}"));
                }
            }
        }
    }
    match (played, failed) {
        (0, _) => bail!("there was nothing to play: golden messages lie in NAME.tests/*.json beside NAME.wasm"),
        (_, 0) => Ok(()),
        _ => bail!("{failed} of {played} golden messages failed"),
    }
}

fn components(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("cannot read {path:?}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "wasm"));
    files.sort();
    if files.is_empty() {
        bail!("{path:?} holds no .wasm; build the plugin first");
    }
    Ok(files)
}
