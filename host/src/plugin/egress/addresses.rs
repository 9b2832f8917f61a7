use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use super::destination::{Destination, Host, HostPattern};

/// Decides which addresses a plugin's requests may be sent to, whatever name led there. Pure.
#[derive(Clone, Debug, Default)]
pub struct AddressGuard {
    /// Networks that are not public, and granted all the same.
    pub private_networks: Vec<IpNet>,
    /// Never, whatever is granted: the relay's own listeners and the database.
    pub refused: Vec<SocketAddr>,
    /// Addresses that a grant names literally. They may be reached as written, with that scheme and port; a name that
    /// happens to lead there may not.
    pub literals: Vec<HostPattern>,
}

impl AddressGuard {
    /// Whether a connection may be opened to `address`, which is what `destination` leads to; the text says why not.
    pub fn check_for(&self, destination: &Destination, address: SocketAddr) -> Result<(), String> {
        let is_literal = matches!(destination.host, Host::Ip(_));
        if is_literal && self.literals.iter().any(|pattern| pattern.matches(destination)) {
            return self.check_refused(address);
        }
        self.check(address)
    }

    /// Whether an address that is granted literally may be reached: unless it is the relay's own.
    pub(super) fn check_refused(&self, address: SocketAddr) -> Result<(), String> {
        if faces(address.ip()).into_iter().any(|face| self.is_refused(face, address.port())) {
            return Err(format!("{address} is the relay's own listener or its database"));
        }
        Ok(())
    }

    /// Whether a connection may be opened to `address`, whatever leads there.
    pub fn check(&self, address: SocketAddr) -> Result<(), String> {
        self.check_refused(address)?;
        for face in faces(address.ip()) {
            if !is_public(face) && !self.private_networks.iter().any(|network| network.contains(&face)) {
                return Err(format!("{address} is not a public address, and no private_networks grant holds {face}"));
            }
        }
        Ok(())
    }

    fn is_refused(&self, face: IpAddr, port: u16) -> bool {
        self.refused.iter().filter(|refused| refused.port() == port).any(|refused| {
            let own = refused.ip().to_canonical();
            // A listener on every address of this machine is reached through each that is not public, and through
            // "this host" itself.
            own == face || (own.is_unspecified() && !is_public(face)) || (own.is_loopback() && face.is_unspecified())
        })
    }
}

/// The address itself, and each IPv4 address that a translator on the way would make of it: IPv4-mapped and -compatible,
/// SIIT, NAT64, 6to4, Teredo, ISATAP. All of them must be allowed.
pub fn faces(ip: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(v6) = ip else { return vec![ip] };
    let s = v6.segments();
    let low = v4(s[6], s[7]);
    match s {
        // ::1 and :: are themselves, not "compatible" ones.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => vec![ip],
        // Mapped: the kernel sends these as IPv4, so this is the address.
        [0, 0, 0, 0, 0, 0xffff, ..] => vec![low],
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => vec![ip, low],
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => vec![ip, low],
        [0x2002, high, next, ..] => vec![ip, v4(high, next)],
        // Teredo: the server in clear, the client inverted.
        [0x2001, 0, server, next, ..] => vec![ip, v4(server, next), v4(!s[6], !s[7])],
        [_, _, _, _, 0 | 0x0200, 0x5efe, ..] => vec![ip, low],
        _ => vec![ip],
    }
}

fn v4(high: u16, low: u16) -> IpAddr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// Whether an address belongs to the internet: not to this machine, its networks, or a range set aside.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    !matches!(
        ip.octets(),
        [0 | 10 | 127, ..]                  // this network, private, loopback
        | [100, 64..=127, ..]               // carrier-grade NAT
        | [169, 254, ..]                    // link-local: cloud metadata
        | [172, 16..=31, ..]
        | [192, 0, 0 | 2, _]                // protocol assignments, documentation
        | [192, 88, 99, _]                  // 6to4 relays
        | [192, 168, ..]
        | [198, 18 | 19, ..]                // benchmarks
        | [198, 51, 100, _]
        | [203, 0, 113, _]                  // documentation
        | [224..=255, ..] // multicast, reserved, broadcast
    )
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    match ip.segments() {
        // NAT64's well-known prefix: public if the IPv4 address in it is.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => true,
        [0x2001, 0, ..] => true,           // Teredo, likewise
        [0x2001, 2..=0x01ff, ..] => false, // protocol assignments, benchmarks, ORCHID
        [0x2001, 1, ..] => false,
        [0x2001, 0xdb8, ..] => false,      // documentation
        [0x3fff, 0..=0x0fff, ..] => false, // documentation
        // Global unicast. All else is loopback, unique local, link-local, site-local, multicast or set aside.
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_admitted(guard: &AddressGuard, address: &str) -> bool {
        guard.check(SocketAddr::new(address.parse().expect(address), 443)).is_ok()
    }

    #[test]
    fn nothing_that_is_not_public_is_admitted_in_any_clothing() {
        let guard = AddressGuard::default();
        let private = "0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.1.2.3 169.254.169.254 \
            169.254.0.1 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 \
            198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 \
            :: ::1 ::2 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 \
            64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::10.1.2.3 64:ff9b:1::1 64:ff9b:1::8.8.8.8 2002:7f00:1:: 2002:a9fe:a9fe:: \
            2002:c0a8:101::1 2001:0:7f00:1:: 2001:0:808:808:0:0:80ff:fffe 2001:0:808:808:0:0:5601:5601 2001:db8::1 2001:2::1 \
            2001:10::1 2001:20::1 2001:1::1 3fff::1 fc00::1 fd00:ec2::254 fdff::1 fe80::1 fec0::1 ff02::1 ff0e::1 100::1 \
            4000::1 5f00::1 8000::1 2606:4700::5efe:127.0.0.1 2606:4700::0:5efe:10.0.0.1 2606:4700::200:5efe:192.168.1.1";
        for address in private.split_whitespace() {
            assert!(!is_admitted(&guard, address), "{address} was admitted");
        }
    }

    #[test]
    fn public_addresses_are_admitted() {
        let guard = AddressGuard::default();
        let public = "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1 \
            169.253.255.255 169.255.0.1 172.15.255.255 172.32.0.1 192.0.1.1 192.167.1.1 192.169.1.1 198.17.1.1 198.20.1.1 \
            223.255.255.255 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2606:4700::1111 2a00:1450::1 2002:808:808::1 2001:4860:4860::8888";
        for address in public.split_whitespace() {
            assert!(
                is_admitted(&guard, address),
                "{address} was refused: {:?}",
                guard.check(SocketAddr::new(address.parse().unwrap(), 443))
            );
        }
    }

    #[test]
    fn a_granted_network_is_admitted_in_every_clothing_and_no_other() {
        let guard = AddressGuard { private_networks: vec!["127.0.0.0/8".parse().unwrap()], ..AddressGuard::default() };

        assert!(is_admitted(&guard, "127.0.0.1"));
        assert!(is_admitted(&guard, "::ffff:127.0.0.1"));
        assert!(!is_admitted(&guard, "10.0.0.1"));
        assert!(!is_admitted(&guard, "::1"));
    }

    #[test]
    fn the_relays_own_listener_and_the_database_are_never_admitted() {
        let guard = AddressGuard {
            private_networks: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
            refused: vec![
                "127.0.0.1:443".parse().unwrap(),
                "10.0.0.5:443".parse().unwrap(),
                "[::1]:443".parse().unwrap(),
            ],
            ..AddressGuard::default()
        };

        for address in ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "10.0.0.5", "64:ff9b::10.0.0.5", "::1", "::"] {
            assert!(!is_admitted(&guard, address), "{address}");
        }
        assert!(is_admitted(&guard, "10.0.0.6"));
        assert!(guard.check("127.0.0.1:444".parse().unwrap()).is_ok());
    }

    #[test]
    fn a_listener_on_every_address_is_refused_on_each_of_this_machine() {
        let guard = AddressGuard {
            private_networks: vec!["0.0.0.0/0".parse().unwrap()],
            refused: vec!["0.0.0.0:443".parse().unwrap()],
            ..AddressGuard::default()
        };

        assert!(!is_admitted(&guard, "127.0.0.1"));
        assert!(!is_admitted(&guard, "192.168.1.7"));
    }

    #[test]
    fn an_address_that_is_granted_literally_is_reached_as_written_and_not_by_a_name() {
        let literals = vec![HostPattern::parse("http://127.0.0.1:9000").unwrap()];
        let guard = AddressGuard { literals, ..AddressGuard::default() };
        let reaches = |url: &str, address: &str| {
            let destination = Destination::of(&url.parse().unwrap()).unwrap();
            guard.check_for(&destination, address.parse().unwrap()).is_ok()
        };

        assert!(reaches("http://127.0.0.1:9000/", "127.0.0.1:9000"));
        assert!(!reaches("http://127.0.0.1:9001/", "127.0.0.1:9001"));
        assert!(!reaches("https://127.0.0.1:9000/", "127.0.0.1:9000"));
        assert!(!reaches("http://localhost:9000/", "127.0.0.1:9000"));
    }
}
