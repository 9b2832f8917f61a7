//! The application: writes an order and its message in one transaction, or neither.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::json;
use uuid::Uuid;

use super::database::{Database, Fate};

/// Every so many-th transaction is rolled back, after everything was written.
const ROLLBACK_EVERY: u32 = 10;

pub(super) const TOPIC: &str = "orders.created";

/// What the shop knows for certain: the ids of messages whose transaction committed, and of those whose did not.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    pub(super) committed: BTreeSet<Uuid>,
    pub(super) rolled_back: BTreeSet<Uuid>,
}

pub(super) struct Shop {
    orders: u32,
    book: Mutex<Orders>,
}

/// One order, as the shop stores it.
pub(super) struct Order {
    pub(super) number: u32,
    pub(super) customer: String,
    pub(super) cents: i64,
}

impl Shop {
    pub(super) fn new(orders: u32) -> Self {
        Shop { orders, book: Mutex::default() }
    }

    /// Writes all orders, one transaction after the other.
    pub(super) async fn trade(&self, database: &Database) -> anyhow::Result<()> {
        for number in 1..=self.orders {
            let order = Order {
                number,
                customer: format!("customer-{}", fastrand::u32(1..500)),
                cents: fastrand::i64(100..50_000),
            };
            let fate = fate(number);
            let id = database.place(&order, fate).await?;
            let mut book = self.book();
            match fate {
                Fate::Commit => book.committed.insert(id),
                Fate::RollBack => book.rolled_back.insert(id),
            };
        }
        Ok(())
    }

    pub(super) fn commits_planned(&self) -> usize {
        commits_planned(self.orders)
    }

    /// Committed and rolled back so far.
    pub(super) fn counts(&self) -> (usize, usize) {
        let book = self.book();
        (book.committed.len(), book.rolled_back.len())
    }

    pub(super) fn ledger(&self) -> Orders {
        self.book().clone()
    }

    fn book(&self) -> MutexGuard<'_, Orders> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    /// What the message says.
    pub(super) fn payload(&self) -> serde_json::Value {
        json!({ "order": self.number, "customer": self.customer, "cents": self.cents })
    }
}

/// Of `orders` transactions, how many are to commit.
pub(super) fn commits_planned(orders: u32) -> usize {
    (orders - orders / ROLLBACK_EVERY) as usize
}

fn fate(number: u32) -> Fate {
    if number.is_multiple_of(ROLLBACK_EVERY) { Fate::RollBack } else { Fate::Commit }
}

#[cfg(test)]
mod tests {
    use outboxd_store::{StoreOptions, migrate};
    use outboxd_test_support::postgres::TestPostgres;

    use super::super::database::Tally;
    use super::*;

    #[test]
    fn every_tenth_transaction_is_rolled_back() {
        let rolled_back = (1..=2_000).filter(|number| fate(*number) == Fate::RollBack).count();

        assert_eq!(rolled_back, 200);
        assert_eq!(commits_planned(2_000), 1_800);
        assert_eq!(commits_planned(109), 99);
    }

    #[tokio::test]
    async fn on_sqlite_only_committed_orders_have_a_message() {
        let folder = tempfile::tempdir().unwrap();

        only_committed_orders_have_a_message(&Database::choose(None, folder.path()).await.unwrap()).await;
    }

    #[tokio::test]
    async fn on_postgres_the_same_and_the_schema_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let url = tokio::task::spawn_blocking(|| TestPostgres::shared().database()).await.unwrap();
        let database = Database::choose(Some(&url), folder.path()).await.unwrap();

        only_committed_orders_have_a_message(&database).await;
        database.clear().await.unwrap();

        let error = database.tally().await.unwrap_err().to_string();
        assert!(error.contains("does not exist"), "{error}");
    }

    async fn only_committed_orders_have_a_message(database: &Database) {
        let table = outboxd_store::TableName::parse(database.table()).unwrap();
        migrate(&StoreOptions { url: database.url().into(), table, ..StoreOptions::default() }).await.unwrap();
        database.open_shop().await.unwrap();
        let shop = Shop::new(100);

        shop.trade(database).await.unwrap();

        assert_eq!(shop.counts(), (90, 10));
        assert!(shop.ledger().committed.is_disjoint(&shop.ledger().rolled_back));
        assert_eq!(database.tally().await.unwrap(), Tally { live: 90, dead: 0, retried: 0 });
    }
}
