use std::future::Future;
use std::sync::Arc;

use http::header;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use wasmtime_wasi_http::{Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttpHooks};

use super::body::{Pumped, pump};
use super::call::{CallEgress, Waits};
use super::error::EgressError;
use super::policy;

type IoFuture = Box<dyn Future<Output = Result<(), Error>> + Send>;
type SendFuture = Box<dyn Future<Output = Result<(http::Response<WasiBody>, IoFuture), Error>> + Send>;

/// `wasi:http` through the same guard and the same budget as the contract's own `http`.
pub(crate) struct EgressHooks {
    call: CallEgress,
    /// Tasks that carry guests' bodies. They end with the call.
    pumps: JoinSet<()>,
}

impl EgressHooks {
    pub(crate) fn new(call: CallEgress) -> Self {
        EgressHooks { call, pumps: JoinSet::new() }
    }
}

impl WasiHttpHooks for EgressHooks {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        // A guest may say how long its body is: it is held to it. The rest of what is the host's, it may not even set.
        Arc::new(|name| policy::is_the_hosts(name) && *name != header::CONTENT_LENGTH)
    }

    fn set_host_header(&mut self) -> bool {
        false
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        64 << 10
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _io: IoFuture,
    ) -> SendFuture {
        let (head, body) = request.into_parts();
        let length = content_length(&head.headers);
        let (onward, frames) = mpsc::channel(1);
        // Reaps what has ended, so that a call of many requests does not collect them.
        while self.pumps.try_join_next().is_some() {}
        self.pumps.spawn(pump(body, self.call.clone(), onward));
        let ticket = match self.call.admit(head.method, head.uri, head.headers) {
            Ok(ticket) => ticket,
            Err(error) => return Box::new(async move { Err(error.to_wasi()) }),
        };
        let options = options.unwrap_or_default();
        let waits = Waits::clamp(options.connect_timeout, options.first_byte_timeout, options.between_bytes_timeout);
        let call = self.call.clone();
        Box::new(async move {
            let body = Pumped::new(frames, length).boxed_unsync();
            let response = call.send(ticket, body, waits).await.map_err(|error| error.to_wasi())?;
            // What breaks a body off is noted, though its head came long ago.
            let noted = move |error: EgressError| {
                call.note(&error);
                error.to_wasi()
            };
            let response = response.map(|body| body.map_err(noted).boxed_unsync());
            let nothing: IoFuture = Box::new(async { Ok(()) });
            Ok((response, nothing))
        })
    }
}

/// The length that the guest announced. More than one, or an odd one, is refused before it comes here.
fn content_length(headers: &http::HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
