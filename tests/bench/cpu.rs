//! What a message costs in CPU time: that hardly depends on what else the machine does, as rates do.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::stage::Outbox;

/// What this process has computed so far.
pub fn own() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What the server has computed for the connections to this outbox that are open now. Of SQLite, nothing: it is this process.
pub async fn of_server(outbox: &Outbox) -> Duration {
    if outbox.is_sqlite() {
        return Duration::ZERO;
    }
    let query = "select pid from pg_stat_activity
        where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()";
    let pids: Vec<i32> = sqlx::query_scalar(query).fetch_all(&mut outbox.connection().await).await.expect("asked");
    pids.into_iter().map(of_process).sum()
}

/// The first number is nanoseconds on a core. Zero for one that has ended.
fn of_process(pid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
