use http::{Method, Uri};
use outboxd::plugin::egress::{Destination, Host, HostPattern};
use outboxd::plugin::fuzzing::admitted;

use crate::assert_readable;

/// Whatever is admitted, browsers and proxies read the same host and port in it (WHATWG's URL standard).
pub fn try_one(text: &str) {
    let granted = ["https://*", "http://*.example.net:*", "http://10.0.0.7:8080", "http://[fd00::7]"];
    let granted = granted.map(|text| HostPattern::parse(text).expect(text));
    let Ok(uri) = text.parse::<Uri>() else { return };
    let destination = match admitted(&granted, &Method::POST, &uri) {
        Ok(destination) => destination,
        Err(error) => return assert_readable(&error),
    };
    assert!(granted.iter().any(|pattern| pattern.matches(&destination)), "{text:?}");
    let shown: Uri = destination.to_string().parse().expect("what is shown is a URL");
    assert_eq!(Destination::of(&shown).as_ref(), Ok(&destination), "a destination is what it shows");

    // It refuses some names that are never resolved by anybody, such as a wrong `xn--`.
    let Ok(others) = url::Url::parse(text) else { return };
    let host = match others.host() {
        Some(url::Host::Domain(name)) => Host::Name(name.to_owned()),
        Some(url::Host::Ipv4(ip)) => Host::Ip(ip.into()),
        Some(url::Host::Ipv6(ip)) => Host::Ip(ip.into()),
        None => panic!("{text:?} names no host to others"),
    };
    assert_eq!((&host, others.port_or_known_default()), (&destination.host, Some(destination.port)), "{text:?}");
    assert!(others.username().is_empty() && others.password().is_none(), "{text:?}");
}
