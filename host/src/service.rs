//! What systemd wants to hear of a service of `Type=notify`: ready, reloading, alive, stopping. Without
//! `NOTIFY_SOCKET` in the environment nothing is said.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

pub fn ready() {
    tell("READY=1");
}

pub fn stopping() {
    tell("STOPPING=1");
}

/// Said before a reload; [`ready`] after it ends it. systemd wants to know when, by the clock that never jumps.
pub fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Says twice in each of systemd's `WatchdogSec` that this process still runs tasks, until `end`.
pub async fn alive_until(end: CancellationToken) {
    let Some(within) = watchdog(std::env::var("WATCHDOG_USEC").ok(), std::env::var("WATCHDOG_PID").ok()) else {
        return;
    };
    while end.run_until_cancelled(tokio::time::sleep(within / 2)).await.is_some() {
        tell("WATCHDOG=1");
    }
}

/// How long systemd waits for a sign of life; nothing where it does not, or waits for another process.
fn watchdog(micros: Option<String>, pid: Option<String>) -> Option<Duration> {
    if pid.is_some_and(|pid| pid != std::process::id().to_string()) {
        return None;
    }
    let micros = micros?.parse().ok().filter(|micros| *micros > 0)?;
    Some(Duration::from_micros(micros))
}

fn tell(state: &str) {
    let Some(path) = std::env::var("NOTIFY_SOCKET").ok().filter(|path| !path.is_empty()) else { return };
    if let Err(error) = send(&path, state) {
        warn!("systemd cannot be told {state:?}: {error}");
    }
}

fn send(path: &str, state: &str) -> io::Result<()> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that stands still is no reason to stand still.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_that_waits_for_another_process_is_not_ours() {
        let one_second = || Some("1000000".to_owned());

        assert_eq!(watchdog(one_second(), None), Some(Duration::from_secs(1)));
        assert_eq!(watchdog(one_second(), Some(std::process::id().to_string())), Some(Duration::from_secs(1)));
        assert_eq!(watchdog(one_second(), Some("1".into())), None);
        assert_eq!(watchdog(None, None), None);
    }
}
