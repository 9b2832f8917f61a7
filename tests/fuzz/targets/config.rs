use std::path::Path;
use std::time::Duration;

use outboxd::config::{Environment, Overrides, Purpose, resolve};

use crate::assert_readable;

pub fn try_one(text: &str) {
    // A secret may be read from any file of this machine: /dev/zero would never end.
    if text.contains("file") {
        return;
    }
    let environment: Environment = [("KEY".to_owned(), "a secret".to_owned())].into_iter().collect();
    for purpose in [Purpose::Plugins, Purpose::Outbox] {
        match resolve(Some((Path::new("a.toml"), text)), Overrides::default(), &environment, purpose) {
            Ok(config) => {
                let is_open = config.admin.is_some_and(|address| !address.ip().is_loopback());
                assert!(!is_open || config.admin_token.is_some() || purpose == Purpose::Outbox, "{:?}", config.admin);
                assert!(config.relay.lease >= Duration::from_secs(1) && config.relay.concurrency > 0);
                assert!(config.statement_timeout() < config.relay.lease);
                assert!(config.retry.max_attempts > 0 && config.retry.backoff.base <= config.retry.backoff.max);
            }
            Err(errors) => {
                assert!(!errors.is_empty());
                errors.iter().for_each(|error| assert_readable(&error.to_string()));
            }
        }
    }
}
