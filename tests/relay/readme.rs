//! The README shows nothing that was not run.

use outboxd_test_support::guests;
use outboxd_test_support::receiver::Receiver;
use sqlx::Connection as _;

use crate::stage::Stage;

const README: &str = include_str!("../../README.md");

/// The text of each fenced block in `language`.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let mut found = Vec::new();
    let mut rest = README;
    while let Some(start) = rest.find(&fence) {
        rest = &rest[start + fence.len()..];
        let end = rest.find("```").expect("the block ends");
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
    found
}

/// A stage with the README's manifest, its target replaced by a receiver here.
fn stage_with_the_readmes_plugin(receiver: &Receiver) -> Stage {
    let stage = Stage::sqlite();
    // A newcomer has no outbox yet.
    std::fs::remove_file(stage.path().join("outbox.db")).expect("the stage had migrated");
    let manifest = blocks("toml")[0].replace("https://hooks.example.com", &receiver.url(""));
    stage.install("webhook", &guests::plugin("webhook"), &manifest);
    stage
}

#[test]
fn the_first_plugins_commands_deliver_the_message() {
    let receiver = Receiver::start();
    let stage = stage_with_the_readmes_plugin(&receiver);
    let commands = blocks("sh").into_iter().find(|block| block.starts_with("outboxd")).expect("the block of commands");
    let outboxd = stage.command(&[]);

    let mut shell = std::process::Command::new("sh");
    shell.args(["-euc", &format!("outboxd() {{ \"$BINARY\" \"$@\" --config outboxd.toml; }}\n{commands}")]);
    shell.env("BINARY", outboxd.get_program()).current_dir(stage.path());
    shell.envs(outboxd.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.output().expect("sh runs");

    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        receiver.received().iter().map(|received| received.json()).collect::<Vec<_>>(),
        [serde_json::json!({"order": 7})]
    );
    assert!(said.contains("delivered"), "{said}");
}

#[test]
fn the_two_commands_are_there() {
    let scripts: Vec<&str> =
        blocks("sh").into_iter().map(str::trim).filter(|block| block.starts_with("tests/")).collect();

    assert_eq!(scripts, ["tests/demo", "tests/all"]);
    for script in scripts {
        use std::os::unix::fs::PermissionsExt as _;
        let path = outboxd_test_support::repository().join(script);
        let mode = std::fs::metadata(&path).unwrap_or_else(|error| panic!("{script}: {error}")).permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script} cannot be run");
    }
}

#[test]
fn the_sql_publishes_with_the_order_and_refuses_without_it() {
    let stage = Stage::postgres();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let [sql] = blocks("sql")[..] else { panic!("one block of SQL") };

    runtime.block_on(async {
        let mut connection = sqlx::PgConnection::connect(&stage.database).await.expect("connects");
        sqlx::raw_sql("create table orders (id bigint primary key)").execute(&mut connection).await.expect("made");
        for statement in sql.split_inclusive(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            sqlx::raw_sql(statement)
                .execute(&mut connection)
                .await
                .unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        let alone = sqlx::raw_sql("select outbox_publish('orders.created', '{}')").execute(&mut connection).await;
        let refusal = alone.expect_err("publishing alone is refused").to_string();
        assert!(refusal.contains("transaction"), "{refusal}");
    });

    let listed: serde_json::Value =
        serde_json::from_str(&stage.outboxd(&["messages", "list", "--json"]).ok()).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed:#}");
    assert_eq!(listed[0]["topic"], "orders.created");
}
