use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::{Method, Uri};
use outboxd_core::Target;
use tokio_util::task::AbortOnDropHandle;

use super::call::{CallEgress, lock};
use super::connector::ADDRESSES_MAX;
use super::destination::{Host, parse_port, split_port};
use super::error::EgressError;
use super::sender::Transport;
use super::target::{Awaited, Connected, is_to_blame};

/// Whom a raw TCP connection may be opened to: one host and one port, as in `redis.internal:6379`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpPeer {
    host: Host,
    port: u16,
}

impl TcpPeer {
    /// Reads one entry of `tcp`. There are no patterns: raw bytes are granted to one peer at a time.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = "write it as \"host:port\"";
        if text.contains("://") {
            return Err(format!("{text:?} has a scheme; {wanted}"));
        }
        let (host, port) = split_port(text)?;
        let port = port.ok_or_else(|| format!("{text:?} names no port; {wanted}"))?;
        Ok(TcpPeer { host: Host::parse(host)?, port: parse_port(port)? })
    }

    fn is_named(&self, name: &str) -> bool {
        matches!(&self.host, Host::Name(own) if own == name)
    }
}

impl fmt::Display for TcpPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A look-up under way, in a task of its own. Dropped, it ends.
pub(crate) type LookUp = AbortOnDropHandle<Result<Vec<IpAddr>, EgressError>>;

impl CallEgress {
    pub(crate) fn grants_tcp(&self) -> bool {
        !self.egress.policy.tcp.is_empty()
    }

    /// Whether the plugin may open sockets at all.
    pub(crate) fn admit_socket(&self) -> Result<(), EgressError> {
        let denied = |why: &str| Err(EgressError::Denied(why.into()));
        let admitted = match self.egress.transport {
            _ if !self.grants_tcp() => {
                denied("no TCP is granted; to allow it, add \"host:port\" to [grants] tcp of the plugin's manifest")
            }
            Transport::Script(_) => denied("a golden message plays HTTP, and no TCP"),
            Transport::Network(_) => Ok(()),
        };
        admitted.inspect_err(|error| self.note(error))
    }

    /// Begins to look a granted name up. Another name is not asked for: a question is a message too.
    pub(crate) fn look_up(&self, name: &str) -> Result<LookUp, EgressError> {
        self.admit_socket()?;
        let host = Host::parse(name).map_err(|why| self.noted(EgressError::Denied(why)))?;
        if let Host::Name(name) = &host {
            if !self.egress.policy.tcp.iter().any(|peer| peer.is_named(name)) {
                return Err(self.noted(not_granted(name)));
            }
            self.spend().map_err(|error| self.noted(error))?;
        }
        let (call, awaited) = (self.clone(), Awaited::new(&self.sight));
        Ok(AbortOnDropHandle::new(tokio::spawn(async move {
            let found = call.addresses_of(host).await.inspect_err(|error| call.note_connection(Err(error)));
            awaited.end(Target::Unseen);
            found
        })))
    }

    /// What a granted name leads to. One address that is refused refuses the name, as for requests.
    async fn addresses_of(&self, host: Host) -> Result<Vec<IpAddr>, EgressError> {
        let connector = &self.egress.connector;
        let mut ips = connector.resolve(&host).await?;
        let Host::Name(name) = host else { return Ok(ips) };
        for peer in self.egress.policy.tcp.iter().filter(|peer| peer.is_named(&name)) {
            for ip in &ips {
                let checked = connector.guard.check(SocketAddr::new(*ip, peer.port));
                checked.map_err(|why| EgressError::Denied(format!("{peer}: {why}")))?;
            }
        }
        ips.truncate(ADDRESSES_MAX);
        for ip in &mut ips {
            *ip = ip.to_canonical();
        }
        lock(&self.looked_up).insert(name, ips.clone());
        Ok(ips)
    }

    /// Whether this call may open a connection to `address`: it is granted as it stands, or this call has looked it up under
    /// a name that is.
    pub(crate) fn admit_connection(&self, address: SocketAddr) -> Result<(), EgressError> {
        let admitted = self.try_admit_connection(address).inspect_err(|error| self.note(error));
        if let Some(exchanges) = &self.egress.exchanges
            && let Ok(uri) = address.to_string().parse::<Uri>()
        {
            let said = admitted.as_ref().map_or_else(ToString::to_string, |()| "allowed".into());
            exchanges.begin(&Method::CONNECT, &uri).end(said);
        }
        if admitted.is_ok() {
            // Until it has come about: the call may end before.
            lock(&self.sight).tried_tcp(Connected::No);
        }
        admitted
    }

    fn try_admit_connection(&self, address: SocketAddr) -> Result<(), EgressError> {
        self.admit_socket()?;
        let (ip, guard) = (address.ip().to_canonical(), &self.egress.connector.guard);
        let peers = self.egress.policy.tcp.iter().filter(|peer| peer.port == address.port());
        let checked = {
            let looked_up = lock(&self.looked_up);
            let leads_here = |peer: &TcpPeer| match &peer.host {
                Host::Ip(literal) => literal.to_canonical() == ip,
                Host::Name(name) => looked_up.get(name).is_some_and(|ips| ips.contains(&ip)),
            };
            let peer = peers.into_iter().find(|peer| leads_here(peer)).ok_or_else(|| not_granted(address))?;
            // An address that is granted literally needs no network beside it.
            match peer.host {
                Host::Ip(_) => guard.check_refused(address),
                Host::Name(_) => guard.check(address),
            }
        };
        checked.map_err(EgressError::Denied)?;
        self.spend()
    }

    /// A granted connection came about, or why it or its look-up did not.
    pub(crate) fn note_connection(&self, tried: Result<(), &EgressError>) {
        match tried {
            Ok(()) => lock(&self.sight).tried_tcp(Connected::Yes),
            Err(error) => {
                if is_to_blame(error) {
                    lock(&self.sight).tried_tcp(Connected::No);
                }
                self.remember(error);
            }
        }
    }

    fn noted(&self, error: EgressError) -> EgressError {
        self.note(&error);
        error
    }
}

fn not_granted(what: impl fmt::Display) -> EgressError {
    let what = outboxd_core::safe_text(&what.to_string(), 200);
    EgressError::Denied(format!(
        "TCP to {what} is not granted; to allow it, add \"host:port\" to [grants] tcp of the plugin's manifest"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_one_host_and_one_port() {
        for text in ["redis.internal:6379", "10.0.0.7:4222", "[::1]:6379", "xn--bcher-kva.example:1"] {
            assert_eq!(TcpPeer::parse(text).map(|peer| peer.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(TcpPeer::parse("REDIS:6379").unwrap().to_string(), "redis:6379");
    }

    #[test]
    fn no_odd_form_of_a_peer_is_read() {
        for text in [
            "",
            ":",
            ":6379",
            "redis",
            "redis:",
            "redis:0",
            "redis:65536",
            "redis:+1",
            "redis:6379x",
            "redis:6379:6379",
            "redis://redis:6379",
            "tcp://redis:6379",
            "//redis:6379",
            "u@redis:6379",
            "redis:6379/0",
            "*:6379",
            "*.internal:6379",
            "redis:*",
            "127.1:6379",
            "0x7f.0.0.1:6379",
            "2130706433:6379",
            "0177.0.0.1:6379",
            "::1:6379",
            "[::1]6379",
            "[::1",
            "[127.0.0.1]:6379",
            "[fe80::1%25eth0]:6379",
            "redis .internal:6379",
            "redis\t:6379",
            "redis.:6379",
            "..:6379",
            "redis:６３７９",
            "ｒedis:6379",
            "127.0.0.1\u{3002}1:6379",
            "redis:6379 ",
        ] {
            assert!(TcpPeer::parse(text).is_err(), "{text:?} was read");
        }
    }
}
