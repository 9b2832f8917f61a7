//! Traces, as OpenTelemetry has them: a span for each attempt, in the trace that the producer's `traceparent` header names. What
//! the plugin asks out carries the span's own `traceparent`, so that the target's spans stand below it.

mod otlp;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use outboxd_core::{Claim, Outcome};

use crate::handler::{CallControl, Handled, Handler, Handlers, Route};
use otlp::Exporter;

const TRACEPARENT: &str = "traceparent";

/// What our spans say they come from.
const SCOPE: &str = "outboxd";

/// Spans that are on their way to a collector.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends spans by OTLP over HTTP to `collector`, such as `http://127.0.0.1:4318`, in batches, from a thread of its own. A
    /// collector that is away costs spans, never a delivery. Must be called within a Tokio runtime.
    pub fn start(collector: &str) -> Result<Traces, String> {
        let traces = format!("{}/v1/traces", collector.trim_end_matches('/'));
        let exporter = Exporter::new(traces.parse::<Uri>().map_err(|error| format!("traces: {traces:?}: {error}"))?);
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name(SCOPE).with_attribute(version).build();
        Ok(Traces(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
    }

    /// The same handlers, with a span for each attempt.
    pub fn around(&self, handlers: Arc<dyn Handlers>) -> Arc<dyn Handlers> {
        Arc::new(TracedHandlers { inner: handlers, tracer: self.0.tracer(SCOPE) })
    }

    /// Sends what is left, within `at_most`.
    pub async fn finish(self, at_most: Duration) {
        // It waits for its thread. What could not be sent has been said.
        let _ = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(at_most)).await;
    }
}

struct TracedHandlers {
    inner: Arc<dyn Handlers>,
    tracer: SdkTracer,
}

impl Handlers for TracedHandlers {
    fn route(&self, topic: &str) -> Option<Route> {
        let route = self.inner.route(topic)?;
        let (plugin, tracer) = (route.plugin.clone(), self.tracer.clone());
        let handler = Arc::new(TracedHandler { inner: route.handler, plugin, tracer });
        Some(Route { handler, ..route })
    }

    fn plugins(&self) -> usize {
        self.inner.plugins()
    }
}

struct TracedHandler {
    inner: Arc<dyn Handler>,
    plugin: Arc<str>,
    tracer: SdkTracer,
}

#[async_trait]
impl Handler for TracedHandler {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        let message = &claim.message;
        let propagator = TraceContextPropagator::new();
        let producers = propagator.extract_with_context(&Context::new(), &Headers(&message.headers));
        let builder = self.tracer.span_builder(format!("deliver {}", message.topic)).with_kind(SpanKind::Consumer);
        let span = builder.with_attributes([
            KeyValue::new("messaging.system", "outboxd"),
            KeyValue::new("messaging.operation.name", "deliver"),
            KeyValue::new("messaging.destination.name", message.topic.clone()),
            KeyValue::new("messaging.message.id", message.id.to_string()),
            KeyValue::new("outboxd.attempt", i64::from(claim.attempt.0)),
            KeyValue::new("outboxd.plugin", self.plugin.to_string()),
        ]);
        let mut span = span.start_with_context(&self.tracer, &producers);

        let mut headers = HashMap::new();
        let own = Context::new().with_remote_span_context(span.span_context().clone());
        propagator.inject_context(&own, &mut headers);
        let handled = self.inner.handle(&carrying(claim, headers.remove(TRACEPARENT)), call).await;

        let (word, error) = told(&handled.outcome);
        span.set_attribute(KeyValue::new("outboxd.outcome", word));
        if let Some(status) = handled.http_status {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if let Some(error) = error {
            span.set_status(Status::error(error.to_owned()));
        }
        span.end();
        handled
    }
}

/// The claim with `traceparent` in place of the producer's.
fn carrying(claim: &Claim, traceparent: Option<String>) -> Claim {
    let mut claim = claim.clone();
    if let Some(traceparent) = traceparent {
        claim.message.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(TRACEPARENT));
        claim.message.headers.push((TRACEPARENT.into(), traceparent));
        claim.message.headers.sort();
    }
    claim
}

fn told(outcome: &Outcome) -> (&'static str, Option<&str>) {
    match outcome {
        Outcome::Success => ("success", None),
        Outcome::Retry { error, .. } => ("retry", Some(error)),
        Outcome::Cancel { error } => ("cancel", Some(error)),
        Outcome::Fault { reason, error, .. } | Outcome::Refused { reason, error } => (reason.as_str(), Some(error)),
    }
}

/// A message's headers, by names of any case.
struct Headers<'a>(&'a [(String, String)]);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let header = self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
        header.map(|(_, value)| value.as_str())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}
