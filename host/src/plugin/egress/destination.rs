use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What may follow `http` in a granted URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn parse(text: &str) -> Option<Scheme> {
        match text {
            "http" => Some(Scheme::Http),
            "https" => Some(Scheme::Https),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// A host as it stands in a URL: a name in lower case, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    Name(String),
    Ip(IpAddr),
}

impl Host {
    /// Reads a host strictly: ASCII names, dotted-quad IPv4, bracketed IPv6. What some resolver might read as an address
    /// (`127.1`, `0x7f.1`, `2130706433`, `0177.0.0.1`) is refused rather than guessed at.
    pub fn parse(text: &str) -> Result<Host, String> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(|| format!("{text:?} lacks its closing bracket"))?;
            let ip: Ipv6Addr = inner.parse().map_err(|_| format!("{text:?} is no IPv6 address"))?;
            return Ok(Host::Ip(IpAddr::V6(ip)));
        }
        let name = text.to_ascii_lowercase();
        if name.is_empty() || name.len() > 253 {
            return Err(format!("a host has 1 to 253 characters, not {}", name.len()));
        }
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
        };
        if !name.split('.').all(is_label) {
            return Err(format!(
                "{text:?} is no host name: letters, digits, \"-\", \"_\" and single dots between them"
            ));
        }
        let last = name.rsplit('.').next().unwrap_or_default();
        let looks_numeric = last.bytes().all(|b| b.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        if looks_numeric {
            let ip: Ipv4Addr = name
                .parse()
                .map_err(|_| format!("{text:?} is an odd form of an address; write it as four decimal numbers"))?;
            return Ok(Host::Ip(IpAddr::V4(ip)));
        }
        Ok(Host::Name(name))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
        }
    }
}

/// Where a request goes: read from the authority of its URL and from nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
}

impl Destination {
    /// Reads the destination of a URI; the text says what is wrong with it.
    pub fn of(uri: &http::Uri) -> Result<Destination, String> {
        let scheme = uri.scheme_str().unwrap_or_default();
        let scheme = Scheme::parse(scheme).ok_or_else(|| format!("scheme {scheme:?} is neither http nor https"))?;
        let authority = uri.authority().ok_or("the URL names no host")?.as_str();
        if authority.contains('@') {
            return Err("a URL with user or password in it is refused; use a header".into());
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            None => scheme.default_port(),
            Some(digits) => parse_port(digits)?,
        };
        Ok(Destination { scheme, host: Host::parse(host)?, port })
    }
}

/// `https://host` where the port is the scheme's own, else `https://host:port`.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.host)?;
        if self.port == self.scheme.default_port() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

pub(super) fn split_port(authority: &str) -> Result<(&str, Option<&str>), String> {
    let host_end = match authority.strip_prefix('[') {
        Some(_) => {
            authority.find(']').map(|at| at + 1).ok_or_else(|| format!("{authority:?} lacks its closing bracket"))?
        }
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(host_end);
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, Some(port))),
        None if rest.is_empty() => Ok((host, None)),
        None => Err(format!("{authority:?} is no host and port")),
    }
}

pub(super) fn parse_port(digits: &str) -> Result<u16, String> {
    let plain = (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    digits
        .parse()
        .ok()
        .filter(|port| plain && *port > 0)
        .ok_or_else(|| format!("{digits:?} is no port from 1 to 65535"))
}

/// Which destinations a grant means: `https://hooks.example.com`, `https://*.example.net:8443`, `http://10.0.0.7:8080`,
/// `https://*` (any host that is public), `https://example.com:*` (any port). A bare `*` is everything, and stands only in
/// the operator's ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    scheme: Option<Scheme>,
    host: HostMatch,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostMatch {
    Any,
    /// What follows the star, with its dot: `.example.net`. At least one label stands before it.
    Suffix(String),
    Exact(Host),
}

impl HostPattern {
    /// Everything: any scheme, any host, any port.
    pub fn everything() -> Self {
        HostPattern { scheme: None, host: HostMatch::Any, port: None }
    }

    /// Reads one entry of `hosts`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(HostPattern::everything());
        }
        let wanted = "write it as \"https://host\" or \"https://host:port\"";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("{text:?} has no scheme; {wanted}"))?;
        let scheme =
            Scheme::parse(scheme).ok_or_else(|| format!("{text:?}: scheme {scheme:?} is neither http nor https"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@', '\\']) {
            return Err(format!("{text:?} has more than a host and a port; {wanted}"));
        }
        let (host, port) = split_port(rest)?;
        let port = match port {
            None => Some(scheme.default_port()),
            Some("*") => None,
            Some(digits) => Some(parse_port(digits)?),
        };
        let host = match host.strip_prefix('*') {
            Some("") => HostMatch::Any,
            Some(suffix) if suffix.starts_with('.') => match Host::parse(&suffix[1..])? {
                Host::Name(name) => HostMatch::Suffix(format!(".{name}")),
                Host::Ip(_) => return Err(format!("{text:?}: an address has no subdomains")),
            },
            Some(_) => return Err(format!("{text:?}: \"*\" stands for whole labels, as in \"*.example.com\"")),
            None => HostMatch::Exact(Host::parse(host)?),
        };
        Ok(HostPattern { scheme: Some(scheme), host, port })
    }

    pub fn is_everything(&self) -> bool {
        *self == HostPattern::everything()
    }

    /// The address, where the pattern is one literal address.
    pub fn literal(&self) -> Option<IpAddr> {
        match self.host {
            HostMatch::Exact(Host::Ip(ip)) => Some(ip),
            _ => None,
        }
    }

    pub fn matches(&self, destination: &Destination) -> bool {
        let host = match (&self.host, &destination.host) {
            (HostMatch::Any, _) => true,
            (HostMatch::Suffix(suffix), Host::Name(name)) => name.ends_with(suffix.as_str()),
            (HostMatch::Suffix(_), Host::Ip(_)) => false,
            (HostMatch::Exact(wanted), host) => wanted == host,
        };
        host && self.scheme.is_none_or(|scheme| scheme == destination.scheme)
            && self.port.is_none_or(|port| port == destination.port)
    }

    /// Whether everything that `other` matches is matched by this too.
    pub fn covers(&self, other: &HostPattern) -> bool {
        let host = match (&self.host, &other.host) {
            (HostMatch::Any, _) => true,
            (HostMatch::Suffix(wide), HostMatch::Suffix(narrow)) => narrow.ends_with(wide.as_str()),
            (HostMatch::Suffix(suffix), HostMatch::Exact(Host::Name(name))) => name.ends_with(suffix.as_str()),
            (HostMatch::Exact(a), HostMatch::Exact(b)) => a == b,
            _ => false,
        };
        host && self.scheme.is_none_or(|scheme| other.scheme == Some(scheme))
            && self.port.is_none_or(|port| other.port == Some(port))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(scheme) = self.scheme else { return f.write_str("*") };
        write!(f, "{}://", scheme.as_str())?;
        match &self.host {
            HostMatch::Any => f.write_str("*")?,
            HostMatch::Suffix(suffix) => write!(f, "*{suffix}")?,
            HostMatch::Exact(host) => write!(f, "{host}")?,
        }
        match self.port {
            None => f.write_str(":*"),
            Some(port) if port == scheme.default_port() => Ok(()),
            Some(port) => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        HostPattern::parse(text).expect(text)
    }

    fn destination(url: &str) -> Destination {
        Destination::of(&url.parse().expect(url)).expect(url)
    }

    #[test]
    fn a_pattern_matches_its_scheme_host_and_port_and_no_other() {
        let granted = pattern("https://hooks.example.com");

        assert!(granted.matches(&destination("https://HOOKS.example.com/a?b")));
        assert!(granted.matches(&destination("https://hooks.example.com:443/")));
        for other in [
            "http://hooks.example.com",
            "https://hooks.example.com:8443",
            "https://example.com",
            "https://a.hooks.example.com",
        ] {
            assert!(!granted.matches(&destination(other)), "{other}");
        }
    }

    #[test]
    fn a_star_stands_for_at_least_one_label() {
        let granted = pattern("https://*.example.net:8443");

        assert!(granted.matches(&destination("https://a.example.net:8443")));
        assert!(granted.matches(&destination("https://a.b.example.net:8443")));
        assert!(!granted.matches(&destination("https://example.net:8443")));
        assert!(!granted.matches(&destination("https://evilexample.net:8443")));
    }

    #[test]
    fn a_pattern_shows_itself_as_it_was_written() {
        for text in [
            "*",
            "https://*",
            "https://*:*",
            "http://a.b:8080",
            "https://*.example.net:8443",
            "http://[::1]:80",
            "http://127.0.0.1:9000",
        ] {
            let shown = pattern(text).to_string();
            assert_eq!(shown, text.replace("[::1]:80", "[::1]"));
        }
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for text in [
            "",
            "example.com",
            "https://",
            "https://a*.com",
            "https://*a.com",
            "ftp://a",
            "https://a/b",
            "https://u@a",
            "https://a:0",
            "https://a:99999",
            "https://*.1.2.3.4",
            "https://a..b",
            "https://a.",
            "*.example.com",
            "https://**",
            "https://a:+80",
            "https://[::1",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn a_ceiling_covers_what_lies_within_it() {
        assert!(pattern("*").covers(&pattern("http://10.0.0.1:9")));
        assert!(pattern("https://*").covers(&pattern("https://a.example.com")));
        assert!(!pattern("https://*").covers(&pattern("http://a.example.com")));
        assert!(!pattern("https://*").covers(&pattern("https://a.example.com:8443")));
        assert!(pattern("https://*.example.com").covers(&pattern("https://*.eu.example.com")));
        assert!(!pattern("https://*.example.com").covers(&pattern("https://*")));
        assert!(!pattern("https://a.example.com").covers(&pattern("*")));
        assert!(pattern("https://a:*").covers(&pattern("https://a:8443")));
        assert!(!pattern("https://a").covers(&pattern("https://a:*")));
    }
}
