//! Publishes messages for outboxd: [`publish()`] inserts a message in the caller's own open transaction, so that the message
//! and the rows it tells about share one fate.
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use outboxd_client::{NewMessage, Outbox, publish};
//!
//! let outbox = Outbox::default();
//!
//! let mut transaction = pool.begin().await?;
//! sqlx::query("insert into orders (id) values (1042)").execute(&mut *transaction).await?;
//! publish(&mut transaction, &outbox, NewMessage::new("order.created", &serde_json::json!({ "order": 1042 }))).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A pool or a connection is not taken: publishing outside a transaction does not compile.
//!
//! ```compile_fail,E0308
//! # async fn example(mut pool: sqlx::PgPool) {
//! # use outboxd_client::{NewMessage, Outbox, publish};
//! publish(&mut pool, &Outbox::default(), NewMessage::from_json("order.created", "{}")).await;
//! # }
//! ```
//!
//! ```compile_fail,E0308
//! # async fn example(mut connection: sqlx::PgConnection) {
//! # use outboxd_client::{NewMessage, Outbox, publish};
//! publish(&mut connection, &Outbox::default(), NewMessage::from_json("order.created", "{}")).await;
//! # }
//! ```
//!
//! Absent on purpose: the relay, the store, wasmtime. A producer compiles none of them.

mod error;
mod new_message;
mod outbox;
mod postgres;
mod publish;
mod sqlite;
pub mod standalone;

pub use error::PublishError;
pub use new_message::NewMessage;
pub use outbox::Outbox;
pub use outboxd_core::TableName;
pub use publish::{Insertion, OutboxDatabase, Published, publish, publish_all};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So does the one of the page about publishing.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/publish.md")]
struct PublishPage;
