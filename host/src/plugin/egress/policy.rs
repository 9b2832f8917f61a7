use std::collections::BTreeMap;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};

use super::destination::{Destination, HostPattern};
use super::error::EgressError;
use super::tcp::TcpPeer;

pub(crate) const URL_BYTES_MAX: usize = 8 << 10;
pub(crate) const HEADERS_MAX: usize = 100;
pub(crate) const HEADER_BYTES_MAX: usize = 64 << 10;

/// Which requests a plugin may send: the pure part of the guard, which looks at the request alone.
#[derive(Clone, Debug, Default)]
pub struct EgressPolicy {
    pub hosts: Vec<HostPattern>,
    /// Of each granted secret, where its placeholder may go. None: for signing only.
    pub secrets: BTreeMap<String, Vec<HostPattern>>,
    /// Whom raw TCP connections may be opened to.
    pub tcp: Vec<TcpPeer>,
}

impl EgressPolicy {
    /// Admits a request by its method and URI, or says why not.
    pub(crate) fn admit(&self, method: &Method, uri: &Uri) -> Result<Destination, EgressError> {
        let refuse = |why: String| Err(EgressError::Denied(why));
        if *method == Method::CONNECT || *method == Method::TRACE {
            return refuse(format!("method {method} is not for plugins"));
        }
        let path = uri.path_and_query().map_or("", |path| path.as_str());
        if uri.authority().map_or(0, |authority| authority.as_str().len()) + path.len() > URL_BYTES_MAX {
            return Err(EgressError::UrlTooLong);
        }
        // What follows would be sent in the request line; an absolute URL there names another host than the one checked.
        if !(path.is_empty() || path.starts_with('/') || path.starts_with('?')) {
            return refuse(format!("{:?} is no path", crop(path)));
        }
        if path.contains("{{secret:") {
            return refuse("a secret may stand in a header, never in a URL".into());
        }
        let destination = Destination::of(uri).map_err(EgressError::Denied)?;
        if !self.hosts.iter().any(|pattern| pattern.matches(&destination)) {
            return refuse(format!(
                "{destination} is not granted; to allow it, add it to [grants] hosts of the plugin's manifest"
            ));
        }
        Ok(destination)
    }

    /// Whether the placeholder of `secret` may be filled in a request to `destination`.
    pub(crate) fn may_carry(&self, secret: &str, destination: &Destination) -> bool {
        self.secrets.get(secret).is_some_and(|hosts| hosts.iter().any(|pattern| pattern.matches(destination)))
    }
}

fn crop(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

/// Headers that are the host's business: where the connection goes and how the body is framed.
pub(crate) fn is_the_hosts(name: &HeaderName) -> bool {
    const OURS: [HeaderName; 9] = [
        header::HOST,
        header::CONTENT_LENGTH,
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::EXPECT,
        header::PROXY_AUTHENTICATE,
    ];
    OURS.contains(name)
        || matches!(name.as_str(), "keep-alive" | "http2-settings")
        || name.as_str().starts_with("proxy-")
}

/// The guest's headers without those that are the host's; refused where there are too many of them.
pub(crate) fn strip(headers: HeaderMap) -> Result<HeaderMap, EgressError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
        return Err(EgressError::HeadersTooLarge);
    }
    // A header that `connection` names is hop-by-hop as well.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut last: Option<HeaderName> = None;
    for (name, value) in headers {
        if name.is_some() {
            last = name;
        }
        if let Some(name) = last.as_ref().filter(|name| !is_the_hosts(name) && !named.contains(name)) {
            kept.append(name.clone(), value);
        }
    }
    Ok(kept)
}

/// One `{{secret:NAME}}` or literal text between them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    Secret(&'a str),
}

/// Splits a header value at its placeholders; nothing where it has none.
pub(crate) fn placeholders(value: &HeaderValue) -> Option<Vec<Piece<'_>>> {
    const OPEN: &str = "{{secret:";
    let text = value.to_str().ok().filter(|text| text.contains(OPEN))?;
    let mut pieces = vec![];
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        let name_on = &rest[at + OPEN.len()..];
        let Some(end) = name_on.find("}}") else { break };
        pieces.push(Piece::Text(&rest[..at]));
        pieces.push(Piece::Secret(&name_on[..end]));
        rest = &name_on[end + 2..];
    }
    pieces.push(Piece::Text(rest));
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(hosts: &[&str]) -> EgressPolicy {
        let hosts = hosts.iter().map(|host| HostPattern::parse(host).expect(host)).collect();
        EgressPolicy { hosts, ..EgressPolicy::default() }
    }

    fn is_admitted(policy: &EgressPolicy, url: &str) -> bool {
        url.parse().is_ok_and(|uri| policy.admit(&Method::POST, &uri).is_ok())
    }

    /// Each way to write an address or a host that a parser somewhere reads as something else.
    #[test]
    fn no_odd_form_of_a_url_is_admitted_even_where_every_host_name_is_granted() {
        let policy = policy(&["https://*.example.com", "https://hooks.example.com", "http://*.example.com:*"]);
        let forms = include_str!("odd_urls.txt");
        let mut count = 0;
        for url in forms.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
            let url = url.replace("\\t", "\t").replace("\\r", "\r").replace("\\n", "\n").replace("\\0", "\0");
            count += 1;
            assert!(!is_admitted(&policy, &url), "{url:?} was admitted");
        }
        assert!(count >= 100, "only {count} forms");
    }

    #[test]
    fn granted_hosts_of_every_shape_are_admitted() {
        let policy = policy(&[
            "https://hooks.example.com",
            "https://*.example.net:8443",
            "http://127.0.0.1:9000",
            "http://[::1]:9000",
            "https://xn--bcher-kva.example",
        ]);
        for url in [
            "https://hooks.example.com",
            "https://hooks.example.com/",
            "https://HOOKS.EXAMPLE.COM/a/b?c=d#e",
            "https://hooks.example.com:443/x",
            "https://hooks.example.com?q",
            "https://a.example.net:8443/",
            "https://a-b.c_d.example.net:8443/%2e%2e",
            "http://127.0.0.1:9000/hook",
            "http://[::1]:9000/",
            "http://[0:0:0:0:0:0:0:1]:9000/",
            "https://xn--bcher-kva.example/",
        ] {
            assert!(is_admitted(&policy, url), "{url} was refused");
        }
    }

    #[test]
    fn connect_and_trace_are_refused() {
        let policy = policy(&["https://hooks.example.com"]);
        let uri: Uri = "https://hooks.example.com/".parse().unwrap();

        assert!(policy.admit(&Method::CONNECT, &uri).is_err());
        assert!(policy.admit(&Method::TRACE, &uri).is_err());
    }

    #[test]
    fn the_hosts_own_headers_are_stripped_and_so_is_what_connection_names() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "evil"),
            ("content-length", "3"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("proxy-authorization", "x"),
            ("transfer-encoding", "chunked"),
            ("x-keep", "a"),
            ("x-keep", "b"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }

        let kept = strip(headers).unwrap();

        assert_eq!(kept.len(), 2);
        assert_eq!(kept.get_all("x-keep").iter().count(), 2);
    }

    #[test]
    fn too_many_headers_are_refused() {
        let mut headers = HeaderMap::new();
        for n in 0..=HEADERS_MAX {
            headers.append(HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap(), HeaderValue::from_static("v"));
        }

        assert!(matches!(strip(headers), Err(EgressError::HeadersTooLarge)));
    }

    #[test]
    fn placeholders_are_found_between_text() {
        let value = HeaderValue::from_static("Bearer {{secret:API_KEY}}; {{secret:B}}");

        let pieces = placeholders(&value).unwrap();

        assert_eq!(
            pieces,
            [Piece::Text("Bearer "), Piece::Secret("API_KEY"), Piece::Text("; "), Piece::Secret("B"), Piece::Text("")]
        );
        assert!(placeholders(&HeaderValue::from_static("plain {{ text")).is_none());
    }
}
