//! Publishing wakes an idle relay: the poll is only for what a wake misses.

use outboxd_test_support::receiver::Receiver;
use outboxd_test_support::wait_for;

use crate::stage::{PATIENCE, Stage, on_every_database};

on_every_database! {
    a_publish_wakes_an_idle_relay,
}

fn a_publish_wakes_an_idle_relay(stage: Stage) {
    let config = std::fs::read_to_string(stage.config()).expect("the configuration");
    let config = config.replace("poll_interval = \"200ms\"", "poll_interval = \"10m\"");
    std::fs::write(stage.config(), config).expect("written");
    stage.install_verbs("");
    // The receiver tells when a message came: a look into the database could itself wake the relay.
    let receiver = Receiver::start();
    let payload = format!(r#"{{"do":"http","url":"{}"}}"#, receiver.url("/"));
    let relay = stage.relay();
    stage.publish("verbs", &payload);
    assert!(wait_for(PATIENCE, || receiver.count() == 1), "{}", relay.log());

    for count in 2..=6 {
        stage.publish("verbs", &payload);

        let came = wait_for(PATIENCE, || receiver.count() == count);
        assert!(came, "message {count} waits for the poll\n{}", relay.log());
    }
}
