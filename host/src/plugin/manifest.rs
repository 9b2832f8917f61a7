mod order;

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use outboxd_core::{Backoff, Order, Rate, RetryPolicy, TopicPattern};

use super::egress::{HostPattern, TcpPeer};
use super::engine::MEMORY_BYTES_MAX;
use super::grants::{Ceiling, Grants};
use super::limits::Limits;
use super::rollout::Rollout;
use crate::toml_reader::{ConfigError, Reader};

/// What is linked for a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// All of WASI 0.2, with nothing in it: what language runtimes need to load.
    #[default]
    Std,
    /// The contract, clocks, random numbers and stdio; no files, sockets, environment or exit even in name.
    Minimal,
}

/// `NAME.toml` beside `NAME.wasm`, as meant. Without a file: the topic `NAME`, and nothing granted.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub topics: Vec<TopicPattern>,
    pub profile: Profile,
    pub grants: Grants,
    pub limits: Limits,
    /// How many calls may run at once, where the manifest says so.
    pub concurrency: Option<usize>,
    pub retry: RetryPolicy,
    /// How messages of one key follow each other.
    pub order: Order,
    /// What lies at least between the beginnings of two calls of a key: `limits.per_key_rate`. Default: nothing.
    pub spacing: Duration,
    /// How many calls one relay begins, at most: `limits.rate`. Default: as many as it can.
    pub rate: Option<Rate>,
    /// How many messages one instance serves. Default 1: a fresh instance for each.
    pub reuse: u32,
    /// How a new version takes over.
    pub rollout: Rollout,
    /// What `wasi:config/store` answers.
    pub settings: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads a manifest, bounded by `ceiling`. `file` is the name that errors show, `stem` the plugin's name.
    pub fn parse(
        file: &str,
        text: &str,
        stem: &str,
        ceiling: &Ceiling,
        default_retry: &RetryPolicy,
    ) -> Result<Manifest, Vec<ConfigError>> {
        Manifest::read(&Reader::parse(file, text)?, stem, ceiling, default_retry)
    }

    /// The topic of a message that names none: the first whole one, else the plugin's name.
    pub fn default_topic<'a>(&'a self, name: &'a str) -> &'a str {
        let whole = self.topics.iter().find_map(|topic| match topic {
            TopicPattern::Exact(topic) => Some(topic.as_str()),
            TopicPattern::Prefix(_) => None,
        });
        whole.unwrap_or(name)
    }

    fn read(
        reader: &Reader,
        stem: &str,
        ceiling: &Ceiling,
        default_retry: &RetryPolicy,
    ) -> Result<Manifest, Vec<ConfigError>> {
        let profile = match reader.word("profile", &["std", "minimal"]) {
            Some("minimal") => Profile::Minimal,
            _ => Profile::Std,
        };
        let manifest = Manifest {
            topics: topics(reader, stem),
            profile,
            grants: grants(&reader.section("grants"), ceiling, profile),
            concurrency: reader.section("limits").integer("concurrency", 1..=1000).map(|number| number as usize),
            limits: limits(&reader.section("limits"), ceiling),
            retry: retry(&reader.section("retry"), default_retry),
            order: order::order(reader, &reader.section("limits")),
            spacing: order::spacing(&reader.section("limits")),
            rate: order::rate(&reader.section("limits")),
            reuse: reader.section("instances").integer("reuse", 1..=1_000_000).map_or(1, |number| number as u32),
            rollout: rollout(&reader.section("rollout")),
            settings: reader.map("settings").unwrap_or_default(),
        };
        reader.finish()?;
        Ok(manifest)
    }
}

/// A manifest names no more: each is compared with every other.
const TOPICS_MAX: usize = 100;

fn topics(reader: &Reader, stem: &str) -> Vec<TopicPattern> {
    let Some(names) = reader.strings("topics") else { return vec![TopicPattern::Exact(stem.into())] };
    let mut topics: Vec<TopicPattern> = vec![];
    if names.is_empty() {
        reader.error("topics", "names no topic; leave it out for the topic of the file's name");
    }
    if names.len() > TOPICS_MAX {
        reader.error("topics", format!("names {} topics; at most {TOPICS_MAX} fit, use \"prefix.*\"", names.len()));
        return topics;
    }
    for name in names {
        match TopicPattern::parse(&name) {
            Err(why) => reader.error("topics", why),
            Ok(topic) => match topics.iter().find(|other| other.overlaps(&topic)) {
                Some(other) => reader.error("topics", format!("\"{topic}\" and \"{other}\" overlap; keep one")),
                None => topics.push(topic),
            },
        }
    }
    topics
}

fn grants(reader: &Reader, ceiling: &Ceiling, profile: Profile) -> Grants {
    let private_networks = networks(reader, "private_networks");
    for network in &private_networks {
        note(reader, "private_networks", ceiling.admits_network(network));
    }
    let mut hosts = patterns(reader, "hosts", reader.strings("hosts").unwrap_or_default());
    hosts.retain(|pattern| ceiling.admits_host(pattern).map_err(|why| reader.error("hosts", why)).is_ok());
    let mut tcp = peers(reader);
    tcp.retain(|peer| ceiling.admits_tcp(peer).map_err(|why| reader.error("tcp", why)).is_ok());
    if profile == Profile::Minimal && !tcp.is_empty() {
        reader.error("tcp", "the profile \"minimal\" has no sockets; leave `profile` out");
    }
    let bound = reader.lists("secrets").unwrap_or_default();
    let secrets = bound.into_iter().map(|(name, names)| {
        let patterns = patterns(reader, "secrets", names);
        for pattern in &patterns {
            if !hosts.iter().any(|host| host.covers(pattern)) {
                reader.error("secrets", format!("{name:?} is bound to {pattern}, which grants.hosts does not hold"));
            }
        }
        (name, patterns)
    });
    let secrets = secrets.collect();
    Grants { hosts, private_networks, tcp, secrets }
}

fn patterns(reader: &Reader, key: &str, texts: Vec<String>) -> Vec<HostPattern> {
    let parse = |text: &String| HostPattern::parse(text).map_err(|why| reader.error(key, why)).ok();
    texts.iter().filter_map(parse).collect()
}

/// A list of peers for raw TCP: `redis.internal:6379`, `10.0.0.7:4222`.
pub fn peers(reader: &Reader) -> Vec<TcpPeer> {
    let parse = |text: &String| TcpPeer::parse(text).map_err(|why| reader.error("tcp", why)).ok();
    reader.strings("tcp").unwrap_or_default().iter().filter_map(parse).collect()
}

/// A list of networks: `10.0.0.0/8`, `fd00::/8`, or single addresses.
pub fn networks(reader: &Reader, key: &str) -> Vec<IpNet> {
    let parse = |text: &String| {
        let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from));
        if network.is_none() {
            reader.error(key, format!("{text:?} is no network such as \"10.0.0.0/8\" or \"127.0.0.1\""));
        }
        network.map(|network| network.trunc())
    };
    reader.strings(key).unwrap_or_default().iter().filter_map(parse).collect()
}

fn limits(reader: &Reader, ceiling: &Ceiling) -> Limits {
    let mut limits = Limits::default();
    // A ceiling below a default lowers the default too.
    limits.memory = limits.memory.min(ceiling.memory);
    limits.cpu = limits.cpu.min(ceiling.cpu);
    limits.deadline = limits.deadline.min(ceiling.deadline);
    if let Some(memory) = reader.size("memory") {
        let max = ceiling.memory.min(MEMORY_BYTES_MAX);
        let within = memory >= 64 << 10 && memory <= max;
        let range = format!("must lie between 64KiB and [sandbox] memory, {} MiB", max >> 20);
        note(reader, "memory", if within { Ok(()) } else { Err(range) });
        limits.memory = memory.min(max);
    }
    limits.cpu = bounded_time(reader, "cpu", ceiling.cpu, limits.cpu);
    limits.deadline = bounded_time(reader, "deadline", ceiling.deadline, limits.deadline);
    let count =
        |key: &str, max: u64, default: u32| reader.integer(key, 0..=max).map_or(default, |number| number as u32);
    limits.requests = count("requests", 10_000, limits.requests);
    limits.requests_at_once = count("requests_at_once", 64, limits.requests_at_once);
    limits.log_lines = count("log_lines", 100_000, limits.log_lines);
    let size = |key: &str, max: u64, default: u64| match reader.size(key) {
        Some(size) if size > max => {
            reader.error(key, format!("at most {} MiB", max >> 20));
            default
        }
        Some(size) => size,
        None => default,
    };
    limits.upload = size("upload", 256 << 20, limits.upload);
    limits.download = size("download", 256 << 20, limits.download);
    limits.log_bytes = size("log_bytes", 16 << 20, limits.log_bytes);
    limits
}

fn bounded_time(reader: &Reader, key: &str, ceiling: Duration, default: Duration) -> Duration {
    let Some(time) = reader.duration(key) else { return default };
    if time < Duration::from_millis(1) || time > ceiling {
        let ceiling = humantime::format_duration(ceiling);
        reader.error(key, format!("must lie between 1ms and [sandbox] {key}, {ceiling}"));
    }
    time.min(ceiling)
}

fn retry(reader: &Reader, default: &RetryPolicy) -> RetryPolicy {
    let backoff = Backoff {
        base: reader.duration("base").unwrap_or(default.backoff.base),
        max: reader.duration("max").unwrap_or(default.backoff.max),
        jitter: reader.number("jitter", 0.0..=1.0).unwrap_or(default.backoff.jitter),
    };
    if backoff.base > backoff.max {
        reader.error("base", "the first wait is longer than the longest, retry.max");
    }
    let max_attempts =
        reader.integer("max_attempts", 1..=1_000_000).map_or(default.max_attempts, |number| number as u32);
    RetryPolicy { max_attempts, backoff, ..default.clone() }
}

fn rollout(reader: &Reader) -> Rollout {
    let default = Rollout::default();
    Rollout {
        canary: reader.number("canary", 0.0..=1.0).unwrap_or(default.canary),
        calls: reader.integer("calls", 1..=1_000_000).unwrap_or(default.calls),
        faults: reader.number("faults", 0.0..=1.0).unwrap_or(default.faults),
    }
}

fn note(reader: &Reader, key: &str, checked: Result<(), String>) {
    if let Err(why) = checked {
        reader.error(key, why);
    }
}

#[cfg(test)]
mod tests {
    use outboxd_core::OnDead;

    use super::*;

    fn parse_under(ceiling: &Ceiling, text: &str) -> Result<Manifest, Vec<String>> {
        Manifest::parse("shop.toml", text, "shop", ceiling, &RetryPolicy::default())
            .map_err(|errors| errors.iter().map(ConfigError::to_string).collect())
    }

    pub(super) fn parse(text: &str) -> Result<Manifest, Vec<String>> {
        parse_under(&Ceiling::default(), text)
    }

    #[test]
    fn without_a_manifest_a_plugin_handles_its_name_and_reaches_nothing() {
        let manifest = parse("").unwrap();

        assert_eq!(manifest.topics, [TopicPattern::Exact("shop".into())]);
        assert!(manifest.grants.hosts.is_empty() && manifest.grants.secrets.is_empty());
        assert_eq!(manifest.limits, Limits::default());
        assert_eq!(manifest.reuse, 1);
    }

    #[test]
    fn every_key_of_the_manual_is_read() {
        let manifest = parse(
            r#"
            topics = ["orders.*", "invoice.paid"]
            profile = "minimal"
            ordered = true
            on_dead = "skip"
            [grants]
            hosts = ["https://hooks.example.com", "https://*.example.net:8443"]
            private_networks = []
            tcp = []
            [grants.secrets]
            SHOP_KEY = ["https://hooks.example.com"]
            SIGN_ONLY = []
            [limits]
            concurrency = 16
            rate = "100/s"
            per_key_rate = "5/s"
            memory = "128MiB"
            cpu = "2s"
            deadline = "30s"
            requests = 3
            requests_at_once = 2
            upload = "1MiB"
            download = "2MiB"
            log_bytes = "1KiB"
            log_lines = 5
            [retry]
            max_attempts = 20
            base = "2s"
            max = "1m"
            jitter = 0.5
            [instances]
            reuse = 10
            [rollout]
            canary = 0.1
            calls = 50
            faults = 0.2
            [settings]
            url = "https://hooks.example.com/orders"
            batch = 3
            "#,
        )
        .unwrap();

        assert_eq!(manifest.concurrency, Some(16));
        assert_eq!(manifest.rate, Rate::per_second(100.0));
        assert_eq!(manifest.spacing, Duration::from_millis(200));
        assert_eq!(manifest.limits.memory, 128 << 20);
        assert_eq!(manifest.retry.max_attempts, 20);
        assert_eq!(manifest.grants.secrets.len(), 2);
        assert_eq!(manifest.settings["batch"], "3");
        assert_eq!(manifest.profile, Profile::Minimal);
        assert_eq!(manifest.order, Order::ByKey { on_dead: OnDead::Skip });
        assert_eq!(manifest.rollout, Rollout { canary: 0.1, calls: 50, faults: 0.2 });
    }

    #[test]
    fn all_mistakes_come_at_once_by_file_line_and_key() {
        let errors = parse(
            "topics = [\"a.*\", \"a.b\"]\n[grants]\nhosts = [\"*\", \"example.com\"]\nprivate_networks = [\"10.0.0.0/8\"]\n\
             [limits]\nmemory = \"1GiB\"\ncpu = \"1h\"\nconcurency = 4\n[grants.secrets]\nK = [\"https://b.example\"]\n",
        )
        .unwrap_err();

        let found =
            |line: &str, words: &str| errors.iter().any(|error| error.starts_with(line) && error.contains(words));
        assert!(found("shop.toml:1: topics", "overlap"), "{errors:#?}");
        assert!(found("shop.toml:3: grants.hosts", "bare"), "{errors:#?}");
        assert!(found("shop.toml:3: grants.hosts", "no scheme"), "{errors:#?}");
        assert!(found("shop.toml:4: grants.private_networks", "beyond"), "{errors:#?}");
        assert!(found("shop.toml:6: limits.memory", "256 MiB"), "{errors:#?}");
        assert!(found("shop.toml:7: limits.cpu", "10s"), "{errors:#?}");
        assert!(found("shop.toml:8: unknown key \"concurency\"", "\"concurrency\""), "{errors:#?}");
        assert!(found("shop.toml:", "does not hold"), "{errors:#?}");
    }

    #[test]
    fn a_literal_private_address_needs_the_operators_leave_and_nothing_more() {
        let text = "[grants]\nhosts = [\"http://127.0.0.1:9000\"]\n";
        let errors = parse(text).unwrap_err();
        assert!(errors[0].contains("add \"127.0.0.1/32\" to [sandbox] private_networks"), "{errors:?}");

        let ceiling = Ceiling { private_networks: vec!["127.0.0.0/8".parse().unwrap()], ..Ceiling::default() };
        let manifest = parse_under(&ceiling, text).unwrap();

        let destination = crate::plugin::egress::Destination::of(&"http://127.0.0.1:9000".parse().unwrap()).unwrap();
        let guard = manifest.grants.guard(&[]);
        assert!(guard.check_for(&destination, "127.0.0.1:9000".parse().unwrap()).is_ok());
        assert!(guard.check("127.0.0.1:9000".parse().unwrap()).is_err());
    }

    #[test]
    fn raw_tcp_is_granted_to_the_peers_that_the_operator_names_and_no_other() {
        let ceiling = Ceiling { tcp: vec![TcpPeer::parse("redis.internal:6379").unwrap()], ..Ceiling::default() };
        let granted = |peer: &str| parse_under(&ceiling, &format!("[grants]\ntcp = [\"{peer}\"]"));

        assert_eq!(granted("redis.internal:6379").unwrap().grants.tcp, ceiling.tcp);
        for (peer, words) in [
            ("redis.internal:6380", "add \"redis.internal:6380\""),
            ("10.0.0.7:6379", "beyond [sandbox] tcp"),
            ("redis.internal", "names no port"),
            ("redis://redis.internal:6379", "has a scheme"),
            ("*.internal:6379", "no host name"),
        ] {
            let errors = granted(peer).unwrap_err();
            assert!(errors[0].starts_with("shop.toml:2: grants.tcp") && errors[0].contains(words), "{errors:?}");
        }
        let minimal = "profile = \"minimal\"\n[grants]\ntcp = [\"redis.internal:6379\"]";
        assert!(parse_under(&ceiling, minimal).unwrap_err()[0].contains("no sockets"));
    }

    #[test]
    fn a_manifest_grants_nothing_beyond_the_ceiling() {
        let hosts = vec![HostPattern::parse("https://*.example.com").unwrap()];
        let ceiling = Ceiling { hosts, memory: 32 << 20, ..Ceiling::default() };

        assert!(parse_under(&ceiling, "[grants]\nhosts = [\"https://a.example.com\"]").is_ok());
        assert!(parse_under(&ceiling, "[grants]\nhosts = [\"https://*\"]").is_err());
        assert_eq!(parse_under(&ceiling, "").unwrap().limits.memory, 32 << 20);
    }
}
