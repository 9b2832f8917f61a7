//! What a relay tells of itself while its database is down, cannot be heard, or is held back.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::proxy::Proxy;
use outboxd_test_support::wait_for;
use sqlx::{Connection as _, PgConnection};

use crate::stage::{PATIENCE, RelayProcess, Stage};

/// A relay, and where it tells how it is.
fn relay(stage: &Stage) -> (RelayProcess, String) {
    let relay = stage.relay_with(&["--admin", "127.0.0.1:0"]);
    let address = relay.health();
    (relay, address)
}

/// The whole answer; empty while nobody listens.
pub fn get(address: &str, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        stream.read_to_string(&mut answer).expect("an answer");
    }
    answer
}

pub fn wait_until(address: &str, path: &str, text: &str) {
    let mut last = String::new();
    let said = wait_for(PATIENCE, || {
        last = get(address, path);
        last.contains(text)
    });
    assert!(said, "{path} never said {text:?}:\n{last}");
}

#[test]
fn a_relay_whose_database_is_down_at_its_start_is_alive_and_not_ready() {
    let server = TestPostgres::start();
    let stage = Stage::on(server.database());
    stage.install_verbs("");
    server.kill();
    let (relay, address) = relay(&stage);
    relay.wait_for_log("reaching the database fails");

    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/readyz").starts_with("HTTP/1.1 503"));
    assert!(get(&address, "/metrics").contains("outboxd_settles_fenced_total 0"));
    let page = get(&address, "/");
    assert!(page.starts_with("HTTP/1.1 503") && page.contains("the database has not answered yet"), "{page}");

    server.restart();
    wait_until(&address, "/readyz", "HTTP/1.1 200");
    assert!(get(&address, "/").starts_with("HTTP/1.1 200"));
    server.kill();
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
    wait_until(&address, "/readyz", "HTTP/1.1 503");
}

#[test]
fn a_relay_without_a_plugin_is_not_ready() {
    let stage = Stage::sqlite();
    let (_relay, address) = relay(&stage);

    wait_until(&address, "/readyz", "no plugin is loaded");

    stage.install_verbs("");
    wait_until(&address, "/readyz", "HTTP/1.1 200");
}

#[test]
fn a_listener_that_is_lost_shows_in_the_metrics_until_it_is_back() {
    let server = TestPostgres::shared();
    let stage = Stage::postgres();
    let name = stage.database.split(['/', '?']).nth(3).expect("the database's name").to_owned();
    let mut proxy = Some(Proxy::before_postgres(server.socket_folder()));
    let listen = proxy.as_ref().expect("there").postgres_url(&name);
    let config = std::fs::read_to_string(stage.config()).expect("the configuration");
    std::fs::write(stage.config(), format!("listen_database = {listen:?}\n{config}")).expect("written");
    let (_relay, address) = relay(&stage);
    wait_until(&address, "/metrics", "outboxd_listener_up 1");

    proxy.take();

    wait_until(&address, "/metrics", "outboxd_listener_up 0");
    wait_until(&address, "/", "Notifications do not reach this relay");
}

#[test]
fn who_holds_dead_rows_back_is_a_metric_and_named_by_the_page_and_by_doctor() {
    // Past the minute from which it is worth a word.
    let seconds = std::env::var("OUTBOXD_SNAPSHOT_SECONDS").ok();
    let held = Duration::from_secs(seconds.map_or(61, |number| number.parse().expect("a number of seconds")));
    let stage = Stage::postgres();
    let (_relay, address) = relay(&stage);
    let age = || {
        let metrics = get(&address, "/metrics");
        let value = metrics.lines().find_map(|line| line.strip_prefix("outboxd_oldest_snapshot_seconds "))?;
        value.parse::<f64>().ok()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Idle after a write: no snapshot any more, and its id holds vacuum back all the same.
    let writer = runtime.block_on(async {
        let mut writer = PgConnection::connect(&stage.database).await.expect("connects");
        let write = "set application_name = 'forgotten'; begin; create table written (id int)";
        sqlx::raw_sql(write).execute(&mut writer).await.expect("written");
        writer
    });

    assert!(wait_for(held + PATIENCE, || age().is_some_and(|age| age > held.as_secs_f64())), "{:?}", age());
    wait_until(&address, "/", "the oldest snapshot is held");
    assert!(get(&address, "/").contains("(forgotten), idle in transaction: "));
    let doctor = stage.outboxd(&["doctor"]).stdout;
    assert!(doctor.contains("(forgotten), idle in transaction: "), "{doctor}");

    runtime.block_on(async { writer.close().await.expect("closed") });
    assert!(wait_for(PATIENCE, || age().is_some_and(|age| age < held.as_secs_f64())), "{:?}", age());
}
