//! `[sandbox]`: what no manifest can exceed, and whom plugins' requests trust.

use std::path::PathBuf;

use crate::plugin::egress::{HostPattern, RootsBase, TlsRoots};
use crate::plugin::{Ceiling, networks, peers};
use crate::toml_reader::Reader;

pub(super) fn ceiling(reader: &Reader) -> Ceiling {
    let defaults = Ceiling::default();
    let parse = |text: &String| HostPattern::parse(text).map_err(|why| reader.error("hosts", why)).ok();
    Ceiling {
        hosts: reader.strings("hosts").map_or(defaults.hosts, |hosts| hosts.iter().filter_map(parse).collect()),
        private_networks: networks(reader, "private_networks"),
        tcp: peers(reader),
        memory: reader.size("memory").unwrap_or(defaults.memory),
        cpu: reader.duration("cpu").unwrap_or(defaults.cpu),
        deadline: reader.duration("deadline").unwrap_or(defaults.deadline),
    }
}

pub(super) fn roots(reader: &Reader) -> TlsRoots {
    TlsRoots {
        base: match reader.word("tls_roots", &["webpki", "native"]) {
            Some("native") => RootsBase::Native,
            _ => RootsBase::Webpki,
        },
        extra_ca: reader.strings("extra_ca").unwrap_or_default().into_iter().map(PathBuf::from).collect(),
    }
}
