//! `outboxd doctor`: what it warns of, provoked where a test can. What no test can provoke on a server (its age, a standby, a
//! full notify queue) is tried beside the judgement, in `host/store/src/postgres/doctor/judge.rs`.

use std::os::unix::fs::PermissionsExt as _;

use outboxd_test_support::pgbouncer::TestPgBouncer;
use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::skip;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

use crate::stage::{Stage, on_every_database};

on_every_database! {
    a_sound_outbox_is_told_to_be_so,
    what_is_missing_is_a_failure_that_says_how_to_make_it,
    a_plugins_folder_that_everybody_may_write_is_a_failure,
    a_secret_without_a_value_and_an_authority_that_cannot_be_read_are_failures,
}

/// What doctor finds, by check.
fn findings(stage: &Stage, args: &[&str]) -> Vec<Value> {
    let output = stage.outboxd(&[&["doctor", "--json"], args].concat());
    let findings = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stderr));
    let Value::Array(findings) = findings else { panic!("no array: {findings}") };
    let fails = findings.iter().any(|finding| finding["verdict"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(fails)), "{findings:#?}");
    findings
}

fn finding(stage: &Stage, check: &str) -> Value {
    finding_with(stage, check, &[])
}

fn finding_with(stage: &Stage, check: &str, args: &[&str]) -> Value {
    let findings = findings(stage, args);
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("nothing was said of {check}: {findings:#?}")).clone()
}

#[track_caller]
fn assert_says(finding: &Value, verdict: &str, found: &str, advice: &str) {
    assert_eq!(finding["verdict"], verdict, "{finding:#}");
    let text = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    assert!(text("found").contains(found), "{finding:#}");
    assert!(text("advice").contains(advice), "{finding:#}");
}

fn execute(url: &str, sql: &str) {
    let (url, sql) = (url.to_owned(), sql.to_owned());
    block_on(async move {
        let mut connection = PgConnection::connect(&url).await.expect("connects");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.expect("executed");
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    runtime().block_on(work)
}

/// A session that holds a snapshot until it is told to roll back, and its pid.
async fn long_report(database: &str) -> (PgConnection, i32) {
    let mut connection = PgConnection::connect(database).await.expect("connects");
    sqlx::raw_sql("set application_name = 'report'; begin isolation level repeatable read; select 'the long report'")
        .execute(&mut connection)
        .await
        .expect("a snapshot");
    let (pid,): (i32,) = sqlx::query_as("select pg_backend_pid() /* the long report */")
        .fetch_one(&mut connection)
        .await
        .expect("a pid");
    (connection, pid)
}

/// Where `role` finds the outbox of `stage`.
fn as_role(stage: &Stage, role: &str) -> String {
    stage.database.replace("user=postgres", &format!("user={role}"))
}

fn a_sound_outbox_is_told_to_be_so(stage: Stage) {
    // The shared test server does without its disk, on purpose.
    let on_purpose = |finding: &Value| finding["check"] == "durability" && finding["found"] == "fsync is off";

    let findings = findings(&stage, &[]);

    let wrong: Vec<_> = findings.iter().filter(|finding| finding["verdict"] != "ok" && !on_purpose(finding)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(findings.len() >= 10, "{findings:#?}");
    assert!(findings.iter().all(|finding| finding["check"].is_string() && finding["found"].is_string()));
    let text = stage.outboxd(&["doctor"]).stdout;
    assert!(text.starts_with("ok    configuration   complete\n") && !text.contains('\x1b'), "{text}");
}

fn what_is_missing_is_a_failure_that_says_how_to_make_it(stage: Stage) {
    if stage.database.starts_with("sqlite:") {
        std::fs::remove_file(stage.path().join("outbox.db")).expect("there was one");
        assert_says(&finding(&stage, "database"), "fail", "cannot be opened", "outboxd migrate");
        assert!(!stage.path().join("outbox.db").exists(), "looking makes nothing");
    } else {
        execute(&stage.database, "drop table outbox cascade; drop table outbox_versions");
        assert_says(&finding(&stage, "schema"), "fail", "version 0", "outboxd migrate");
    }
}

fn a_plugins_folder_that_everybody_may_write_is_a_failure(stage: Stage) {
    let chmod = |mode| std::fs::set_permissions(stage.plugins(), std::fs::Permissions::from_mode(mode)).expect("set");

    chmod(0o777);
    assert_says(&finding(&stage, "plugins folder"), "fail", "written by everybody", "chmod o-w");
    chmod(0o775);
    assert_says(&finding(&stage, "plugins folder"), "warn", "written by its group", "chmod g-w");
    chmod(0o755);
    assert_says(&finding(&stage, "plugins folder"), "ok", "only their owner", "");
}

fn a_secret_without_a_value_and_an_authority_that_cannot_be_read_are_failures(stage: Stage) {
    stage.configure("extra_ca = [\"/nowhere/ca.pem\"]\n[secrets]\nSHOP_KEY = { env = \"OUTBOXD_TEST_ABSENT\" }");

    assert_says(&finding(&stage, "configuration"), "fail", "OUTBOXD_TEST_ABSENT", "refuses");
    assert_says(&finding(&stage, "authorities"), "fail", "/nowhere/ca.pem", "extra_ca");
}

#[test]
fn a_file_without_a_write_ahead_log_fails_and_is_left_as_it_is() {
    let stage = Stage::sqlite();
    let journal = |pragma: &'static str| {
        block_on(async {
            let mut connection = SqliteConnection::connect(&stage.database).await.expect("connects");
            let (mode,): (String,) = sqlx::query_as(pragma).fetch_one(&mut connection).await.expect("a mode");
            connection.close().await.expect("closed");
            mode
        })
    };
    assert_eq!(journal("pragma journal_mode = delete"), "delete");

    for _ in 0..2 {
        assert_says(&finding(&stage, "durability"), "fail", "the journal is \"delete\"", "local disk");
        assert_eq!(journal("pragma journal_mode"), "delete");
    }
}

#[test]
fn a_file_whose_commits_do_not_wait_for_the_disk_says_what_that_costs() {
    let stage = Stage::sqlite();
    assert_says(&finding(&stage, "durability"), "ok", "each commit is on disk", "");

    let config = std::fs::read_to_string(stage.config()).expect("the configuration");
    std::fs::write(stage.config(), format!("sqlite_synchronous = \"normal\"\n{config}")).expect("written");

    assert_says(&finding(&stage, "durability"), "ok", "delivered again", "");
}

#[test]
fn a_file_that_stays_locked_is_a_failure() {
    let stage = Stage::sqlite();
    let runtime = runtime();
    let mut connection = runtime.block_on(SqliteConnection::connect(&stage.database)).expect("connects");
    runtime.block_on(sqlx::raw_sql("begin immediate").execute(&mut connection)).expect("locked");

    assert_says(&finding(&stage, "writable"), "fail", "locked by another process", "end who holds the lock");
}

#[test]
fn a_write_ahead_log_that_nobody_takes_over_is_warned_of() {
    let stage = Stage::sqlite();
    let log = std::fs::File::create(stage.path().join("outbox.db-wal")).expect("created");
    log.set_len(65 << 20).expect("a log that is long and sparse");

    assert_says(&finding(&stage, "snapshot"), "warn", "65 MiB wait in the write-ahead log", "lsof");
}

#[test]
fn a_machine_without_authorities_is_told() {
    let stage = Stage::sqlite();
    stage.configure("tls_roots = \"native\"");
    let mut command = stage.command(&["doctor", "--json"]);

    let output = command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", stage.plugins()).output().expect("runs");

    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = findings.iter().find(|finding| finding["check"] == "authorities").expect("said");
    assert_says(found, "fail", "no https target", "ca-certificates");
}

#[test]
fn a_host_without_inotify_instances_is_told() {
    let stage = Stage::sqlite();
    let outboxd = stage.command(&["doctor", "--json"]);
    // A user namespace has limits of its own.
    let mut shell = std::process::Command::new("unshare");
    shell.args(["--user", "--map-root-user", "sh", "-c"]);
    shell.arg("echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"").arg("sh");
    shell.arg(outboxd.get_program()).args(outboxd.get_args()).current_dir(stage.path());

    let output = shell.output().expect("unshare runs");

    if output.stdout.is_empty() {
        return skip(&format!("no user namespace: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = findings.iter().find(|finding| finding["check"] == "watching").expect("said");
    assert_says(found, "warn", "cannot be watched", "max_user_instances");
}

#[test]
fn a_database_that_is_away_is_a_failure_and_the_host_is_examined_all_the_same() {
    let stage = Stage::postgres();
    let nowhere = "postgres:///shop?host=/nowhere&user=shop&password=s3cret-canary";

    let findings = findings(&stage, &["--database", nowhere]);

    assert_says(&findings[1], "fail", "unavailable", "start it");
    assert!(findings.iter().any(|finding| finding["check"] == "sandbox"), "{findings:#?}");
    assert!(!format!("{findings:?}").contains("s3cret-canary"));
}

#[test]
fn what_weakens_a_server_is_said() {
    let server = TestPostgres::start_with(&["autovacuum=off", "synchronous_commit=off"]);
    let stage = Stage::on(server.database());

    assert_says(&finding(&stage, "durability"), "warn", "synchronous_commit is off", "set it to on");
    assert_says(&finding(&stage, "vacuum"), "fail", "autovacuum is off", "autovacuum");
    execute(
        &stage.database,
        "alter role postgres set synchronous_commit = on; create role shop; alter role shop set synchronous_commit = off",
    );
    assert_says(&finding(&stage, "durability"), "warn", "weakened for shop", "reset synchronous_commit");
    let shared = Stage::postgres();
    assert_says(&finding(&shared, "durability"), "fail", "fsync is off", "set fsync = on");
}

#[test]
fn what_weakens_the_table_is_said() {
    let stage = Stage::postgres();

    execute(
        &stage.database,
        "drop index outbox_due; drop index outbox_dead; drop index outbox_held; create index everybody on outbox (key);
         alter table outbox set (autovacuum_enabled = false);
         insert into outbox (topic, payload, state) select 'a', '{}', 'delivered' from generate_series(1, 1000);
         select pg_stat_force_next_flush()",
    );

    assert_says(&finding(&stage, "indexes"), "fail", "outbox_due, outbox_dead, outbox_held", "migrate --print");
    assert_says(&finding(&stage, "unused indexes"), "warn", "everybody", "drop");
    assert_says(&finding(&stage, "vacuum"), "fail", "off for the table", "alter table");
}

#[test]
fn dead_rows_that_pile_up_are_said() {
    let stage = Stage::postgres();

    execute(&stage.database, "alter table outbox set (autovacuum_vacuum_threshold = 1000000000)");
    execute(
        &stage.database,
        "insert into outbox (topic, payload) select 'a', '{}' from generate_series(1, 60000);
         delete from outbox; select pg_stat_force_next_flush()",
    );

    assert_says(&finding(&stage, "vacuum"), "warn", "60000 dead rows", "vacuum the table");
}

#[test]
fn a_role_that_may_not_vacuum_the_table_is_told_so() {
    let stage = Stage::postgres();
    execute(&stage.database, "create role relay_guest login");

    let owner = finding(&stage, "vacuum");
    let guest = finding_with(&stage, "vacuum", &["--database", &as_role(&stage, "relay_guest")]);

    assert!(!owner["found"].as_str().is_some_and(|found| found.contains("autovacuum")), "{owner:#}");
    assert_says(&guest, "ok", "its relays leave that to autovacuum", "");
}

#[test]
fn who_holds_a_snapshot_is_named_with_pid_age_and_query() {
    let stage = Stage::postgres();
    let runtime = runtime();
    let (mut connection, pid) = runtime.block_on(long_report(&stage.database));

    let warned = finding_with(&stage, "snapshot", &["--snapshot-max", "0s"]);
    let young = finding(&stage, "snapshot");

    assert_says(&warned, "warn", &format!("by pid {pid} (report), idle in transaction"), "pg_terminate_backend");
    assert_says(&warned, "warn", "the long report", "");
    assert_says(&young, "ok", " s by pid", "");
    runtime.block_on(async { sqlx::raw_sql("rollback").execute(&mut connection).await.expect("rolled back") });
    assert_says(&finding_with(&stage, "snapshot", &["--snapshot-max", "0s"]), "ok", "nobody", "");
}

#[test]
fn a_role_that_may_not_see_other_sessions_is_told_who_holds_a_snapshot_and_what_to_ask_for() {
    let stage = Stage::postgres();
    execute(
        &stage.database,
        "create role relay_blind login; grant select, update, delete on outbox to relay_blind;
         grant select, insert, update, delete on outbox_control, outbox_keys, outbox_sleepers to relay_blind;
         grant select on outbox_versions to relay_blind; grant update on sequence outbox_asleep to relay_blind",
    );
    let runtime = runtime();
    let (_connection, pid) = runtime.block_on(long_report(&stage.database));
    let blind = as_role(&stage, "relay_blind");

    let unsure = finding_with(&stage, "snapshot", &["--database", &blind]);
    execute(&stage.database, "grant pg_read_all_stats to relay_blind");
    let sure = finding_with(&stage, "snapshot", &["--database", &blind]);

    assert_says(&unsure, "warn", &format!("for an unknown time by pid {pid} (report)"), "grant pg_read_all_stats");
    assert!(!unsure["found"].as_str().is_some_and(|found| found.contains("insufficient")), "{unsure:#}");
    assert_says(&sure, "ok", &format!(" s by pid {pid} (report), idle in transaction: "), "");
}

#[test]
fn a_prepared_transaction_that_holds_a_snapshot_is_named() {
    let stage = Stage::postgres();

    execute(
        &stage.database,
        "begin; insert into outbox (topic, payload) values ('a', '{}'); prepare transaction 'forgotten'",
    );

    let warned = finding_with(&stage, "snapshot", &["--snapshot-max", "0s"]);
    execute(&stage.database, "rollback prepared 'forgotten'");
    assert_says(&warned, "warn", "the prepared transaction 'forgotten'", "rollback prepared");
}

#[test]
fn a_pooler_that_was_not_configured_is_found() {
    let stage = Stage::postgres();
    let Some(pooler) = TestPgBouncer::shared() else { return skip("there is no pgbouncer") };
    let pooled = ["--database", &pooler.url_of(&stage.database)];

    assert_says(
        &finding_with(&stage, "pooler", &pooled),
        "fail",
        "pooler in transaction mode",
        "pooler = \"transaction\"",
    );
    let config = std::fs::read_to_string(stage.config()).expect("written");
    std::fs::write(stage.config(), format!("pooler = \"transaction\"\n{config}")).expect("written");
    assert_says(&finding_with(&stage, "pooler", &pooled), "warn", "cannot wake", "listen_database");
    assert_says(&finding_with(&stage, "wake-up", &pooled), "warn", "no notification", "listen_database");
    assert_says(&finding_with(&stage, "vacuum", &pooled), "ok", "nothing but a pooler leads to the server", "");
    std::fs::write(
        stage.config(),
        format!("pooler = \"transaction\"\nlisten_database = {:?}\n{config}", stage.database),
    )
    .expect("written");
    assert_says(&finding_with(&stage, "pooler", &pooled), "ok", "as configured", "");
    assert_says(&finding_with(&stage, "wake-up", &pooled), "ok", "a notification arrives", "");
    let vacuum = finding_with(&stage, "vacuum", &pooled);
    assert!(!vacuum["found"].as_str().is_some_and(|found| found.contains("autovacuum")), "{vacuum:#}");
}

#[test]
fn a_relay_that_listens_is_seen_and_a_role_that_lacks_a_right_is_told_which() {
    let stage = Stage::postgres();
    let relay = stage.relay();
    relay.wait_for_log("delivering from");

    let seen = outboxd_test_support::wait_for(crate::stage::PATIENCE, || {
        finding(&stage, "wake-up")["found"].as_str().is_some_and(|found| found.contains("1 relay listens"))
    });

    assert!(seen, "{}", finding(&stage, "wake-up"));
    execute(
        &stage.database,
        "create role relay_lacking login; grant select, update on outbox, outbox_control to relay_lacking",
    );
    let lacking = as_role(&stage, "relay_lacking");
    let lacking = |check| finding_with(&stage, check, &["--database", &lacking]);
    assert_says(&lacking("schema"), "fail", "permission denied for table outbox_versions", "docs/operations.md");
    let lacking = lacking("privileges");
    assert_says(&lacking, "fail", "\"outbox_versions\" (select)", "docs/operations.md");
    assert_says(&lacking, "fail", "\"outbox_sleepers\" (insert)", "grant");
    assert_says(&lacking, "fail", "\"outbox\" (delete)", "grant");
}

#[test]
fn a_role_that_may_not_enter_the_tables_schema_is_told_so_and_the_rest_is_examined() {
    let stage = Stage::postgres();
    execute(&stage.database, "create role relay_outside login; revoke usage on schema public from public");
    let outside = as_role(&stage, "relay_outside");
    let outside = |check| finding_with(&stage, check, &["--database", &outside, "--table", "public.outbox"]);

    assert_says(&outside("schema"), "fail", "permission denied for schema public", "docs/operations.md");
    assert_says(&outside("privileges"), "fail", "permission denied for schema public", "docs/operations.md");
    assert_says(&outside("snapshot"), "ok", "", "");
}
