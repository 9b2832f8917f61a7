use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use wasmtime::Store;

use super::bindings::{HostSide, HostSidePre};
use super::egress::{CallEgress, Egress};
use super::limits::StoreLimiter;
use super::output::{CallFacts, GuestOutput};
use super::redact::Redactor;
use super::sandbox::Sandbox;
use super::state::{CallBounds, CallContext, CallState, GrantedSecrets, HANDLES_MAX};
use super::version::Version;

/// One that was idle for longer serves no more; it goes with the next call of its version.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Nor is one that is older.
const AGE_MAX: Duration = Duration::from_secs(600);

/// A store and, once it was started, the instance in it.
pub(crate) struct Instance {
    /// Goes before the store.
    plugin: Option<HostSide>,
    pub(crate) store: Store<CallState>,
    served: u32,
    /// How many messages it serves. Drawn a little below the manifest's number, lest all instances end together.
    serves_max: u32,
    born: Instant,
}

impl Instance {
    /// A fresh store for one call. Nothing of the guest runs before [`Instance::start`].
    pub(crate) fn new(
        sandbox: &Sandbox,
        version: &Version,
        egress: Arc<Egress>,
        facts: CallFacts,
        bounds: CallBounds,
        context: CallContext,
    ) -> Self {
        let limits = &version.manifest.limits;
        let redactor = Redactor::default();
        let output = GuestOutput::new(Arc::new(facts), limits, redactor.clone());
        let egress = CallEgress::new(egress, limits, redactor);
        let secrets = GrantedSecrets { names: version.secret_names.clone(), all: sandbox.secrets.clone() };
        let limiter = StoreLimiter::new(limits.memory, sandbox.budget.clone());
        let state = CallState::new(limiter, version.settings.clone(), bounds, output, egress, secrets, context);
        let mut store = Store::new(&sandbox.engine, state);
        store.limiter(|state| &mut state.limiter);
        // Before anything of the guest runs: start functions and `cabi_realloc` are guest code.
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(CallState::on_tick);
        // Bytes that one host call may copy out of the guest.
        let fuel = sandbox.payload_bytes_max.saturating_mul(2).saturating_add(1 << 20);
        store.set_hostcall_fuel(usize::try_from(fuel).unwrap_or(usize::MAX));
        store.set_max_component_handles(HANDLES_MAX);
        let reuse = version.manifest.reuse;
        let serves_max = reuse - fastrand::u32(0..=reuse / 8);
        Instance { plugin: None, store, served: 0, serves_max, born: Instant::now() }
    }

    /// The instance, started where it was not yet.
    pub(crate) async fn start(
        &mut self,
        pre: &HostSidePre<CallState>,
    ) -> wasmtime::Result<(&mut Store<CallState>, &HostSide)> {
        if self.plugin.is_none() {
            self.plugin = Some(pre.instantiate_async(&mut self.store).await?);
        }
        self.store.set_epoch_deadline(1);
        match &self.plugin {
            Some(plugin) => Ok((&mut self.store, plugin)),
            None => wasmtime::bail!("the instance went away while it started"),
        }
    }
}

/// Instances of one version between two messages: none, unless the manifest asks for reuse.
#[derive(Default)]
pub(crate) struct Idle(Mutex<Vec<Resting>>);

struct Resting {
    instance: Instance,
    since: Instant,
    /// A share of what may lie idle in the whole process.
    _place: OwnedSemaphorePermit,
}

impl Idle {
    /// An instance for the next call, every limit and every fact of it new.
    pub(crate) fn take(
        &self,
        version: &Version,
        sandbox: &Sandbox,
        facts: CallFacts,
        bounds: CallBounds,
        context: CallContext,
    ) -> Instance {
        if version.manifest.reuse > 1 {
            let mut resting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            resting.retain(|idle| idle.since.elapsed() < IDLE_MAX);
            if let Some(Resting { mut instance, .. }) = resting.pop() {
                drop(resting);
                instance.store.data_mut().renew(
                    &version.manifest.limits,
                    version.egress.clone(),
                    facts,
                    bounds,
                    context,
                );
                return instance;
            }
        }
        Instance::new(sandbox, version, version.egress.clone(), facts, bounds, context)
    }

    /// Keeps an instance that answered, where it may serve again and there is a place for it; else it comes back.
    pub(crate) fn put_back(&self, mut instance: Instance, version: &Version, sandbox: &Sandbox) -> Option<Instance> {
        instance.served += 1;
        if instance.served >= instance.serves_max || instance.born.elapsed() > AGE_MAX || version.manifest.reuse <= 1 {
            return Some(instance);
        }
        let Ok(place) = sandbox.idle.clone().try_acquire_owned() else { return Some(instance) };
        // What the call left running ends now, not with the next one.
        instance.store.data_mut().rest();
        let mut resting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        resting.push(Resting { instance, since: Instant::now(), _place: place });
        None
    }
}
