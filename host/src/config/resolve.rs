//! From what was written to what is meant: flag, environment, file, default, in this order; all mistakes at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outboxd_core::{Backoff, PAYLOAD_BYTES_MAX_DEFAULT, RetryPolicy};
use secrecy::SecretString;

use super::secret::{ReadSecret, secret, secret_at_hand, secrets};
use super::{Config, MigrateMode, Notify, Pooler, SqliteSynchronous, sandbox, trust};
use crate::plugin::{Pooling, Watch};
use crate::purger::Retention;
use crate::relay::RelayOptions;
use crate::toml_reader::{ConfigError, Reader};

/// What flags and `OUTBOXD_*` variables say; they stand above the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub database: Option<String>,
    pub table: Option<String>,
    pub plugins: Option<PathBuf>,
    pub admin: Option<String>,
}

/// The environment, as a value.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process that are valid UTF-8.
    pub fn of_process() -> Self {
        Environment(
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect(),
        )
    }

    pub fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Environment(variables.into_iter().collect())
    }
}

/// What the configuration is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Running plugins: every secret must have its value.
    Plugins,
    /// Looking at the outbox, trying a plugin: secrets may be absent where a person works.
    Outbox,
}

/// Resolves the configuration. `file` is the text of `outboxd.toml` with the name that errors show; without one, every key
/// has its default.
pub fn resolve(
    file: Option<(&Path, &str)>,
    overrides: Overrides,
    environment: &Environment,
    purpose: Purpose,
) -> Result<Config, Vec<ConfigError>> {
    let reader = match file {
        Some((path, text)) => Reader::parse(&path.display().to_string(), text)?,
        None => Reader::empty("the default configuration"),
    };
    let defaults = RelayOptions::default();

    // Every key of the file is read, also where something stands above it: else it would count as unknown.
    let file_database = secret_or_string(&reader, "database", environment);
    let database =
        overrides.database.or_else(|| environment.get("DATABASE_URL").filter(|url| !url.is_empty())).or(file_database);
    let file_table = reader.string("table");
    let file_plugins = reader.string("plugins").map(PathBuf::from);
    let file_admin = reader.string("admin");
    let admin = admin_address(&reader, overrides.admin.or(file_admin).as_deref().unwrap_or("127.0.0.1:8787"));
    let read_secret: ReadSecret = match purpose {
        Purpose::Plugins => secret,
        Purpose::Outbox => secret_at_hand,
    };
    let admin_token = read_secret(&reader, "admin_token", environment);
    if admin.is_some_and(|address| !address.ip().is_loopback()) && !reader.has("admin_token") {
        reader.error(
            "admin_token",
            "is required where admin is not a loopback address; write { env = \"NAME\" } or { file = \"PATH\" }",
        );
    }

    let relay = reader.section("relay");
    let relay_options = RelayOptions {
        concurrency: integer(&relay, "concurrency", 1..=10_000).unwrap_or(defaults.concurrency),
        poll_interval: positive(&relay, "poll_interval").unwrap_or(defaults.poll_interval),
        lease: positive(&relay, "lease").unwrap_or(defaults.lease),
        grace: relay.duration("grace").unwrap_or(defaults.grace),
        max_lapses: integer(&relay, "max_lapses", 2..=1000).map_or(defaults.max_lapses, |n| n as u32),
        places_per_call: defaults.places_per_call,
    };
    if relay_options.lease < Duration::from_secs(1) {
        relay.error("lease", "must be at least 1s: it is renewed every third of it");
    }
    let notify = if relay.bool("notify").unwrap_or(true) { Notify::On } else { Notify::Off };
    let retry = retry(&reader.section("retry"));

    let retention = reader.section("retention");
    let kept = Retention::default();
    let retention = Retention {
        delivered: retention.duration_or_never("delivered").unwrap_or(kept.delivered),
        dead: retention.duration_or_never("dead").unwrap_or(kept.dead),
    };

    let sandbox_section = reader.section("sandbox");
    let config = Config {
        database: database.unwrap_or_else(|| "sqlite:outbox.db".into()),
        table: overrides.table.or(file_table).unwrap_or_else(|| "outbox".into()),
        plugins: overrides.plugins.or(file_plugins).unwrap_or_else(|| "plugins".into()),
        admin,
        admin_token,
        migrate: match reader.word("migrate", &["auto", "off"]) {
            Some("off") => MigrateMode::Off,
            _ => MigrateMode::Auto,
        },
        pooler: match reader.word("pooler", &["none", "transaction"]) {
            Some("transaction") => Pooler::Transaction,
            _ => Pooler::None,
        },
        listen_database: secret_or_string(&reader, "listen_database", environment),
        sqlite_synchronous: match reader.word("sqlite_synchronous", &["full", "normal"]) {
            Some("normal") => SqliteSynchronous::Normal,
            _ => SqliteSynchronous::Full,
        },
        payload_max: reader.size("payload_max").unwrap_or(PAYLOAD_BYTES_MAX_DEFAULT),
        watch: match reader.word("watch", &["auto", "poll", "off"]) {
            Some("poll") => Watch::Poll,
            Some("off") => Watch::Off,
            _ => Watch::Auto,
        },
        trust: trust::trust(&reader.section("trust")),
        pooling: match reader.word("pooling", &["auto", "on", "off"]) {
            Some("on") => Pooling::On,
            Some("off") => Pooling::Off,
            _ => Pooling::Auto,
        },
        relay: relay_options,
        notify,
        retry,
        retention,
        ceiling: sandbox::ceiling(&sandbox_section),
        roots: sandbox::roots(&sandbox_section),
        secrets: secrets(&reader.section("secrets"), environment, read_secret),
        traces: collector(&reader),
    };
    reader.finish()?;
    Ok(config)
}

/// A URL may hold a password, so it can be given like a secret: `{ env = "…" }`, `{ file = "…" }`, or as itself.
fn secret_or_string(reader: &Reader, key: &str, environment: &Environment) -> Option<String> {
    use secrecy::ExposeSecret;
    if reader.is_table(key) {
        return secret(reader, key, environment).map(|url: SecretString| url.expose_secret().to_owned());
    }
    reader.string(key)
}

fn admin_address(reader: &Reader, text: &str) -> Option<SocketAddr> {
    if text == "off" {
        return None;
    }
    let address = text.parse().ok();
    if address.is_none() {
        reader.error("admin", format!("{text:?} is no address such as \"127.0.0.1:8787\", nor \"off\""));
    }
    address
}

fn collector(reader: &Reader) -> Option<String> {
    let address = reader.string("traces")?;
    if address.contains('@') {
        // Not repeated: what stands before the sign may be a password.
        reader.error("traces", "a collector is told no user and no password: write \"http://HOST:PORT\"");
        return None;
    }
    let uri = address.parse::<http::Uri>().ok();
    if !uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty())) {
        reader.error("traces", format!("{address:?} is no collector's address such as \"http://127.0.0.1:4318\""));
    }
    if !cfg!(feature = "otel") {
        reader.error("traces", "this outboxd was built without its feature \"otel\": remove the key");
    }
    Some(address)
}

fn retry(reader: &Reader) -> RetryPolicy {
    let defaults = RetryPolicy::default();
    let policy = RetryPolicy {
        max_attempts: integer(reader, "max_attempts", 1..=u32::MAX as usize)
            .map_or(defaults.max_attempts, |n| n as u32),
        pause: defaults.pause,
        backoff: Backoff {
            base: positive(reader, "base").unwrap_or(defaults.backoff.base),
            max: positive(reader, "max").unwrap_or(defaults.backoff.max),
            jitter: reader.number("jitter", 0.0..=1.0).unwrap_or(defaults.backoff.jitter),
        },
    };
    if policy.backoff.base > policy.backoff.max {
        reader.error("base", "must not be longer than max");
    }
    policy
}

fn integer(reader: &Reader, key: &str, range: std::ops::RangeInclusive<usize>) -> Option<usize> {
    let number = reader.integer(key, *range.start() as u64..=*range.end() as u64)?;
    usize::try_from(number).ok()
}

fn positive(reader: &Reader, key: &str) -> Option<Duration> {
    let duration = reader.duration(key)?;
    if duration.is_zero() {
        reader.error(key, "must be longer than zero");
    }
    Some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let environment = Environment::from_iter([("KEY".to_owned(), "s3cret-canary".to_owned())]);
        match resolve(Some((Path::new("outboxd.toml"), text)), Overrides::default(), &environment, Purpose::Plugins) {
            Ok(_) => vec![],
            Err(errors) => errors.iter().map(ToString::to_string).collect(),
        }
    }

    fn resolved(text: &str) -> Config {
        resolve(
            Some((Path::new("outboxd.toml"), text)),
            Overrides::default(),
            &Environment::default(),
            Purpose::Plugins,
        )
        .expect("valid")
    }

    #[test]
    fn with_no_configuration_at_all_it_is_an_sqlite_file_and_a_plugins_folder() {
        let config =
            resolve(None, Overrides::default(), &Environment::default(), Purpose::Plugins).expect("defaults are valid");

        assert_eq!(config.database, "sqlite:outbox.db");
        assert_eq!(config.table, "outbox");
        assert_eq!(config.plugins, Path::new("plugins"));
        assert_eq!(config.admin, "127.0.0.1:8787".parse().ok());
        assert_eq!(config.retry.max_attempts, 25);
    }

    #[test]
    fn every_mistake_is_reported_at_once_with_line_and_nearest_key() {
        let errors =
            errors("databse = \"sqlite:a.db\"\n[relay]\nconcurency = 3\nlease = \"soon\"\n[retry]\nmax_attempts = 0\n");

        assert_eq!(errors.len(), 4, "{errors:#?}");
        assert!(errors[0].starts_with("outboxd.toml:1: ") && errors[0].contains("\"database\""), "{errors:#?}");
        assert!(errors[1].starts_with("outboxd.toml:3: ") && errors[1].contains("\"concurrency\""), "{errors:#?}");
        assert!(errors[2].starts_with("outboxd.toml:4: relay.lease: "), "{errors:#?}");
        assert!(errors[3].starts_with("outboxd.toml:6: retry.max_attempts: "), "{errors:#?}");
    }

    #[test]
    fn a_flag_stands_above_the_environment_and_that_above_the_file() {
        let file = Some((Path::new("outboxd.toml"), "database = \"sqlite:file.db\""));
        let environment = Environment::from_iter([("DATABASE_URL".to_owned(), "sqlite:environment.db".to_owned())]);
        let flag = Overrides { database: Some("sqlite:flag.db".into()), ..Overrides::default() };

        let by_flag = resolve(file, flag, &environment, Purpose::Plugins).expect("valid");
        let by_environment = resolve(file, Overrides::default(), &environment, Purpose::Plugins).expect("valid");

        assert_eq!(by_flag.database, "sqlite:flag.db");
        assert_eq!(by_environment.database, "sqlite:environment.db");
    }

    #[test]
    fn a_secret_written_as_itself_is_refused_without_being_shown() {
        let errors = errors("[secrets]\nSHOP_KEY = \"s3cret-canary\"\nOTHER = { env = \"MISSING\" }\n");

        assert_eq!(errors.len(), 2, "{errors:#?}");
        assert!(errors[0].contains("never as itself"), "{errors:#?}");
        assert!(errors.iter().all(|error| !error.contains("s3cret-canary")), "{errors:#?}");
    }

    #[test]
    fn an_empty_secret_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "\n").expect("written");
        let text =
            format!("admin_token = {{ env = \"EMPTY\" }}\n[secrets]\nSHOP_KEY = {{ file = {:?} }}\n", file.path());
        let environment = Environment::from_iter([("EMPTY".to_owned(), String::new())]);
        let file = Some((Path::new("outboxd.toml"), text.as_str()));

        let errors = resolve(file, Overrides::default(), &environment, Purpose::Plugins).expect_err("both are refused");

        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(errors[0].contains("\"EMPTY\" is empty") && errors[1].contains("is empty"), "{errors:#?}");
    }

    #[test]
    fn a_time_that_no_clock_can_hold_is_refused() {
        let errors = errors("[relay]\nlease = \"500000000000y\"\n[retention]\ndead = \"101y\"\n");

        assert_eq!(errors.len(), 2, "{errors:#?}");
        assert!(errors.iter().all(|error| error.contains("100 years")), "{errors:#?}");
    }

    #[test]
    fn no_debug_output_shows_a_secret() {
        let environment = Environment::from_iter([("KEY".to_owned(), "s3cret-canary".to_owned())]);
        let text = "admin_token = { env = \"KEY\" }\n[secrets]\nSHOP_KEY = { env = \"KEY\" }\n";

        let config =
            resolve(Some((Path::new("outboxd.toml"), text)), Overrides::default(), &environment, Purpose::Plugins)
                .expect("valid");

        assert!(!format!("{config:?}").contains("s3cret-canary"));
    }

    #[test]
    fn off_loopback_an_admin_token_is_required() {
        let errors = errors("admin = \"0.0.0.0:8787\"\n");

        assert!(errors.len() == 1 && errors[0].contains("admin_token"), "{errors:#?}");
    }

    #[test]
    fn retention_may_be_never_or_zero() {
        let config = resolved("[retention]\ndelivered = \"0s\"\ndead = \"never\"\n");

        assert_eq!(config.retention, Retention { delivered: Some(Duration::ZERO), dead: None });
    }

    #[test]
    fn who_only_looks_at_the_outbox_needs_no_secrets_and_has_those_at_hand() {
        let text = "admin = \"0.0.0.0:80\"\nadmin_token = { env = \"MISSING\" }\n\
            [secrets]\nSHOP_KEY = { env = \"MISSING\" }\nMAIL_KEY = { env = \"MAIL_KEY\" }\n";
        let file = Some((Path::new("outboxd.toml"), text));
        let environment: Environment = [("MAIL_KEY".to_owned(), "value".to_owned())].into_iter().collect();

        let looking = resolve(file, Overrides::default(), &environment, Purpose::Outbox).expect("valid");
        let running = resolve(file, Overrides::default(), &environment, Purpose::Plugins);

        assert_eq!(looking.secrets.names(), ["MAIL_KEY"]);
        assert!(running.is_err());
    }
}
