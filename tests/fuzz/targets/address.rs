use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use outboxd::plugin::egress::{AddressGuard, is_public};

/// Sixteen bytes are an address; its first four are one too, and so is what a translator makes of them.
pub fn try_one(bytes: &[u8]) {
    let Some(&bytes) = bytes.first_chunk::<16>() else { return };
    let [a, b, c, d, ..] = bytes;
    let (v4, v6) = (Ipv4Addr::new(a, b, c, d), Ipv6Addr::from(bytes));
    let [high, low] = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    let clothed = [
        Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, high, low),
        Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
        Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0x2001, 0, 0x0808, 0x0808, 0, 0, !high, !low),
        Ipv6Addr::new(0x2606, 0x4700, 0, 0, 0, 0x5efe, high, low),
    ];
    let admits = |guard: &AddressGuard, ip: IpAddr| guard.check(SocketAddr::new(ip, 443)).is_ok();

    let nothing_granted = AddressGuard::default();
    assert_eq!(admits(&nothing_granted, v4.into()), is_public(v4.into()), "{v4}");
    assert!(!admits(&nothing_granted, v6.into()) || is_public(v6.to_canonical()), "{v6}");
    let own = AddressGuard { refused: vec![SocketAddr::new(v4.into(), 443)], ..AddressGuard::default() };
    assert!(!admits(&own, v4.into()));
    for clothed in clothed {
        let admitted = admits(&nothing_granted, clothed.into());
        assert!(!admitted || is_public(v4.into()), "{clothed} leads to {v4}");
        assert!(!admits(&own, clothed.into()), "{clothed} leads to {v4}, which is the relay's own");
    }

    let granted = AddressGuard { private_networks: vec![IpAddr::from(v4).into()], ..AddressGuard::default() };
    assert!(admits(&granted, v4.into()), "{v4}");
    let next = Ipv4Addr::from(u32::from(v4) ^ 1);
    assert_eq!(admits(&granted, next.into()), is_public(next.into()), "a grant of {v4} says nothing of {next}");
}
