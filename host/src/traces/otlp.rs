//! The way to a collector: OTLP over HTTP, in its JSON form.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::{SpanId, Status};
use opentelemetry::{Key, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::outage::Outage;

/// A collector has so long to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// `SPAN_KIND_CONSUMER`: all our spans take what a producer wrote.
const KIND: u32 = 5;
const STATUS_OK: u32 = 1;
const STATUS_ERROR: u32 = 2;

/// Sends batches of spans. A collector that is away costs them: that is said once, and nothing is sent again.
#[derive(Debug)]
pub struct Exporter {
    collector: Uri,
    resource: Resource,
    http: Client<HttpConnector, Full<Bytes>>,
    /// The exporting thread is none of Tokio's.
    runtime: Handle,
    outage: Mutex<Outage>,
}

impl Exporter {
    /// Sends to the address `collector`, path and all. Must be called within a Tokio runtime, which does the sending.
    pub fn new(collector: Uri) -> Exporter {
        Exporter {
            collector,
            resource: Resource::builder_empty().build(),
            http: Client::builder(TokioExecutor::new()).build_http(),
            runtime: Handle::current(),
            outage: Mutex::new(Outage::new("sending spans to the collector")),
        }
    }

    async fn send(&self, spans: &[SpanData]) -> Result<(), String> {
        let body = Bytes::from(request(&self.resource, spans).to_string());
        let request = Request::post(&self.collector).header(CONTENT_TYPE, "application/json").body(Full::new(body));
        let answer = self.http.request(request.map_err(|error| error.to_string())?);
        let answer = self.runtime.spawn(async { timeout(ANSWER_WITHIN, answer).await });
        match answer.await.map_err(|error| error.to_string())? {
            Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
            Ok(Ok(answer)) => Err(format!("it answered {}", answer.status())),
            Ok(Err(error)) => Err(cause(&error)),
            Err(_) => Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
        }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.send(&spans).await;
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match &sent {
            Ok(()) => outage.over(),
            Err(error) => {
                outage.note(error);
            }
        }
        sent.map_err(OTelSdkError::InternalFailure)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.clone();
    }
}

/// The innermost error, which the client wraps.
fn cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), cause)
}

/// An `ExportTraceServiceRequest`. In its JSON ids are hexadecimal and 64-bit numbers are strings.
fn request(resource: &Resource, spans: &[SpanData]) -> serde_json::Value {
    let attributes: Vec<_> = resource.iter().map(|(key, value)| attribute(key, value)).collect();
    let spans: Vec<_> = spans.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes },
        "scopeSpans": [{ "scope": { "name": super::SCOPE }, "spans": spans }],
    }] })
}

fn span(span: &SpanData) -> serde_json::Value {
    let attributes: Vec<_> = span.attributes.iter().map(|entry| attribute(&entry.key, &entry.value)).collect();
    let parent = Some(span.parent_span_id).filter(|parent| *parent != SpanId::INVALID);
    json!({
        "traceId": span.span_context.trace_id().to_string(),
        "spanId": span.span_context.span_id().to_string(),
        "parentSpanId": parent.map(|parent| parent.to_string()).unwrap_or_default(),
        "traceState": span.span_context.trace_state().header(),
        "flags": span.span_context.trace_flags().to_u8(),
        "name": span.name,
        "kind": KIND,
        "startTimeUnixNano": nanos(span.start_time),
        "endTimeUnixNano": nanos(span.end_time),
        "attributes": attributes,
        "status": match &span.status {
            Status::Unset => json!({}),
            Status::Ok => json!({ "code": STATUS_OK }),
            Status::Error { description } => json!({ "code": STATUS_ERROR, "message": description }),
        },
    })
}

fn attribute(key: &Key, value: &Value) -> serde_json::Value {
    let value = match value {
        Value::Bool(value) => json!({ "boolValue": value }),
        Value::I64(value) => json!({ "intValue": value.to_string() }),
        Value::F64(value) => json!({ "doubleValue": value }),
        value => json!({ "stringValue": value.as_str() }),
    };
    json!({ "key": key.as_str(), "value": value })
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}
