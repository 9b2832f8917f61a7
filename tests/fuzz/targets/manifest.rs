use std::time::Duration;

use outboxd::plugin::egress::{HostPattern, is_public};
use outboxd::plugin::{Ceiling, Manifest};
use outboxd_core::RetryPolicy;

use crate::assert_readable;

pub fn try_one(text: &str) {
    let ceiling = Ceiling {
        hosts: ["https://*", "http://*.example.net:*", "http://127.0.0.1:*"].map(pattern).to_vec(),
        private_networks: vec!["127.0.0.0/8".parse().expect("a network")],
        tcp: Vec::new(),
        memory: 32 << 20,
        cpu: Duration::from_secs(1),
        deadline: Duration::from_secs(20),
    };
    match Manifest::parse("a.toml", text, "a", &ceiling, &RetryPolicy::default()) {
        Ok(manifest) => {
            assert!(!manifest.topics.is_empty());
            let (limits, grants) = (manifest.limits, manifest.grants);
            assert!(
                limits.memory <= ceiling.memory && limits.cpu <= ceiling.cpu && limits.deadline <= ceiling.deadline
            );
            for host in &grants.hosts {
                assert!(ceiling.hosts.iter().any(|ceiling| ceiling.covers(host)), "{host}");
                assert!(host.literal().is_none_or(|ip| is_public(ip) || ip.is_loopback()), "{host}");
            }
            for bound in grants.secrets.values().flatten() {
                assert!(grants.hosts.iter().any(|host| host.covers(bound)), "a secret may go to {bound}");
            }
            for network in &grants.private_networks {
                assert!(ceiling.private_networks.iter().any(|ceiling| ceiling.contains(network)), "{network}");
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            errors.iter().for_each(|error| assert_readable(&error.to_string()));
        }
    }
}

fn pattern(text: &str) -> HostPattern {
    HostPattern::parse(text).expect(text)
}
