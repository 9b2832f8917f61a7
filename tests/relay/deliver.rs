//! From the producer's transaction to the target.

use outboxd_client::{NewMessage, Outbox};
use outboxd_test_support::guests;
use outboxd_test_support::receiver::Receiver;
use sqlx::Connection as _;

use crate::stage::{PATIENCE, Stage, on_every_database};

on_every_database! {
    what_was_rolled_back_is_never_delivered,
    the_webhook_plugin_delivers_the_very_bytes_signed_by_the_host,
    a_plugin_dropped_into_the_folder_is_picked_up,
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn install_webhook(stage: &Stage, receiver: &Receiver) {
    stage.configure("[secrets]\nSHOP_KEY = { env = \"SHOP_KEY\" }");
    let manifest = format!(
        "topics = [\"orders.*\"]\n[grants]\nhosts = [\"http://{}\"]\nprivate_networks = [\"127.0.0.0/8\"]\n\
         [grants.secrets]\nSHOP_KEY = []\n[settings]\nurl = \"{}\"\nsecret = \"SHOP_KEY\"\n",
        receiver.address(),
        receiver.url("/hooks"),
    );
    stage.install("webhook", &guests::plugin("webhook"), &manifest);
}

fn run_once(stage: &Stage) {
    let output = stage.command(&["run", "--once"]).env("SHOP_KEY", SECRET).output().expect("outboxd runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Publishes three messages: one commits, one is rolled back, one is rolled back to a savepoint before the commit.
macro_rules! publish_three {
    ($connection:expr) => {{
        let outbox = Outbox::default();
        let message = |what: &str| NewMessage::from_json("orders.created", format!("\"{what}\""));
        let connection = $connection;

        let mut transaction = connection.begin().await.expect("begins");
        outboxd_client::publish(&mut transaction, &outbox, message("committed")).await.expect("published");
        let mut savepoint = transaction.begin().await.expect("a savepoint");
        outboxd_client::publish(&mut savepoint, &outbox, message("undone")).await.expect("published");
        savepoint.rollback().await.expect("rolled back");
        transaction.commit().await.expect("committed");

        let mut transaction = connection.begin().await.expect("begins");
        outboxd_client::publish(&mut transaction, &outbox, message("rolled back")).await.expect("published");
        transaction.rollback().await.expect("rolled back");
    }};
}

async fn publish_three(url: &str) {
    if url.starts_with("sqlite:") {
        publish_three!(&mut sqlx::SqliteConnection::connect(url).await.expect("connects"));
    } else {
        publish_three!(&mut sqlx::PgConnection::connect(url).await.expect("connects"));
    }
}

fn what_was_rolled_back_is_never_delivered(stage: Stage) {
    let receiver = Receiver::start();
    install_webhook(&stage, &receiver);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(publish_three(&stage.database));

    run_once(&stage);

    let bodies: Vec<_> = receiver.received().into_iter().map(|received| received.body).collect();
    assert_eq!(bodies, ["\"committed\""]);
}

fn the_webhook_plugin_delivers_the_very_bytes_signed_by_the_host(stage: Stage) {
    let receiver = Receiver::start();
    install_webhook(&stage, &receiver);
    let payload = r#"{"b":1,"a":1.0,"n":12345678901234567890,"d":1,"d":2,"z":"\u0000"}"#;
    let id = stage.publish("orders.created", payload);

    run_once(&stage);

    let received = receiver.received();
    assert_eq!(received.len(), 1, "{:#}", stage.show(&id));
    assert_eq!(received[0].body, payload);
    assert_eq!(received[0].id(), id);
    assert_eq!(received[0].verify(SECRET), Ok(()));
    assert_eq!(stage.show(&id)["state"], "delivered");
}

fn a_plugin_dropped_into_the_folder_is_picked_up(stage: Stage) {
    let id = stage.publish("verbs", r#"{"do":"succeed"}"#);
    let relay = stage.relay();
    relay.wait_for_log("delivering from");

    stage.install_verbs("");

    let message = stage.wait_until(&id, "delivered");
    assert_eq!(message["attempts"], 1, "waiting for a plugin spends no attempt: {message:#}");
    let _ = PATIENCE;
}
