use outboxd_store::{OnDelivered, SqliteSynchronous, Store, StoreOptions};
use outboxd_test_support::postgres::TestPostgres;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use tempfile::TempDir;

/// A server, and a folder for SQLite files.
pub struct Stage {
    pub postgres: TestPostgres,
    pub folder: TempDir,
}

/// A migrated outbox of its own.
pub struct Outbox {
    pub url: String,
    pub options: StoreOptions,
}

/// About 150 bytes of JSON: the usual size of an event.
pub const PAYLOAD: &str = r#"{"do":"succeed","order":"01890a5d-ac96-774b-bcce-b302099a8057","customer":"c-48211","amount":"129.90","currency":"EUR","lines":3,"paid":true,"note":"x"}"#;

impl Stage {
    pub fn start() -> Stage {
        // Plain settings of a small server; its commits wait for the disk.
        let settings = ["shared_buffers=256MB", "max_wal_size=4GB", "max_connections=200"];
        Stage {
            postgres: TestPostgres::start_with(&settings),
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    pub async fn postgres(&self, on_delivered: OnDelivered) -> Outbox {
        Outbox::migrated(StoreOptions { url: self.postgres.database(), on_delivered, ..StoreOptions::default() }).await
    }

    /// One that deletes on success.
    pub async fn sqlite(&self, sqlite_synchronous: SqliteSynchronous) -> Outbox {
        let file = self.folder.path().join(format!("{}.db", uuid::Uuid::now_v7()));
        let (url, on_delivered) = (format!("sqlite:{}", file.display()), OnDelivered::Delete);
        Outbox::migrated(StoreOptions { url, on_delivered, sqlite_synchronous, ..StoreOptions::default() }).await
    }
}

/// Why keys do not go on.
#[derive(Clone, Copy)]
pub enum Standing {
    Blocked,
    Resting,
}

impl Outbox {
    async fn migrated(options: StoreOptions) -> Outbox {
        outboxd_store::migrate(&options).await.expect("the outbox is migrated");
        Outbox { url: options.url.clone(), options }
    }

    pub fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    pub async fn store(&self) -> Store {
        Store::connect(&self.options).await.expect("the store opens")
    }

    /// Fills the outbox, spread over so many topics `t0`, `t1`, …
    pub async fn fill(&self, messages: u64, topics: u64) {
        let (messages, topics) = (messages as i64, topics as i64);
        if self.is_sqlite() {
            let mut connection = self.sqlite_connection().await;
            let fill = "with recursive n (n) as (select 0 union all select n + 1 from n where n + 1 < ?1)
                insert into outbox (topic, payload) select 't' || (n % ?2), ?3 from n";
            let fill = sqlx::query(fill).bind(messages).bind(topics).bind(PAYLOAD);
            fill.execute(&mut connection).await.expect("filled");
            sqlx::query("pragma wal_checkpoint(truncate)").execute(&mut connection).await.expect("checkpointed");
            return;
        }
        let mut connection = self.connection().await;
        let fill =
            "insert into outbox (topic, payload) select 't' || (n % $2), $3::json from generate_series(0, $1 - 1) as n";
        sqlx::query(fill).bind(messages).bind(topics).bind(PAYLOAD).execute(&mut connection).await.expect("filled");
        self.sql("vacuum analyze outbox").await;
        self.sql("checkpoint").await;
    }

    /// Fills the outbox with messages of topic `t0`, spread over so many keys `k0`, `k1`, …
    pub async fn fill_keys(&self, messages: u64, keys: u64) {
        let fill = "insert into outbox (topic, key, payload)
            select 't0', 'k' || (n % $2), $3::json from generate_series(0, $1 - 1) as n";
        let fill = sqlx::query(fill).bind(messages as i64).bind(keys as i64).bind(PAYLOAD);
        fill.execute(&mut self.connection().await).await.expect("filled");
        self.sql("vacuum analyze outbox").await;
        self.sql("checkpoint").await;
    }

    /// Fills the outbox with so many held messages of topic `t0`, of a thousand keys that a dead letter blocks or that rest.
    pub async fn fill_held(&self, messages: u64, keys: Standing) {
        let fill = "insert into outbox (topic, key, payload, state)
            select 't0', 'stands' || (n % 1000), $2::json, 'held' from generate_series(0, $1 - 1) as n";
        let fill = sqlx::query(fill).bind(messages as i64).bind(PAYLOAD);
        fill.execute(&mut self.connection().await).await.expect("filled");
        match keys {
            Standing::Blocked => {
                self.sql(
                    "insert into outbox (topic, key, payload, state, dead_at)
                     select 't0', 'stands' || n, '{}', 'dead', now() from generate_series(0, 999) as n",
                )
                .await;
                let keys =
                    "insert into outbox_keys (topic, key, head) select topic, key, id from outbox where state = 'dead'";
                self.sql(keys).await;
            }
            Standing::Resting => {
                self.sql(
                    "insert into outbox_keys (topic, key, free_at, cause, failures)
                     select 't0', 'stands' || n, now() + interval '1 day', 'failures', 5 from generate_series(0, 999) as n",
                )
                .await;
            }
        }
        self.sql("vacuum analyze outbox_keys").await;
    }

    pub async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("connects")
    }

    async fn sqlite_connection(&self) -> SqliteConnection {
        SqliteConnection::connect(&self.url).await.expect("connects")
    }

    pub async fn sql(&self, statement: &str) {
        let mut connection = self.connection().await;
        sqlx::query(AssertSqlSafe(statement.to_string())).execute(&mut connection).await.expect("executed");
    }
}
