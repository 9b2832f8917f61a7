//! docs/operations.md and docs/deploy say nothing that was not run.

use std::process::Command;
use std::time::Duration;

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::receiver::{Answer, Receiver};
use outboxd_test_support::{guests, skip, wait_for};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::page::block;
use crate::stage::{PATIENCE, Stage};

const OPERATIONS: &str = include_str!("../../docs/operations.md");
pub const UNIT: &str = include_str!("../../docs/deploy/outboxd.service");

/// The text of each fenced block in `language`.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    OPERATIONS.split(&fence).skip(1).map(|rest| rest.split("```").next().expect("the block ends")).collect()
}

/// Runs the block of shell commands that holds `text`, as it stands; answers what it printed.
pub fn run(stage: &Stage, text: &str, variables: &[(&str, &str)]) -> String {
    let found = blocks("sh").into_iter().find(|block| block.contains(text)).expect("the block is in the docs");
    let outboxd = stage.command(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-euc", &format!("outboxd() {{ \"$BINARY\" \"$@\" --config outboxd.toml; }}\n{found}")]);
    shell.env("BINARY", outboxd.get_program()).current_dir(stage.path()).envs(variables.iter().copied());
    shell.envs(outboxd.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let programs = TestPostgres::programs().expect("PostgreSQL is installed");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = shell.env("PATH", format!("{}:{path}", programs.display())).output().expect("sh runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{found}\n{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn execute(database: &str, sql: String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = PgConnection::connect(database).await.expect("connects");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.expect("executed");
    });
}

#[test]
fn doctor_as_the_docs_show_it() {
    assert!(run(&Stage::sqlite(), "outboxd doctor", &[]).contains("ok    schema"));
}

#[test]
fn a_restored_backup_is_held_by_a_pause_and_then_delivers_again_what_was_live() {
    let receiver = Receiver::start();
    let stage = Stage::postgres();
    stage.install_webhook(&receiver.url("/orders"));
    let before = stage.publish("orders", "{}");
    stage.outboxd(&["run", "--once"]).ok();
    let pending = stage.publish("orders", "{}");
    let restored = TestPostgres::shared().database();
    let variables = [("DATABASE", stage.database.as_str()), ("RESTORED", restored.as_str())];
    let deliver = || stage.outboxd(&["run", "--once", "--database", &restored]).ok();
    let ids = || receiver.received().iter().map(|received| received.id().to_owned()).collect::<Vec<_>>();
    // A relay has it, as one does when the backup is taken; its lease lapses before the backup is needed.
    let processing = stage.publish("orders", "{}");
    execute(
        &stage.database,
        format!(
            "update outbox set state = 'processing', attempts = 1, lease_id = gen_random_uuid(),
                available_at = now() - interval '1 second' where id = '{processing}'"
        ),
    );
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };

    run(&stage, "pg_dump", &variables);
    stage.outboxd(&["run", "--once"]).ok();
    let listed = run(&stage, "pg_restore", &variables);
    deliver();
    assert!(listed.contains(&pending) && listed.contains(&processing) && !listed.contains(&before), "{listed}");
    let once = sorted(vec![before, pending.clone(), processing.clone()]);
    assert_eq!(sorted(ids()), once, "a paused topic is held");
    run(&stage, "outboxd resume", &variables);
    deliver();

    let twice = sorted([once, vec![pending, processing]].concat());
    assert_eq!(sorted(ids()), twice, "the same messages with the same ids");
}

#[test]
fn the_grants_of_the_docs_are_all_that_a_relay_needs() {
    let stage = Stage::postgres();
    let [grants] = blocks("sql")[..] else { panic!("one block of SQL") };
    // Roles belong to the whole server, which tests share.
    let grants = grants.replace("to relay", "to operations_relay");
    execute(&stage.database, format!("create role operations_relay login; {grants}"));
    stage.install_verbs("");
    let config = std::fs::read_to_string(stage.config()).expect("the configuration");
    let config = config.replace("user=postgres", "user=operations_relay");
    let id = stage.publish("verbs", r#"{"do": "succeed"}"#);
    std::fs::write(stage.config(), format!("migrate = \"off\"\n{config}")).expect("written");

    let relay = stage.relay();

    stage.wait_until(&id, "delivered");
    assert!(stage.outboxd(&["doctor"]).stdout.contains("this role may do all that a relay does"));
    assert!(!relay.log().contains("permission denied"), "{}", relay.log());
    relay.terminate();
}

#[test]
fn a_redrive_by_curl_as_docs_admin_shows_it() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("curl is not installed");
    }
    let stage = Stage::sqlite();
    stage.install("verbs", &guests::guest("verbs"), "topics = [\"orders.created\"]\n");
    let id = stage.publish("orders.created", r#"{"do": "cancel", "reason": "gone"}"#);
    stage.outboxd(&["run", "--once"]).ok();
    assert_eq!(stage.show(&id)["state"], "dead");
    let relay = stage.relay_with(&["--admin", "127.0.0.1:0"]);
    let shown = block(include_str!("../../docs/admin.md"), "The API").replace("127.0.0.1:8787", &relay.admin());

    let output = Command::new("sh").args(["-euc", &shown]).output().expect("sh runs");

    assert_eq!(String::from_utf8_lossy(&output.stdout), r#"{"changed":1,"more":false}"#);
}

#[test]
fn systemd_understands_the_unit() {
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let unit = dir.path().join("outboxd.service");
    std::fs::write(&unit, UNIT.replace("/usr/bin/outboxd", env!("CARGO_BIN_EXE_outboxd"))).expect("written");

    let verified = match Command::new("systemd-analyze").arg("verify").arg(&unit).output() {
        Ok(verified) => verified,
        Err(error) => return skip(&format!("systemd-analyze: {error}")),
    };

    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("outboxd.service"), "{said}");
    assert!(!UNIT.lines().any(|line| line.starts_with("MemoryDenyWriteExecute=")), "plugins are compiled");
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_there_are() {
    let metrics = include_str!("../../host/src/metrics/mod.rs");
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../docs/deploy/dashboard.json")).expect("JSON");
    let rules = include_str!("../../docs/deploy/alerts.yml");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let shown: String = targets.map(|target| format!("{}\n", target["expr"].as_str().expect("a query"))).collect();
    let named = |text: &str| {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned);
        words.filter(|word| word.starts_with("outboxd_")).collect::<Vec<_>>()
    };

    let (in_rules, in_dashboard) = (named(rules), named(&shown));

    assert!(in_rules.len() >= 6 && in_dashboard.len() >= 10, "{in_rules:?} {in_dashboard:?}");
    for name in in_rules.into_iter().chain(in_dashboard) {
        let name = name.trim_end_matches("_bucket");
        assert!(metrics.contains(&format!("\"{name}\",")), "there is no metric {name}");
    }
}

#[test]
fn prometheus_understands_the_rules_and_they_fire_when_they_should() {
    let folder = outboxd_test_support::repository().join("docs/deploy");
    let promtool = |args: &[&str]| Command::new("promtool").args(args).current_dir(&folder).output();
    let checked = match promtool(&["check", "rules", "alerts.yml"]) {
        Ok(checked) => checked,
        Err(error) => return skip(&format!("promtool (Debian: prometheus): {error}")),
    };

    let tried = promtool(&["test", "rules", "alerts.test.yml"]).expect("promtool runs");

    let said = [checked.stdout, checked.stderr, tried.stdout, tried.stderr].concat();
    assert!(checked.status.success() && tried.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn the_container_file_and_the_kubernetes_manifest_please_their_linters() {
    let Some(tools) = outboxd_test_support::tools::tool("deploy") else { return };
    let folder = outboxd_test_support::repository().join("docs/deploy");
    for args in [&["hadolint", "Containerfile"][..], &["kubernetes-validate", "--strict", "kubernetes.yml"][..]] {
        let mut linter = Command::new(tools.join("bin").join(args[0]));
        let output = linter.args(&args[1..]).current_dir(&folder).output().expect("the linter runs");

        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn the_kubernetes_manifests_configuration_is_one() {
    let manifest = include_str!("../../docs/deploy/kubernetes.yml");
    let (_, config) = manifest.split_once("outboxd.toml: |\n").expect("the configuration");
    let config: String =
        config.lines().map_while(|line| line.strip_prefix("    ")).map(|line| format!("{line}\n")).collect();
    let stage = Stage::sqlite();
    std::fs::write(stage.config(), config).expect("written");
    let mut command = stage.command(&["run", "--check"]);
    command.env("OUTBOXD_DATABASE_URL", "postgres://shop@db/shop").env("OUTBOXD_ADMIN_TOKEN", "s3cret-canary");

    let output = command.output().expect("outboxd runs");

    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("admin = \"0.0.0.0:8787\"") && said.contains("postgres://shop@db/shop"), "{said}");
}

#[test]
fn as_pid_1_it_drains_on_sigterm() {
    let receiver = Receiver::start();
    receiver.answer(|_| Answer::status(200).after(Duration::from_secs(1)));
    let stage = Stage::sqlite();
    stage.install_webhook(&receiver.url("/orders"));
    let id = stage.publish("orders", "{}");
    let outboxd = stage.command(&["run"]);
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]).arg(outboxd.get_program()).args(outboxd.get_args());
    unshare.envs(outboxd.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(stage.path());
    let mut parent = unshare.spawn().expect("unshare runs");
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let started = wait_for(PATIENCE, || receiver.count() == 1 || parent.try_wait().is_ok_and(|ended| ended.is_some()));
    if parent.try_wait().expect("our child").is_some() {
        return skip("no pid namespace can be made here");
    }
    assert!(started, "the message never came");
    let init = std::fs::read_to_string(children).expect("its child").trim().to_owned();

    let told = Command::new("kill").args(["-TERM", &init]).status().expect("kill runs");
    let mut status = None;
    let ended = wait_for(PATIENCE, || {
        status = parent.try_wait().expect("our child");
        status.is_some()
    });

    // Its own process; with it goes what it started.
    let _ = parent.kill();
    assert!(told.success() && ended && status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(stage.show(&id)["state"], "delivered");
}
