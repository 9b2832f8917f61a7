use std::fmt;

/// Why a request brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EgressError {
    /// The grant, the ceiling or the host's own rules forbid it; the text says which.
    Denied(String),
    /// All requests of this call are spent, or too many are under way.
    RequestsSpent,
    UrlTooLong,
    HeadersTooLarge,
    UploadSpent,
    DownloadSpent,
    Dns(String),
    Connect(String),
    ConnectTimeout,
    Tls(String),
    Certificate(String),
    FirstByteTimeout,
    BetweenBytesTimeout,
    /// The guest's own time for the whole exchange.
    Timeout,
    /// The guest ended its body early, or wrote more than it announced.
    BodyLength,
    /// The guest's method or header is none; nothing was sent.
    Malformed(String),
    Protocol(String),
}

impl fmt::Display for EgressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EgressError::Denied(why) => write!(f, "denied: {why}"),
            EgressError::RequestsSpent => {
                f.write_str("denied: this call has no outgoing request left (limits.requests)")
            }
            EgressError::UrlTooLong => f.write_str("denied: the URL is longer than 8 KiB"),
            EgressError::HeadersTooLarge => f.write_str("denied: more than 100 headers, or more than 64 KiB of them"),
            EgressError::UploadSpent => f.write_str("the request bodies of this call are larger than limits.upload"),
            EgressError::DownloadSpent => {
                f.write_str("the response bodies of this call are larger than limits.download")
            }
            EgressError::Dns(why) => write!(f, "the name cannot be resolved: {why}"),
            EgressError::Connect(why) => write!(f, "no connection: {why}"),
            EgressError::ConnectTimeout => f.write_str("no connection in time"),
            EgressError::Tls(why) => write!(f, "TLS failed: {why}"),
            EgressError::Certificate(why) => write!(f, "TLS failed: the certificate is not trusted: {why}"),
            EgressError::FirstByteTimeout => f.write_str("no answer in time"),
            EgressError::BetweenBytesTimeout => f.write_str("the answer stopped half-way"),
            EgressError::Timeout => f.write_str("no whole answer in the time the plugin allowed"),
            EgressError::BodyLength => f.write_str("the request body has another length than its content-length"),
            EgressError::Malformed(why) | EgressError::Protocol(why) => write!(f, "not HTTP as it should be: {why}"),
        }
    }
}

impl std::error::Error for EgressError {}

impl EgressError {
    /// Whether the host refused it, rather than the network failing.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            EgressError::Denied(_)
                | EgressError::RequestsSpent
                | EgressError::UrlTooLong
                | EgressError::HeadersTooLarge
        )
    }

    /// The same in the words of `wasi:http`.
    pub(crate) fn to_wasi(&self) -> wasmtime_wasi_http::Error {
        use wasmtime_wasi_http::Error as Wasi;
        match self {
            EgressError::Denied(_) => Wasi::HttpRequestDenied,
            EgressError::RequestsSpent => Wasi::ConnectionLimitReached,
            EgressError::UrlTooLong => Wasi::HttpRequestUriTooLong,
            EgressError::HeadersTooLarge => Wasi::HttpRequestHeaderSectionSize(None),
            EgressError::UploadSpent | EgressError::BodyLength => Wasi::HttpRequestBodySize(None),
            EgressError::DownloadSpent => Wasi::HttpResponseBodySize(None),
            EgressError::Dns(why) => Wasi::DnsError { rcode: Some(why.clone()), info_code: None },
            EgressError::Connect(_) => Wasi::ConnectionRefused,
            EgressError::ConnectTimeout => Wasi::ConnectionTimeout,
            EgressError::Tls(_) => Wasi::TlsProtocolError,
            EgressError::Certificate(_) => Wasi::TlsCertificateError,
            EgressError::FirstByteTimeout | EgressError::Timeout => Wasi::HttpResponseTimeout,
            EgressError::BetweenBytesTimeout => Wasi::ConnectionReadTimeout,
            EgressError::Malformed(_) | EgressError::Protocol(_) => Wasi::HttpProtocolError,
        }
    }
}
