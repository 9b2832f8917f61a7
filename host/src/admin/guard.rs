//! Who may ask: decided from the request's head alone.
//!
//! There are no cookies. A browser may send Basic credentials by itself, or need none on loopback, so what it sends for another
//! site is refused by what no page can forge: Host, Origin and Sec-Fetch-Site. Only a link may lead here from elsewhere.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::guesses::WITHIN;

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The Host is not this server's: a page of another site may have made its name point here.
    ForeignHost,
    /// A browser sent it for another site.
    CrossSite,
    Unauthorized,
    /// Its peer named too many wrong tokens.
    GuessedTooOften,
    TooLarge,
    TooSlow,
}

/// Checks a request to a server at `address`; `token` is required where there is one.
pub fn check(
    method: &Method,
    headers: &HeaderMap,
    address: SocketAddr,
    token: Option<&SecretString>,
) -> Result<(), Refusal> {
    let text = |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
    let host = text(HOST).ok_or(Refusal::ForeignHost)?;
    if token.is_none() && !is_own(host, address) {
        return Err(Refusal::ForeignHost);
    }
    let sent_for = |name, value: &str| headers.get(name).is_some_and(|given| given.as_bytes() == value.as_bytes());
    let own_site = !headers.contains_key("sec-fetch-site")
        || sent_for("sec-fetch-site", "same-origin")
        || sent_for("sec-fetch-site", "none");
    // Somebody follows a link, say from a chat. The page that holds it sees nothing of the answer, and a GET changes nothing.
    let followed_link =
        method == Method::GET && sent_for("sec-fetch-mode", "navigate") && sent_for("sec-fetch-dest", "document");
    if !own_site && !followed_link {
        return Err(Refusal::CrossSite);
    }
    if let Some(origin) = text(ORIGIN)
        && origin.strip_prefix("http://").or(origin.strip_prefix("https://")) != Some(host)
    {
        return Err(Refusal::CrossSite);
    }
    match token {
        Some(token) if !text(AUTHORIZATION).is_some_and(|given| is_token(given, token)) => Err(Refusal::Unauthorized),
        _ => Ok(()),
    }
}

/// Without a token, only loopback names of this very port are served.
fn is_own(host: &str, address: SocketAddr) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, Some(80)),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port == Some(address.port()) && is_loopback
}

/// `Bearer TOKEN`, or Basic with the token as password. Compared by digest, so that time tells nothing of the token.
fn is_token(authorization: &str, token: &SecretString) -> bool {
    let given = match authorization.split_once(' ') {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("bearer") => given.trim().to_owned(),
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("basic") => {
            let decoded = BASE64_STANDARD.decode(given.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let Some((_, password)) = decoded.as_deref().and_then(|pair| pair.split_once(':')) else { return false };
            password.to_owned()
        }
        _ => return false,
    };
    Sha256::digest(given.as_bytes()) == Sha256::digest(token.expose_secret().as_bytes())
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::ForeignHost => {
                (StatusCode::FORBIDDEN, "the Host of this request is not served here\n").into_response()
            }
            Refusal::CrossSite => (StatusCode::FORBIDDEN, "requests of other sites are not served\n").into_response(),
            Refusal::Unauthorized => {
                let ask = [(WWW_AUTHENTICATE, "Basic realm=\"outboxd\", Bearer")];
                (StatusCode::UNAUTHORIZED, ask, "the admin token is required\n").into_response()
            }
            Refusal::GuessedTooOften => {
                let wait = [(RETRY_AFTER, WITHIN.as_secs())];
                (StatusCode::TOO_MANY_REQUESTS, wait, "too many wrong tokens from this address: wait\n").into_response()
            }
            Refusal::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large\n").into_response(),
            Refusal::TooSlow => (StatusCode::REQUEST_TIMEOUT, "the request came too slowly\n").into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.parse().expect("name"), value.parse().expect("value"))).collect()
    }

    fn checked(headers: &[(&'static str, &str)], token: Option<&str>) -> Result<(), Refusal> {
        checked_as(Method::GET, headers, token)
    }

    fn checked_as(method: Method, headers: &[(&'static str, &str)], token: Option<&str>) -> Result<(), Refusal> {
        let address = "127.0.0.1:8787".parse().expect("address");
        check(&method, &request(headers), address, token.map(SecretString::from).as_ref())
    }

    #[test]
    fn loopback_names_of_the_own_port_are_served() {
        for host in ["127.0.0.1:8787", "localhost:8787", "[::1]:8787"] {
            assert_eq!(checked(&[("host", host)], None), Ok(()), "{host}");
        }
    }

    #[test]
    fn a_name_that_was_made_to_point_here_is_refused() {
        for host in ["evil.example:8787", "127.0.0.1.evil.example:8787", "127.0.0.1:80", "127.0.0.1", ""] {
            assert_eq!(checked(&[("host", host)], None), Err(Refusal::ForeignHost), "{host}");
        }
    }

    #[test]
    fn a_browser_on_another_site_is_refused() {
        let host = ("host", "127.0.0.1:8787");

        assert_eq!(checked(&[host, ("sec-fetch-site", "cross-site")], None), Err(Refusal::CrossSite));
        assert_eq!(checked(&[host, ("origin", "http://evil.example")], None), Err(Refusal::CrossSite));
        assert_eq!(
            checked(&[host, ("origin", "http://127.0.0.1:8787"), ("sec-fetch-site", "same-origin")], None),
            Ok(())
        );
    }

    #[test]
    fn a_link_elsewhere_may_lead_here_but_not_change_anything_or_be_framed() {
        let link = [
            ("host", "127.0.0.1:8787"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let framed = [link[0], link[1], link[2], ("sec-fetch-dest", "iframe")];

        assert_eq!(checked(&link, None), Ok(()));
        assert_eq!(checked_as(Method::POST, &link, None), Err(Refusal::CrossSite));
        assert_eq!(checked(&framed, None), Err(Refusal::CrossSite));
    }

    #[test]
    fn the_token_is_taken_as_bearer_and_as_basic_password() {
        let host = ("host", "outboxd.internal:8787");
        let basic = format!("Basic {}", BASE64_STANDARD.encode("anyone:s3cret"));

        assert_eq!(checked(&[host, ("authorization", "Bearer s3cret")], Some("s3cret")), Ok(()));
        assert_eq!(checked(&[host, ("authorization", &basic)], Some("s3cret")), Ok(()));
        assert_eq!(checked(&[host, ("authorization", "Bearer wrong")], Some("s3cret")), Err(Refusal::Unauthorized));
        assert_eq!(checked(&[host], Some("s3cret")), Err(Refusal::Unauthorized));
    }
}
