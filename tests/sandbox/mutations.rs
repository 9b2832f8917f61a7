//! A folder that somebody, or something, keeps ruining. `OUTBOXD_MUTATIONS=10000` ruins it so often; a failure prints its seed,
//! and `OUTBOXD_MUTATIONS_SEED` plays it again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outboxd_core::Outcome;
use tokio::time::Instant;

use crate::folder::{OK, cancels, deliver, large, start};
use crate::guest::build;

const MANIFESTS: [&str; 6] = [
    "topics = [\"junk.a\"]",
    "topics = [\"junk.*\"]",
    "topics = [",
    "[rollout]\ncanary = 0.5",
    "[limits]\nmemory = \"1GiB\"",
    "[grants]\nhosts = [\"*\"]",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Does one thing to one of a few files, whatever there is by now.
fn ruin(dir: &Path, good: &[Vec<u8>], random: &mut fastrand::Rng) {
    let path = |random: &mut fastrand::Rng| -> PathBuf {
        let kind = if random.u8(..4) == 0 { "toml" } else { "wasm" };
        dir.join(format!("junk{}.{kind}", random.u8(..5)))
    };
    let (file, other) = (path(random), path(random));
    let remove = |file: &Path| fs::remove_file(file).or_else(|_| fs::remove_dir_all(file)).ok();
    let component = random.choice(good).expect("a component").clone();
    // What cannot be done, as a link over a folder, is left undone.
    match random.u8(..11) {
        0 => drop(remove(&file)),
        1 => drop(fs::rename(&file, &other)),
        2 => drop(fs::write(&file, component)),
        3 => drop(fs::write(&file, &component[..random.usize(..component.len())])),
        4 => {
            let mut component = component;
            for _ in 0..random.usize(1..20) {
                let at = random.usize(..component.len());
                component[at] = random.u8(..);
            }
            drop(fs::write(&file, component));
        }
        5 => drop(fs::write(file.with_extension("toml"), random.choice(MANIFESTS).expect("a manifest"))),
        6 => drop(fs::OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(random.u64(..200_000)))),
        7 => drop(remove(&file).map(|()| symlink(&other, &file))),
        8 => drop(remove(&file).map(|()| fs::create_dir(&file))),
        9 => drop(fs::copy(&other, &file)),
        _ => drop(fs::write(file.with_extension("wasm.minisig"), "no signature")),
    }
}

#[tokio::test]
async fn whatever_happens_to_its_neighbours_a_good_plugin_loads_and_serves() {
    let mutations = number("OUTBOXD_MUTATIONS").unwrap_or(300);
    let seed = number("OUTBOXD_MUTATIONS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("OUTBOXD_MUTATIONS_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let good = [build(OK), build(&cancels("junk")), large("junk")];
    let host = start(dir.path());
    let mut slowest = Duration::ZERO;

    for n in 0..mutations {
        ruin(dir.path(), &good, &mut random);
        if n % 10 == 0 {
            fs::write(dir.path().join("orders.wasm"), build(&cancels(&format!("version {}", n / 10)))).unwrap();
        }
        let started = Instant::now();
        host.scan_once().await;
        slowest = slowest.max(started.elapsed());

        let answer = Outcome::Cancel { error: format!("version {}", n / 10) };
        assert_eq!(deliver(&host, "orders").await, Some(answer), "after mutation {n}");
    }
    println!("{mutations} mutations, the slowest look took {slowest:?}");
}
