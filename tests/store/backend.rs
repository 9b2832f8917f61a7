use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outboxd_client::{NewMessage, Outbox, publish_all};
use outboxd_core::{
    AttemptRecord, Claim, Held, Lane, LeaseStatus, MessageId, Order, Reason, Settlement, State, Transition,
};
use outboxd_store::{
    Hold, MemoryMessage, MemoryStore, MessageDetail, OnDelivered, OutboxAdmin, OutboxStore, Store, StoreOptions,
    TableName, migrate,
};
use outboxd_test_support::postgres::TestPostgres;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

pub const LEASE: Duration = Duration::from_secs(30);
pub const TOPIC: &str = "order.created";

/// A claim with it leaves nothing out.
pub const LAPSES_MAX: u32 = u32::MAX;

/// Makes one test a store out of each body.
macro_rules! on_every_store {
    ($($body:ident)*) => {
        mod memory {
            $(#[tokio::test] async fn $body() { super::$body($crate::backend::TestStore::memory().await).await })*
        }
        mod sqlite {
            $(#[tokio::test] async fn $body() { super::$body($crate::backend::TestStore::sqlite().await).await })*
        }
        mod postgres {
            $(#[tokio::test] async fn $body() { super::$body($crate::backend::TestStore::postgres().await).await })*
        }
    };
}

/// The same for the databases alone: what has no meaning in memory.
macro_rules! on_every_database {
    ($($body:ident)*) => {
        mod sqlite {
            $(#[tokio::test] async fn $body() { super::$body($crate::backend::TestStore::sqlite().await).await })*
        }
        mod postgres {
            $(#[tokio::test] async fn $body() { super::$body($crate::backend::TestStore::postgres().await).await })*
        }
    };
}
pub(crate) use {on_every_database, on_every_store};

/// An empty outbox of the test's own, and the means to publish into it and to make its rows older.
pub struct TestStore {
    pub outbox: Arc<dyn OutboxStore>,
    pub admin: Arc<dyn OutboxAdmin>,
    pub options: StoreOptions,
    backend: Backend,
    /// The test's own way to the table, opened once.
    raw: Mutex<Option<Raw>>,
}

enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

enum Backend {
    Memory(Arc<MemoryStore>),
    Sqlite(#[allow(dead_code, reason = "the folder lives as long as the store")] TempDir),
    Postgres,
}

impl TestStore {
    pub async fn memory() -> Self {
        Self::memory_with(StoreOptions::default()).await
    }

    async fn memory_with(options: StoreOptions) -> Self {
        let memory = Arc::new(MemoryStore::new(options.payload_max, options.on_delivered));
        let store = Store::memory(memory.clone());
        TestStore {
            outbox: store.outbox,
            admin: store.admin,
            options,
            backend: Backend::Memory(memory),
            raw: Mutex::new(None),
        }
    }

    pub async fn sqlite() -> Self {
        // In memory where there is such a folder: what a disk keeps is no question of these tests.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
        Self::migrated(StoreOptions { url, ..options() }, Backend::Sqlite(folder)).await
    }

    pub async fn postgres() -> Self {
        Self::postgres_on(TestPostgres::shared()).await
    }

    pub async fn postgres_on(server: &TestPostgres) -> Self {
        let url = server.database();
        decoy(&url).await;
        let table = TableName::parse("shop.outbox").expect("a name");
        Self::migrated(StoreOptions { url, table, ..options() }, Backend::Postgres).await
    }

    async fn migrated(options: StoreOptions, backend: Backend) -> Self {
        migrate(&options).await.expect("migrate");
        let store = Store::connect(&options).await.expect("connect");
        TestStore { outbox: store.outbox, admin: store.admin, options, backend, raw: Mutex::new(None) }
    }

    /// The same outbox with other options, as another relay sees it. A new, empty one in memory.
    pub async fn reconnect(self, change: impl FnOnce(&mut StoreOptions)) -> Self {
        let mut options = self.options.clone();
        change(&mut options);
        if let Backend::Memory(_) = self.backend {
            return Self::memory_with(options).await;
        }
        let store = Store::connect(&options).await.expect("connect");
        TestStore { outbox: store.outbox, admin: store.admin, options, backend: self.backend, raw: Mutex::new(None) }
    }

    /// Another relay on the same outbox.
    pub async fn another(&self) -> Store {
        match &self.backend {
            Backend::Memory(memory) => Store::memory(memory.clone()),
            _ => Store::connect(&self.options).await.expect("connect"),
        }
    }

    /// Another producer on the same database.
    pub async fn beside(store: &TestStore) -> Self {
        let options = store.options.clone();
        let same = Store::connect(&options).await.expect("connect");
        TestStore { outbox: same.outbox, admin: same.admin, options, backend: Backend::Postgres, raw: Mutex::new(None) }
    }

    /// Publishes in transactions that hold nothing else.
    pub async fn publish(&self, messages: Vec<Draft>) -> Vec<MessageId> {
        match &self.backend {
            Backend::Memory(memory) => messages.into_iter().map(|draft| memory.put(draft.in_memory())).collect(),
            _ => {
                let messages: Vec<NewMessage> = messages.into_iter().map(Draft::new_message).collect();
                self.publish_new(&messages).await
            }
        }
    }

    async fn publish_new(&self, messages: &[NewMessage]) -> Vec<MessageId> {
        let outbox = Outbox::of(self.options.table.clone()).payload_max(u64::MAX);
        let published = match &mut *self.raw().await {
            Some(Raw::Sqlite(connection)) => {
                let mut transaction = connection.begin_with("begin immediate").await.expect("begin");
                let published = publish_all(&mut transaction, &outbox, messages).await.expect("publish");
                transaction.commit().await.expect("commit");
                published
            }
            Some(Raw::Postgres(connection)) => {
                let mut transaction = connection.begin().await.expect("begin");
                let published = publish_all(&mut transaction, &outbox, messages).await.expect("publish");
                transaction.commit().await.expect("commit");
                published
            }
            None => unreachable!("memory has its own way"),
        };
        published.into_iter().map(|published| MessageId(published.id)).collect()
    }

    pub async fn publish_one(&self, draft: Draft) -> MessageId {
        self.publish(vec![draft]).await[0]
    }

    /// Makes everything in the table older by `by`: as if so much time had passed.
    pub async fn age(&self, by: Duration) {
        let ms = by.as_millis();
        const TIMES: [&str; 5] = ["available_at", "expires_at", "created_at", "delivered_at", "dead_at"];
        let sql = match &self.backend {
            Backend::Memory(memory) => return memory.advance(by),
            Backend::Sqlite(_) => {
                let sets = TIMES.map(|column| format!("{column} = {column} - {ms}")).join(", ");
                format!("update outbox set {sets}; update outbox_keys set free_at = free_at - {ms}")
            }
            Backend::Postgres => {
                let sets = TIMES.map(|column| format!("{column} = {column} - interval '{ms} milliseconds'")).join(", ");
                let free = format!("free_at = free_at - interval '{ms} milliseconds'");
                format!("update outbox set {sets}; update outbox_keys set {free}")
            }
        };
        self.execute(&sql).await.expect("age");
    }

    /// The test's own connection. Nothing in memory.
    async fn raw(&self) -> MutexGuard<'_, Option<Raw>> {
        let mut raw = self.raw.lock().await;
        if raw.is_none() {
            *raw = match &self.backend {
                Backend::Memory(_) => None,
                Backend::Sqlite(_) => Some(Raw::Sqlite(self.sqlite_connection().await)),
                Backend::Postgres => {
                    let mut connection = self.postgres_connection().await;
                    sqlx::query("set search_path = shop").execute(&mut connection).await.expect("set the path");
                    Some(Raw::Postgres(connection))
                }
            };
        }
        raw
    }

    pub async fn sqlite_connection(&self) -> SqliteConnection {
        let mut connection = SqliteConnection::connect(&self.options.url).await.expect("connect");
        sqlx::query("pragma busy_timeout = 10000").execute(&mut connection).await.expect("set the timeout");
        connection
    }

    pub async fn postgres_connection(&self) -> PgConnection {
        PgConnection::connect(&self.options.url).await.expect("connect")
    }

    /// Runs one statement on the database; `outbox` in it is the table. Not in memory.
    pub async fn execute(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let query = sqlx::raw_sql(AssertSqlSafe(sql.to_string()));
        match &mut *self.raw().await {
            Some(Raw::Sqlite(connection)) => Ok(query.execute(connection).await?.rows_affected()),
            Some(Raw::Postgres(connection)) => Ok(query.execute(connection).await?.rows_affected()),
            None => unreachable!("there is no SQL in memory"),
        }
    }

    /// Empties the outbox.
    pub async fn clear(&self) {
        match &self.backend {
            Backend::Memory(memory) => memory.clear(),
            _ => {
                self.execute("delete from outbox").await.expect("clear");
                self.execute("delete from outbox_control").await.expect("clear");
                self.execute("delete from outbox_keys").await.expect("clear");
            }
        }
    }

    /// What a relay does with free slots for the one topic.
    pub async fn claim(&self, slots: u32) -> Vec<Claim> {
        self.outbox.claim(&[lane(TOPIC, slots)], LEASE, LAPSES_MAX).await.expect("claim")
    }

    /// What a relay does with free slots for an ordered topic.
    pub async fn claim_in_order(&self, slots: u32, order: Order) -> Vec<Claim> {
        let lanes = [Lane { order, ..lane(TOPIC, slots) }];
        self.outbox.arrange(&lanes, Hold::All).await.expect("arrange");
        self.outbox.claim(&lanes, LEASE, LAPSES_MAX).await.expect("claim")
    }

    pub async fn claim_one(&self) -> Claim {
        let mut claims = self.claim(1).await;
        assert_eq!(claims.len(), 1, "one message is due");
        claims.remove(0)
    }

    pub async fn settle_one(&self, claim: &Claim, transition: Transition) -> LeaseStatus {
        self.outbox.settle(&[settlement(claim, transition)]).await.expect("settle")[0]
    }

    pub async fn release_one(&self, claim: &Claim, after: Duration) -> LeaseStatus {
        let transition = Transition::Released { after, reason: Reason::Interrupted, error: "the relay stops".into() };
        self.outbox.release(&[settlement(claim, transition)]).await.expect("release")[0]
    }

    pub async fn show(&self, id: MessageId) -> MessageDetail {
        self.admin.show(id).await.expect("show").expect("the message is there")
    }

    pub async fn state_of(&self, id: MessageId) -> State {
        State::parse(&self.show(id).await.summary.state).expect("a state")
    }
}

/// The table's name, in `public` and in the way of whoever forgets the schema.
async fn decoy(url: &str) {
    let mut connection = PgConnection::connect(url).await.expect("connect");
    let sql =
        "create schema shop; create table public.outbox (decoy text); create table public.outbox_control (decoy text);
         create table public.outbox_keys (decoy text)";
    sqlx::raw_sql(sql).execute(&mut connection).await.expect("create the decoys");
}

fn options() -> StoreOptions {
    StoreOptions { on_delivered: OnDelivered::Keep, ..StoreOptions::default() }
}

/// What a test publishes.
#[derive(Clone, Debug)]
pub struct Draft(MemoryMessage);

pub fn draft(topic: &str) -> Draft {
    Draft(MemoryMessage { topic: topic.into(), payload: b"{}".to_vec(), ..MemoryMessage::default() })
}

impl Draft {
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.0.payload = payload.into();
        self
    }

    pub fn key(mut self, key: &str) -> Self {
        self.0.key = Some(key.into());
        self
    }

    pub fn headers(mut self, headers: &[(&str, &str)]) -> Self {
        self.0.headers =
            headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect::<BTreeMap<_, _>>();
        self
    }

    pub fn dedup_key(mut self, dedup_key: &str) -> Self {
        self.0.dedup_key = Some(dedup_key.into());
        self
    }

    pub fn delay(mut self, delay: Duration) -> Self {
        self.0.delay = delay;
        self
    }

    pub fn expires(mut self, expires: Duration) -> Self {
        self.0.expires = Some(expires);
        self
    }

    fn in_memory(self) -> MemoryMessage {
        self.0
    }

    fn new_message(self) -> NewMessage {
        let MemoryMessage { topic, key, payload, headers, dedup_key, delay, expires, .. } = self.0;
        let mut message = NewMessage::from_json(topic, String::from_utf8(payload).expect("text")).delay(delay);
        if let Some(key) = key {
            message = message.key(key);
        }
        for (name, value) in headers {
            message = message.header(name, value);
        }
        if let Some(dedup_key) = dedup_key {
            message = message.dedup_key(dedup_key);
        }
        if let Some(expires) = expires {
            message = message.expires(expires);
        }
        message
    }
}

pub fn lane(topic: &str, slots: u32) -> Lane {
    Lane { topic: topic.into(), slots, order: Order::None }
}

pub fn held(claim: &Claim) -> Held {
    Held { id: claim.message.id, lease_id: claim.lease_id }
}

pub fn settlement(claim: &Claim, transition: Transition) -> Settlement {
    let record = AttemptRecord { took: Duration::from_millis(12), ..AttemptRecord::of(claim.attempt) };
    Settlement { record, ..Settlement::of(claim, transition) }
}

pub fn retry(after: Duration) -> Transition {
    Transition::Pending { after, reason: Reason::Retry, error: "try later".into() }
}

pub fn dead() -> Transition {
    Transition::Dead { reason: Reason::Cancelled, error: "gone".into() }
}

pub fn ids(claims: &[Claim]) -> Vec<MessageId> {
    claims.iter().map(|claim| claim.message.id).collect()
}
