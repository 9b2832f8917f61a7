use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::Linker;
use wasmtime_wasi_config::WasiConfig;

use super::bindings::HostSide;
use super::compiler::Compiler;
use super::egress::{Connector, Egress, LOOK_UPS_MAX, Resolve, SystemResolver, TlsRoots, client_config};
use super::engine::{Pooling, guest_engine};
use super::grants::Grants;
use super::limits::MemoryBudget;
use super::manifest::Profile;
use super::secrets::Secrets;
use super::sockets;
use super::state::CallState;
use super::threads::GuestThreads;

/// What a sandbox is made of, beside the plugins that run in it.
#[derive(Clone)]
pub struct SandboxOptions {
    pub pooling: Pooling,
    /// How many calls may run at once. Default 64.
    pub slots: usize,
    pub secrets: Secrets,
    /// Never reachable, whatever is granted: the relay's own listeners and the database.
    pub refused_addresses: Vec<SocketAddr>,
    pub roots: TlsRoots,
    pub resolver: Arc<dyn Resolve>,
    /// The largest payload that is handed over. Bytes; default 1 MiB.
    pub payload_bytes_max: u64,
    /// What all guests may hold together. Bytes; default: each slot's 256 MiB, that is no bound of its own.
    pub memory_total_max: Option<u64>,
    pub compiler: Compiler,
    /// Threads that run guests, and as many for those that compute for long. Default: one a core.
    pub threads: Option<usize>,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        SandboxOptions {
            pooling: Pooling::Auto,
            slots: 64,
            secrets: Secrets::default(),
            refused_addresses: vec![],
            roots: TlsRoots::default(),
            resolver: Arc::new(SystemResolver),
            payload_bytes_max: outboxd_core::PAYLOAD_BYTES_MAX_DEFAULT,
            memory_total_max: None,
            compiler: Compiler::InProcess,
            threads: None,
        }
    }
}

/// Where guests run: one engine, two linkers, one budget of memory, and threads of their own.
pub(crate) struct Sandbox {
    pub(crate) engine: Engine,
    std: Linker<CallState>,
    minimal: Linker<CallState>,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) payload_bytes_max: u64,
    pub(crate) secrets: Secrets,
    refused_addresses: Vec<SocketAddr>,
    resolver: Arc<dyn Resolve>,
    tls: Arc<rustls::ClientConfig>,
    /// How many instances may lie idle between two messages, over all plugins.
    pub(crate) idle: Arc<Semaphore>,
    pub(crate) threads: GuestThreads,
}

impl Sandbox {
    pub(crate) fn new(options: SandboxOptions) -> Result<Sandbox, String> {
        let engine = guest_engine(options.pooling, options.slots).map_err(|error| format!("no sandbox: {error:#}"))?;
        let link = |profile| linker(&engine, profile).map_err(|error| format!("no sandbox: {error:#}"));
        let cores = || std::thread::available_parallelism().map_or(2, |cores| cores.get());
        let threads = options.threads.unwrap_or_else(cores).max(1);
        Ok(Sandbox {
            std: link(Profile::Std)?,
            minimal: link(Profile::Minimal)?,
            budget: MemoryBudget::new(options.memory_total_max.unwrap_or(u64::MAX >> 1)),
            payload_bytes_max: options.payload_bytes_max,
            secrets: options.secrets,
            refused_addresses: options.refused_addresses,
            resolver: options.resolver,
            tls: client_config(&options.roots)?,
            idle: Arc::new(Semaphore::new(options.slots)),
            threads: GuestThreads::start(threads).map_err(|error| format!("no threads for guests: {error}"))?,
            engine,
        })
    }

    pub(crate) fn linker(&self, profile: Profile) -> &Linker<CallState> {
        match profile {
            Profile::Std => &self.std,
            Profile::Minimal => &self.minimal,
        }
    }

    /// What the plugins of one grant send through.
    pub(crate) fn egress(&self, grants: &Grants) -> Arc<Egress> {
        let connector = Connector {
            guard: Arc::new(grants.guard(&self.refused_addresses)),
            resolver: self.resolver.clone(),
            tls: self.tls.clone(),
            look_ups: Arc::new(Semaphore::new(LOOK_UPS_MAX)),
        };
        Egress::new(grants.policy(), self.secrets.clone(), connector)
    }
}

/// The whole of WASI 0.2 with nothing in it, or the little that a plugin without a language runtime needs.
fn linker(engine: &Engine, profile: Profile) -> wasmtime::Result<Linker<CallState>> {
    let mut linker = Linker::new(engine);
    match profile {
        Profile::Std => {
            wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
            sockets::add_to_linker(&mut linker)?;
        }
        Profile::Minimal => wasmtime_wasi::p2::add_to_linker_proxy_interfaces_async(&mut linker)?,
    }
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    wasmtime_wasi_config::add_to_linker(&mut linker, |state: &mut CallState| WasiConfig::from(&*state.settings))?;
    HostSide::add_to_linker::<_, wasmtime::component::HasSelf<_>>(&mut linker, |state: &mut CallState| state)?;
    Ok(linker)
}
