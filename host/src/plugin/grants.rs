use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::egress::{AddressGuard, EgressPolicy, HostPattern, TcpPeer, is_public};
use super::engine::MEMORY_BYTES_MAX;

/// What the operator lets one plugin reach: the manifest's `[grants]`. Nothing by default.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    pub hosts: Vec<HostPattern>,
    /// Networks that are not public and may be reached all the same.
    pub private_networks: Vec<IpNet>,
    /// Whom raw TCP connections may be opened to.
    pub tcp: Vec<TcpPeer>,
    /// Of each secret, the destinations that its placeholder may be sent to. None: for signing only.
    pub secrets: BTreeMap<String, Vec<HostPattern>>,
}

/// The `[sandbox]` of outboxd.toml: no manifest grants anything beyond it.
#[derive(Clone, Debug)]
pub struct Ceiling {
    /// Default: every host.
    pub hosts: Vec<HostPattern>,
    /// Default: none.
    pub private_networks: Vec<IpNet>,
    /// Default: none.
    pub tcp: Vec<TcpPeer>,
    /// Bytes; default 256 MiB, which is also the most there is.
    pub memory: u64,
    /// Default 10 s.
    pub cpu: Duration,
    /// Default 5 min.
    pub deadline: Duration,
}

impl Default for Ceiling {
    fn default() -> Self {
        Ceiling {
            hosts: vec![HostPattern::everything()],
            private_networks: vec![],
            tcp: vec![],
            memory: MEMORY_BYTES_MAX,
            cpu: Duration::from_secs(10),
            deadline: Duration::from_secs(300),
        }
    }
}

impl Ceiling {
    /// Whether a manifest may grant these destinations; the text says why not.
    pub(crate) fn admits_host(&self, pattern: &HostPattern) -> Result<(), String> {
        if pattern.is_everything() {
            return Err(
                "a bare \"*\" stands only in [sandbox] of outboxd.toml; write \"https://*\" for any public host".into(),
            );
        }
        if !self.hosts.iter().any(|ceiling| ceiling.covers(pattern)) {
            return Err(format!("{pattern} lies beyond [sandbox] hosts of outboxd.toml"));
        }
        match pattern.literal() {
            Some(ip) if !is_public(ip) && !self.holds(ip) => Err(format!(
                "{ip} is not a public address; to allow it, add \"{}\" to [sandbox] private_networks in outboxd.toml",
                IpNet::from(ip)
            )),
            _ => Ok(()),
        }
    }

    /// Whether a manifest may grant this network.
    pub(crate) fn admits_network(&self, network: &IpNet) -> Result<(), String> {
        if self.private_networks.iter().any(|ceiling| ceiling.contains(network)) {
            return Ok(());
        }
        Err(format!("{network} lies beyond [sandbox] private_networks of outboxd.toml"))
    }

    /// Whether a manifest may grant raw TCP to this peer.
    pub(crate) fn admits_tcp(&self, peer: &TcpPeer) -> Result<(), String> {
        if self.tcp.contains(peer) {
            return Ok(());
        }
        Err(format!("{peer} lies beyond [sandbox] tcp of outboxd.toml; to allow it, add \"{peer}\" there"))
    }

    fn holds(&self, ip: IpAddr) -> bool {
        self.private_networks.iter().any(|network| network.contains(&ip))
    }
}

impl Grants {
    /// The pure part of the guard.
    pub(crate) fn policy(&self) -> EgressPolicy {
        EgressPolicy { hosts: self.hosts.clone(), secrets: self.secrets.clone(), tcp: self.tcp.clone() }
    }

    /// The part that looks at addresses. An address that is granted literally needs no network beside it.
    pub(crate) fn guard(&self, refused: &[std::net::SocketAddr]) -> AddressGuard {
        let literals = self.hosts.iter().filter(|pattern| pattern.literal().is_some()).cloned().collect();
        AddressGuard { private_networks: self.private_networks.clone(), refused: refused.to_vec(), literals }
    }
}
