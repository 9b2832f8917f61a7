//! The leases this relay holds: renewed while calls run, and calls stopped whose lease is lost.
//!
//! A lease is trusted from the moment it was asked for, on this host's monotonic clock, less a margin: the database granted
//! it later than that, so it ends later too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboxd_core::{Claim, Held, LeaseId, LeaseStatus, MessageId, planted};
use outboxd_store::OutboxStore;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::outage::Outage;

pub struct Leases {
    store: Arc<dyn OutboxStore>,
    lease: Duration,
    /// In order, so that those which are lost at once stop in the same order whenever a simulation is repeated.
    held: Mutex<BTreeMap<MessageId, Lease>>,
}

struct Lease {
    lease_id: LeaseId,
    trusted_until: Instant,
    stop: CancellationToken,
}

/// A lease that is renewed until this is dropped.
pub struct HeldLease {
    leases: Arc<Leases>,
    held: Held,
    /// Cancelled when the lease is lost, and with the token it was made from.
    pub stop: CancellationToken,
}

/// Whether what came of a call may be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetGo {
    /// It may, until then.
    Trusted { until: Instant },
    /// The lease was lost while the call ran.
    Lost,
}

impl Leases {
    pub fn new(store: Arc<dyn OutboxStore>, lease: Duration) -> Arc<Self> {
        Arc::new(Leases { store, lease, held: Mutex::default() })
    }

    /// Holds the lease of a claim that was asked for at `asked`; `parent` stops its call for other reasons.
    pub fn hold(self: &Arc<Self>, claim: &Claim, asked: Instant, parent: &CancellationToken) -> HeldLease {
        let stop = parent.child_token();
        let of = Held { id: claim.message.id, lease_id: claim.lease_id };
        let lease = Lease { lease_id: of.lease_id, trusted_until: self.trusted_until(asked), stop: stop.clone() };
        let mut held = self.held();
        // Claimed again by this very relay, which must have stood still meanwhile.
        self.lose(&mut held, of.id, "it lapsed and this relay claimed the message anew");
        held.insert(of.id, lease);
        HeldLease { leases: self.clone(), held: of, stop }
    }

    /// When a lease asked for at `asked` is no longer trusted.
    fn trusted_until(&self, asked: Instant) -> Instant {
        asked + self.lease - self.lease / 10
    }

    /// Renews all that is held, every third of a lease, until `end`.
    pub async fn renew_until(&self, end: CancellationToken) {
        let mut outage = Outage::new("renewing leases");
        let mut next = Instant::now() + self.lease / 3;
        while end.run_until_cancelled(sleep_until(next)).await.is_some() {
            let asked = Instant::now();
            next = asked + self.lease / 3;
            let held: Vec<Held> =
                self.held().iter().map(|(id, lease)| Held { id: *id, lease_id: lease.lease_id }).collect();
            if held.is_empty() {
                continue;
            }
            match self.store.renew(&held, self.lease).await {
                Ok(statuses) => {
                    outage.over();
                    self.note(&held, &statuses, asked);
                }
                Err(error) => {
                    outage.note(&error);
                    next = Instant::now() + self.lease / 15;
                }
            }
        }
    }

    fn note(&self, renewed: &[Held], statuses: &[LeaseStatus], asked: Instant) {
        let mut held = self.held();
        for (renewed, status) in renewed.iter().zip(statuses) {
            // Gone: its call ended and was handed to the settler meanwhile, so "lost" may be our own settle.
            let Some(lease) = held.get_mut(&renewed.id).filter(|lease| lease.lease_id == renewed.lease_id) else {
                continue;
            };
            match status {
                LeaseStatus::Held => lease.trusted_until = self.trusted_until(asked),
                LeaseStatus::Lost => planted!(
                    12,
                    lease.trusted_until = self.trusted_until(asked),
                    self.lose(&mut held, renewed.id, "another relay may hold it")
                ),
            }
        }
    }

    /// Stops the calls whose lease could not be renewed in time, until `end`. A task of its own: a renewal that hangs must
    /// not keep a call alive.
    pub async fn expire_until(&self, end: CancellationToken) {
        let pace = self.lease / 30;
        while end.run_until_cancelled(tokio::time::sleep(pace)).await.is_some() {
            let now = Instant::now();
            let mut held = self.held();
            let expired: Vec<MessageId> =
                held.iter().filter(|(_, lease)| lease.trusted_until <= now).map(|(id, _)| *id).collect();
            for id in expired {
                self.lose(&mut held, id, "it could not be renewed in time");
            }
        }
    }

    fn lose(&self, held: &mut BTreeMap<MessageId, Lease>, id: MessageId, why: &str) {
        if let Some(lease) = held.remove(&id) {
            lease.stop.cancel();
            warn!(message.id = %id, lease.id = %lease.lease_id, "the lease of message {id} is lost: {why}; its call is stopped, nothing is settled");
        }
    }

    // The map stays sound if a holder panicked: every change is a single step.
    fn held(&self) -> MutexGuard<'_, BTreeMap<MessageId, Lease>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldLease {
    /// Whether it is still trusted: no call begins under a lease that is not.
    pub fn is_trusted(&self) -> bool {
        let held = self.leases.held();
        let lease = held.get(&self.held.id).filter(|lease| lease.lease_id == self.held.lease_id);
        lease.is_some_and(|lease| Instant::now() < lease.trusted_until)
    }

    /// Ends the renewing: the call is over.
    pub fn let_go(self) -> LetGo {
        match self.remove() {
            Some(lease) => LetGo::Trusted { until: lease.trusted_until },
            None => LetGo::Lost,
        }
    }

    fn remove(&self) -> Option<Lease> {
        let mut held = self.leases.held();
        held.get(&self.held.id).filter(|lease| lease.lease_id == self.held.lease_id)?;
        held.remove(&self.held.id)
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.remove();
    }
}
