//! Order and limits by key: what they cost, and what keys that do not go on cost the others.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use outboxd::handler::{CallControl, Handled, Handler, Handlers, Route};
use outboxd_core::{Blame, Claim, OnDead, Order, Outcome, Reason};
use outboxd_store::OnDelivered;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::drain::{Relays, drain, ratio};
use crate::plugins::{CONCURRENCY, Component};
use crate::report::{Report, median, percentile};
use crate::stage::{Outbox, Stage, Standing};

/// Ten hung calls leave most of these slots.
const MANY_SLOTS: usize = 64;
const IN_ORDER: Order = Order::ByKey { on_dead: OnDead::Block };
const TWO_AT_ONCE: Order = Order::Limited { per_key: 2 };

/// Handlers whose topics are all in this order, and whose keys `k0` to `k9` hang until they are let go, where that is wanted.
struct Ordered {
    inner: Arc<dyn Handlers>,
    order: Order,
    concurrency: usize,
    hung_until: Option<CancellationToken>,
}

impl Handlers for Ordered {
    fn route(&self, topic: &str) -> Option<Route> {
        let route = self.inner.route(topic)?;
        let handler: Arc<dyn Handler> = match &self.hung_until {
            None => route.handler,
            Some(until) => Arc::new(HungHandler { inner: route.handler, until: until.clone() }),
        };
        Some(Route { handler, order: self.order, concurrency: self.concurrency, ..route })
    }

    fn plugins(&self) -> usize {
        self.inner.plugins()
    }
}

struct HungHandler {
    inner: Arc<dyn Handler>,
    until: CancellationToken,
}

#[async_trait]
impl Handler for HungHandler {
    async fn handle(&self, claim: &Claim, call: CallControl) -> Handled {
        // `k0` to `k9`.
        if claim.message.key.as_ref().is_some_and(|key| key.len() == 2) {
            self.until.cancelled().await;
            let (reason, error) = (Reason::Interrupted, "stopped".into());
            return Handled::new(Outcome::Fault { reason, error, blame: Blame::Host });
        }
        self.inner.handle(claim, call).await
    }

    fn threads(&self) -> Option<Handle> {
        self.inner.threads()
    }
}

/// Topics in order, and topics of whose keys two calls may be under way at once. `held` messages are those of keys that do not go
/// on, beside which the others are delivered.
pub async fn measure(stage: &Stage, report: &mut Report, messages: u64, rounds: usize, held: u64) {
    let component = Component::load().await;
    let handlers = |order, concurrency, hung_until| -> Arc<dyn Handlers> {
        Arc::new(Ordered { inner: component.handlers(), order, concurrency, hung_until })
    };
    for (name, order, standing) in
        [("in order", IN_ORDER, Standing::Blocked), ("two at once of a key", TWO_AT_ONCE, Standing::Resting)]
    {
        let (mut plain, mut by_key) = (vec![], vec![]);
        for _ in 0..rounds {
            for (rates, order) in [(&mut plain, Order::None), (&mut by_key, order)] {
                let outbox = stage.postgres(OnDelivered::Delete).await;
                outbox.fill_keys(messages, 1000).await;
                rates.push(drain(&outbox, handlers(order, CONCURRENCY, None), messages, 1).await.rate);
            }
        }
        report.add(format!("drain, 1000 keys, {name}"), median(&by_key), "messages/s");
        report.add_with_target(format!("{name}, over in no order"), ratio(&by_key, &plain), "x", "at least 0.6");

        let (mut healthy, mut beside) = (vec![], vec![]);
        let most = messages / 100 * 90;
        for _ in 0..rounds {
            let outbox = stage.postgres(OnDelivered::Delete).await;
            outbox.fill_keys(messages, 100).await;
            outbox.sql("delete from outbox where length(key) = 2").await;
            healthy.push(drain(&outbox, handlers(order, MANY_SLOTS, None), most, 1).await.rate);
            let outbox = stage.postgres(OnDelivered::Delete).await;
            outbox.fill_keys(messages, 100).await;
            let let_go = CancellationToken::new();
            beside.push(rate_beside(&outbox, handlers(order, MANY_SLOTS, Some(let_go.clone())), most, let_go).await);
        }
        let hung = format!("{name}: 90 keys beside 10 that hang, 64 slots, over alone");
        report.add_with_target(hung, ratio(&beside, &healthy), "x", "at least 0.9");

        let alone = claims_p99(stage, handlers(order, CONCURRENCY, None), messages, 0, standing).await;
        let among = claims_p99(stage, handlers(order, CONCURRENCY, None), messages, held, standing).await;
        report.add(format!("{name}: claim, p99"), alone * 1000.0, "ms");
        let name = format!("{name}: claim beside {held} held, p99 over without");
        report.add_with_target(name, among / alone, "x", "at most 1.5");
    }
}

/// Messages a second, until so many are delivered; then what hangs is let go.
async fn rate_beside(outbox: &Outbox, handlers: Arc<dyn Handlers>, messages: u64, hung: CancellationToken) -> f64 {
    let begun = Instant::now();
    let relays = Relays::start(outbox, handlers, 1).await;
    relays.seen.delivered(messages).await;
    let seconds = begun.elapsed().as_secs_f64();
    hung.cancel();
    relays.stop().await;
    messages as f64 / seconds
}

/// How long it takes to arrange and claim, beside so many held messages of a thousand keys that do not go on. Seconds.
async fn claims_p99(stage: &Stage, handlers: Arc<dyn Handlers>, messages: u64, held: u64, standing: Standing) -> f64 {
    let outbox = stage.postgres(OnDelivered::Delete).await;
    outbox.fill_held(held, standing).await;
    outbox.fill_keys(messages, 1000).await;
    let relays = Relays::start(&outbox, handlers, 1).await;
    relays.seen.delivered(messages).await;
    let claims = relays.seen.claims();
    relays.stop().await;
    percentile(&claims, 0.99)
}
