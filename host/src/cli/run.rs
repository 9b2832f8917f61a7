//! `outboxd run`: builds the parts and lets them work until told to stop.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::{ArcSwap, ArcSwapOption};
use outboxd_core::Jitter;
use outboxd_store::{Store, StoreError, StoreOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::args::{Global, RunArgs};
use super::reload::Reload;
use super::settings::WrongSettings;
use super::{once, output, settings};
use crate::admin::{self, Admin, RelayInfo};
use crate::config::{Config, MigrateMode, Overrides, Purpose};
use crate::handler::Handlers;
use crate::metrics::{self, Metered, MeteredHandlers, Recent, Snapshot};
use crate::outage::Outage;
use crate::plugin::PluginHost;
use crate::purger;
use crate::relay::{Relay, Stopped};
#[cfg(feature = "otel")]
use crate::traces::Traces;
use crate::{service, shutdown, unorder};

/// How long chores may take to end once the relay has stopped.
const CHORES_END: Duration = Duration::from_secs(1);

pub async fn run(global: &Global, args: RunArgs) -> anyhow::Result<ExitCode> {
    let overrides = Overrides { plugins: args.plugins, admin: args.admin, ..Overrides::default() };
    let config = settings::load(global, overrides.clone(), Purpose::Plugins)?;
    let options = settings::store_options(&config)?;
    if args.check {
        output::line(super::configuration::configuration(&config));
        return Ok(ExitCode::SUCCESS);
    }
    let metrics = metrics::install().context("cannot start metrics")?;
    let shutdown = shutdown::on_signal()?;
    // From here on: before, and with --once, it ends the process, as it does any.
    let hangup = if args.once { None } else { Some(signal(SignalKind::hangup())?) };

    // Bound before anything else: an address in use is said at once, and plugins are kept from the port that it really is.
    let listener = match config.admin.filter(|_| !args.once) {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let admin_address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let chores = TaskTracker::new();
    let end = CancellationToken::new();
    // From the first moment: who watches this relay learns that it lives and waits, however long the database is down.
    let served = Arc::new(ArcSwap::from_pointee(admin::starting(metrics.clone())));
    if let (Some(listener), Some(address)) = (listener, admin_address) {
        chores.spawn(admin::serve(listener, served.clone(), end.clone()));
        info!("health and metrics are served at http://{address}; the admin page once the database has answered");
    }
    let store = match open(&config, &options, args.once, &shutdown).await? {
        Some(store) => store,
        None => return Ok(ExitCode::SUCCESS),
    };
    let refused_addresses = admin_address.into_iter().chain(store.addresses.iter().copied()).collect();
    let plugins =
        PluginHost::start(settings::plugin_options(&config, refused_addresses)).map_err(WrongSettings::one)?;
    plugins.scan_once().await;

    let recent = Arc::new(Recent::default());
    let outbox = Arc::new(Metered::new(store.outbox.clone(), recent.clone()));
    let handlers: Arc<dyn Handlers> = Arc::new(MeteredHandlers::new(plugins.handlers()));
    #[cfg(feature = "otel")]
    let traces = config.traces.as_deref().map(Traces::start).transpose().map_err(WrongSettings::one)?;
    #[cfg(feature = "otel")]
    let handlers = match &traces {
        Some(traces) => traces.around(handlers),
        None => handlers,
    };
    let draw_jitter = Arc::new(|| Jitter::new(fastrand::f64()));
    let relay = Relay::new(outbox, handlers.clone(), draw_jitter, config.relay.clone());
    if args.once {
        let stopped = once::deliver(&relay, &*handlers, &*store.admin, &shutdown).await;
        #[cfg(feature = "otel")]
        finish(traces).await;
        let stopped = stopped.context("cannot deliver")?;
        tell_what_waits(&store, &*handlers).await;
        return Ok(exit_code(stopped));
    }

    let drained = metrics.clone();
    let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let token = Arc::new(ArcSwapOption::from_pointee(config.admin_token.clone()));
    if let Some(address) = admin_address {
        let listed = plugins.clone();
        let admin = Admin {
            address,
            token: token.clone(),
            relay: RelayInfo {
                version: env!("CARGO_PKG_VERSION"),
                database: super::message_texts::whole_name(&config.database),
                table: config.table.clone(),
            },
            metrics,
            snapshot: snapshot.clone(),
            recent,
            store: store.admin.clone(),
            handlers: handlers.clone(),
            plugins: Arc::new(move || listed.list()),
        };
        served.store(Arc::new(admin::router(admin)));
    }
    chores.spawn(metrics::upkeep_until(drained, end.clone()));
    chores.spawn(metrics::watch_until(store.admin.clone(), handlers.clone(), snapshot, end.clone()));
    let retention = Arc::new(ArcSwap::from_pointee(config.retention));
    chores.spawn(purger::purge_until(store.admin.clone(), retention.clone(), end.clone()));
    chores.spawn(unorder::unorder_until(store.admin.clone(), handlers.clone(), end.clone()));
    chores.spawn(service::alive_until(end.clone()));
    let (watched, until) = (plugins.clone(), end.clone());
    chores.spawn(async move { watched.watch(until).await });

    info!(
        "delivering from {} with the plugins in {:?}",
        super::message_texts::without_password(&config.database),
        config.plugins
    );
    if let Some(hangup) = hangup {
        let reload = Reload { global: global.clone(), overrides, config, retention, token, plugins };
        chores.spawn(reload.at_each(hangup, end.clone()));
    }
    service::ready();
    let stopped = relay.run(shutdown).await;
    #[cfg(feature = "otel")]
    finish(traces).await;
    end.cancel();
    chores.close();
    // Counting or purging may be under way on a database that is frozen; nothing of it has to be waited for.
    let _ = tokio::time::timeout(CHORES_END, chores.wait()).await;
    info!("stopped");
    Ok(exit_code(stopped))
}

/// Spans that could not be sent by then are lost.
#[cfg(feature = "otel")]
async fn finish(traces: Option<Traces>) {
    if let Some(traces) = traces {
        traces.finish(CHORES_END).await;
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot serve the admin address {address}; set another by --admin, or \"off\""))
}

/// Says which topics no plugin handles: their messages would wait without a word.
async fn tell_what_waits(store: &Store, handlers: &dyn Handlers) {
    // Only a courtesy: what was due is delivered.
    for topic in store.admin.stats().await.unwrap_or_default() {
        let live = topic.live();
        if live > 0 && handlers.route(&topic.topic).is_none() {
            warn!("{live} messages of topic {:?} wait: no plugin handles it", topic.topic);
        }
    }
}

fn exit_code(stopped: Stopped) -> ExitCode {
    match stopped {
        Stopped::Drained => ExitCode::SUCCESS,
        Stopped::Interrupted { .. } | Stopped::Unsettled => ExitCode::FAILURE,
    }
}

/// Connects and, unless told otherwise, migrates. A database that is down is waited for; with `--once` it is an error.
/// Nothing when told to stop meanwhile.
async fn open(
    config: &Config,
    options: &StoreOptions,
    once: bool,
    shutdown: &CancellationToken,
) -> anyhow::Result<Option<Store>> {
    let mut outage = Outage::new("reaching the database");
    loop {
        let tried = match config.migrate {
            MigrateMode::Auto => outboxd_store::migrate(options).await,
            MigrateMode::Off => outboxd_store::check_version(options).await,
        };
        match tried {
            Ok(_) => {
                outage.over();
                return Ok(Some(Store::connect(options).await?));
            }
            Err(error @ StoreError::Unavailable(_)) if !once => {
                let pause = outage.note(&error);
                if shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
