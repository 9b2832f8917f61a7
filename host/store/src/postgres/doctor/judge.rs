//! What is made of what was seen: pure, so that what no test can provoke on a server is tried here.

use std::time::Duration;

use super::{Server, Table, VERSION_MIN, Vacuums};
use crate::SnapshotHolder;
use crate::admin::spoken;
use crate::doctor::{Finding, GRANTS};

pub(super) fn server(server: &Server, took: Duration) -> Finding {
    const CHECK: &str = "database";
    let found = format!("PostgreSQL {}, answered in {} ms", server.version, took.as_millis());
    if server.version_number < VERSION_MIN {
        return Finding::fail(CHECK, found, "upgrade it: 15 is the oldest that outboxd is tested with");
    }
    if server.standby {
        let advice =
            "give the primary's address, or several hosts with target_session_attrs=read-write in front of them";
        return Finding::fail(CHECK, format!("{found}: a standby, read-only"), advice);
    }
    Finding::ok(CHECK, found)
}

pub(super) fn durability(server: &Server) -> Finding {
    const CHECK: &str = "durability";
    if !server.fsync {
        let advice = "set fsync = on: a crash of the machine may lose or corrupt committed messages";
        return Finding::fail(CHECK, "fsync is off", advice);
    }
    if ["off", "local"].contains(&server.synchronous_commit.as_str()) {
        let advice =
            "set it to on for producers and relay: a crash loses messages whose transaction had answered \"committed\"";
        return Finding::warn(CHECK, format!("synchronous_commit is {}", server.synchronous_commit), advice);
    }
    if !server.asynchronous_roles.is_empty() {
        let found = format!("synchronous_commit is weakened for {}", server.asynchronous_roles.join(", "));
        let advice = "\"alter role … reset synchronous_commit\" where such a role publishes: a crash loses what it committed last";
        return Finding::warn(CHECK, found, advice);
    }
    if !server.full_page_writes {
        let advice = "set full_page_writes = on, unless the file system never tears a page (ZFS)";
        return Finding::warn(CHECK, "full_page_writes is off", advice);
    }
    Finding::ok(CHECK, format!("fsync on, synchronous_commit {}", server.synchronous_commit))
}

pub(super) fn notify_queue(server: &Server) -> Finding {
    const CHECK: &str = "notify queue";
    let found = format!("{:.0} % full", server.notify_queue * 100.0);
    let advice = "end the session that LISTENs inside an old transaction (see \"snapshot\"): a full queue makes every publish fail at commit";
    match server.notify_queue {
        usage if usage > 0.9 => Finding::fail(CHECK, found, advice),
        usage if usage > 0.25 => Finding::warn(CHECK, found, advice),
        _ => Finding::ok(CHECK, found),
    }
}

pub(super) fn privileges(table: &Table) -> Finding {
    const CHECK: &str = "privileges";
    match &table.missing_privileges[..] {
        [] => Finding::ok(CHECK, "this role may do all that a relay does"),
        missing => Finding::fail(CHECK, format!("this role lacks {}", missing.join(", ")), GRANTS),
    }
}

pub(super) fn unused(table: &Table) -> Finding {
    const CHECK: &str = "unused indexes";
    match &table.unused_indexes[..] {
        [] => Finding::ok(CHECK, "none"),
        unused => Finding::warn(
            CHECK,
            format!("{}, never read since the statistics began", unused.join(", ")),
            "drop them if nobody else needs them: each makes every publish and settle dearer",
        ),
    }
}

pub(super) fn vacuum(server: &Server, table: &Table, relays: Vacuums) -> Finding {
    const CHECK: &str = "vacuum";
    const DEAD_MAX: i64 = 50_000;
    let last = table.vacuumed_ago_s.map_or("never".into(), |ago| format!("{} ago", spoken(ago as f64)));
    let (alone, lacking) = match relays {
        Vacuums::Yes => ("", ""),
        Vacuums::Unknown => ("; whether relays vacuum it could not be asked", ""),
        Vacuums::NotAllowed => (
            "; this role may not vacuum the table, so its relays leave that to autovacuum",
            ", and lower autovacuum_naptime or let relays do it (from PostgreSQL 17 on: grant maintain on it and on its keys' table)",
        ),
        Vacuums::NoWay => (
            "; nothing but a pooler leads to the server, so relays leave that to autovacuum",
            ", and lower autovacuum_naptime or let relays do it (listen_database leads straight to the server)",
        ),
    };
    let found = format!("{} live and {} dead rows, last vacuum {last}{alone}", table.live, table.dead);
    if !server.autovacuum {
        let advice = "set autovacuum and track_counts to on: a queue's dead rows slow every claim down";
        return Finding::fail(CHECK, format!("autovacuum is off; {found}"), advice);
    }
    if !table.autovacuum {
        let advice = "\"alter table … reset (autovacuum_enabled)\": a queue's dead rows slow every claim down";
        return Finding::fail(CHECK, format!("autovacuum is off for the table; {found}"), advice);
    }
    if table.dead > DEAD_MAX.max(2 * table.live) {
        let advice = format!("see \"snapshot\" for who keeps vacuum from its work; else vacuum the table{lacking}");
        return Finding::warn(CHECK, found, advice);
    }
    Finding::ok(CHECK, found)
}

pub(super) fn snapshot(holder: Option<&SnapshotHolder>, sees_all: bool, longest: Duration) -> Finding {
    const CHECK: &str = "snapshot";
    let Some(holder) = holder else { return Finding::ok(CHECK, "nobody holds one") };
    let found = format!("the oldest is held {}", holder.told());
    let advice = "end it (select pg_terminate_backend(PID), rollback prepared, or drop the slot): until then no dead row goes away";
    match holder.age_s {
        Some(age) if age > longest.as_secs_f64() => Finding::warn(CHECK, found, advice),
        Some(_) => Finding::ok(CHECK, found),
        // A slot has no age, and is meant to move on.
        None if holder.holder.starts_with("the replication slot") => Finding::ok(CHECK, found),
        None if !sees_all => {
            Finding::warn(CHECK, found, "grant pg_read_all_stats to this role, to see whose and how old it is")
        }
        None => Finding::ok(CHECK, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn sound() -> Server {
        Server {
            version: "15.4".into(),
            version_number: 150_004,
            standby: false,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".into(),
            asynchronous_roles: vec![],
            autovacuum: true,
            notify_queue: 0.0,
            sees_all: true,
            listeners: 0,
            now_ms: 0,
        }
    }

    #[test]
    fn an_old_server_and_a_standby_fail() {
        let at_once = Duration::ZERO;

        assert_eq!(server(&sound(), at_once).verdict, Verdict::Ok);
        let old = Server { version_number: 140_010, ..sound() };
        assert_eq!(server(&old, at_once).verdict, Verdict::Fail);
        let standby = Server { standby: true, ..sound() };
        assert!(server(&standby, at_once).found.contains("standby"));
    }

    #[test]
    fn torn_pages_are_warned_of() {
        let torn = Server { full_page_writes: false, ..sound() };

        assert_eq!(durability(&torn).verdict, Verdict::Warn);
    }

    #[test]
    fn a_notify_queue_that_fills_up_is_said_before_it_is_full() {
        let verdict = |usage| notify_queue(&Server { notify_queue: usage, ..sound() }).verdict;

        assert_eq!([verdict(0.1), verdict(0.5), verdict(0.95)], [Verdict::Ok, Verdict::Warn, Verdict::Fail]);
    }

    #[test]
    fn where_relays_cannot_vacuum_dead_rows_bring_advice_for_that() {
        let table = Table {
            live: 10,
            dead: 60_000,
            vacuumed_ago_s: None,
            autovacuum: true,
            missing_indexes: vec![],
            unused_indexes: vec![],
            missing_privileges: vec![],
        };
        let advice = |relays| vacuum(&sound(), &table, relays).advice.expect("advice");

        assert!(advice(Vacuums::Yes).ends_with("else vacuum the table"));
        assert!(advice(Vacuums::NotAllowed).contains("grant maintain"));
        assert!(advice(Vacuums::NoWay).contains("listen_database"));
    }

    #[test]
    fn a_snapshot_whose_age_may_not_be_known_asks_for_the_privilege() {
        let holder = SnapshotHolder { holder: "pid 7".into(), age_s: None, query: None };

        let finding = snapshot(Some(&holder), false, Duration::from_secs(60));

        assert_eq!(finding.verdict, Verdict::Warn);
        assert!(finding.advice.is_some_and(|advice| advice.contains("pg_read_all_stats")));
    }
}
