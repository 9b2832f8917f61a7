//! Traces: the producer's trace goes on through the call and what it asks out, and reaches a collector over the real protocol.

use std::io::Write as _;
use std::process::{Command, Stdio};

use outboxd_test_support::receiver::{Answer, Received, Receiver};
use outboxd_test_support::tools::tool;
use outboxd_test_support::wait_for;
use serde_json::Value;

use crate::stage::{PATIENCE, RelayProcess, Stage};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PRODUCER: &str = "00f067aa0ba902b7";

const SOON: &str = "50";
const LATER: &str = "3600000";

/// A relay that delivers `orders` to `target` and tells `collector` each so many milliseconds.
fn relay(stage: &Stage, target: &Receiver, collector: &str, each_ms: &str) -> RelayProcess {
    configure(stage, collector);
    stage.install_webhook(&target.url("/orders"));
    let resource = ("OTEL_RESOURCE_ATTRIBUTES", "host.name=here,service.name=another");
    stage.relay_in(&[("OTEL_BSP_SCHEDULE_DELAY", each_ms), resource])
}

fn configure(stage: &Stage, collector: &str) {
    stage.configure("");
    let config = std::fs::read_to_string(stage.config()).expect("the configuration");
    std::fs::write(stage.config(), format!("traces = {collector:?}\n{config}")).expect("written");
}

/// The bodies that a collector was sent.
fn requests(collector: &Receiver) -> Vec<Value> {
    let read = |received: &Received| {
        assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/v1/traces"));
        assert_eq!(received.header("content-type"), Some("application/json"));
        received.json()
    };
    collector.received().iter().map(read).collect()
}

fn spans(collector: &Receiver) -> Vec<Value> {
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let resources: Vec<_> = requests(collector).iter().flat_map(|request| list(&request["resourceSpans"])).collect();
    for resource in &resources {
        assert_eq!(attribute(&resource["resource"], "service.name"), "outboxd");
        assert_eq!(attribute(&resource["resource"], "host.name"), "here");
    }
    let scopes = resources.iter().flat_map(|resource| list(&resource["scopeSpans"]));
    scopes.flat_map(|scope| list(&scope["spans"])).collect()
}

/// The value, whatever its type.
fn attribute(of: &Value, key: &str) -> String {
    let attributes = of["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    let value = found.and_then(|attribute| attribute["value"].as_object()?.values().next()?.as_str());
    value.unwrap_or_else(|| panic!("{key} is not among {attributes:#?}")).to_owned()
}

fn carried(span: &Value) -> String {
    let id = |name: &str| span[name].as_str().expect("text").to_owned();
    format!("00-{}-{}-01", id("traceId"), id("spanId"))
}

#[test]
fn each_attempt_is_a_span_below_the_producers_and_above_the_targets() {
    let (target, collector) = (Receiver::start(), Receiver::start());
    target.script([Answer::status(503)]);
    let stage = Stage::sqlite();
    let relay = relay(&stage, &target, &collector.url(""), SOON);
    let header = format!("traceparent=00-{TRACE}-{PRODUCER}-01");
    let id = stage.outboxd(&["publish", "orders", "--payload", "{}", "--header", &header]).ok().trim().to_owned();
    stage.wait_until(&id, "delivered");
    assert!(wait_for(PATIENCE, || spans(&collector).len() == 2), "{}", relay.log());

    let (spans, requests) = (spans(&collector), target.received());

    for (span, request) in spans.iter().zip(&requests) {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&TRACE.into(), &PRODUCER.into()));
        assert_eq!(
            request.header("traceparent"),
            Some(carried(span).as_str()),
            "the target's stands below the attempt's"
        );
        assert_eq!((&span["name"], attribute(span, "messaging.message.id")), (&"deliver orders".into(), id.clone()));
    }
    let told =
        |span| ["outboxd.attempt", "outboxd.outcome", "http.response.status_code"].map(|key| attribute(span, key));
    assert_eq!(spans.iter().map(told).collect::<Vec<_>>(), [["1", "retry", "503"], ["2", "success", "200"]]);
}

#[test]
fn the_protocols_own_schema_reads_what_is_sent() {
    let Some(otlp) = tool("otlp") else { return };
    let (target, collector) = (Receiver::start(), Receiver::start());
    target.script([Answer::status(503)]);
    let stage = Stage::sqlite();
    let relay = relay(&stage, &target, &collector.url(""), SOON);
    stage.publish("orders", "{}");
    assert!(wait_for(PATIENCE, || spans(&collector).len() == 2), "{}", relay.log());

    let mut python = Command::new(otlp.join("bin/python"));
    python.arg(outboxd_test_support::repository().join("tests/relay/verify/otlp.py"));
    let mut reader = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python runs");
    for request in requests(&collector) {
        writeln!(reader.stdin.as_mut().expect("a pipe"), "{request}").expect("written");
    }
    let output = reader.wait_with_output().expect("it ends");

    let said = String::from_utf8_lossy(&output.stdout);
    let each =
        ["STATUS_CODE_ERROR", "STATUS_CODE_UNSET"].map(|code| format!("deliver orders, SPAN_KIND_CONSUMER, {code}"));
    assert_eq!(said.lines().collect::<Vec<_>>(), each);
}

#[test]
fn what_is_left_is_sent_at_a_stop_and_a_trace_begins_where_the_producer_had_none() {
    let (target, collector) = (Receiver::start(), Receiver::start());
    let stage = Stage::sqlite();
    let relay = relay(&stage, &target, &collector.url("/"), LATER);
    let id = stage.publish("orders", "{}");
    stage.wait_until(&id, "delivered");

    relay.terminate();

    let spans = spans(&collector);
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0]["parentSpanId"], "");
    assert_eq!(target.received()[0].header("traceparent"), Some(carried(&spans[0]).as_str()));
}

#[test]
fn a_trace_that_its_producer_does_not_sample_is_told_to_the_target_alone() {
    let (target, collector) = (Receiver::start(), Receiver::start());
    let stage = Stage::sqlite();
    let relay = relay(&stage, &target, &collector.url("/"), LATER);
    for flags in ["00", "01"] {
        let header = format!("traceparent=00-{TRACE}-{PRODUCER}-{flags}");
        let id = stage.outboxd(&["publish", "orders", "--payload", "{}", "--header", &header]).ok().trim().to_owned();
        stage.wait_until(&id, "delivered");
    }

    relay.terminate();

    assert_eq!(spans(&collector).len(), 1);
    let carried = target.received()[0].header("traceparent").expect("it goes on").to_owned();
    assert!(carried.starts_with(&format!("00-{TRACE}-")) && carried.ends_with("-00"), "{carried}");
}

#[test]
fn a_collector_that_is_away_is_said_once_and_stops_no_delivery() {
    let target = Receiver::start();
    let stage = Stage::sqlite();
    let relay = relay(&stage, &target, "http://127.0.0.1:9", SOON);
    for _ in 0..3 {
        let id = stage.publish("orders", "{}");
        stage.wait_until(&id, "delivered");
    }

    relay.wait_for_log("sending spans to the collector fails");

    assert_eq!(relay.log().matches("sending spans to the collector fails").count(), 1);
    relay.terminate();
}

#[test]
fn a_collectors_address_that_is_none_is_refused() {
    let stage = Stage::sqlite();

    for wrong in ["127.0.0.1:4318", "https://collector.example", "http://", "http://user:hunter2@collector.example"] {
        configure(&stage, wrong);

        let said = stage.outboxd(&["run", "--check"]).fails(2);
        assert!(said.contains("traces: ") && !said.contains("hunter2"), "{wrong}: {said}");
    }
}
