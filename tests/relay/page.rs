//! Pages of `docs/` whose code is run as it stands there.

use outboxd_test_support::proxy::Proxy;
use sqlx::{AssertSqlSafe, Connection as _};

/// The first block under the heading.
pub fn block(page: &'static str, heading: &str) -> &'static str {
    let place = page.find(&format!("# {heading}\n")).unwrap_or_else(|| panic!("the page has no {heading:?}"));
    let (_, code) = page[place..].split_once("\n```").expect("a block");
    let (_, code) = code.split_once('\n').expect("a line of the fence");
    code.split_once("```").expect("the block ends").0
}

/// A URL that every driver understands: some of them know no Unix sockets.
pub fn tcp_url(proxy: &Proxy, database: &str) -> String {
    let name = database.split(['/', '?']).find(|part| part.starts_with("test")).expect("a database's name");
    proxy.postgres_url(name)
}

/// Runs statements and ends.
pub fn execute(database: &str, sql: &str) {
    in_runtime(async {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        if database.starts_with("sqlite:") {
            sql.execute(&mut sqlx::SqliteConnection::connect(database).await?).await?;
        } else {
            sql.execute(&mut sqlx::PgConnection::connect(database).await?).await?;
        }
        Ok(())
    });
}

/// The number that a query answers. PostgreSQL only.
pub fn number(database: &str, sql: &str) -> i64 {
    in_runtime(async {
        let mut connection = sqlx::PgConnection::connect(database).await?;
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await
    })
}

fn in_runtime<T>(work: impl Future<Output = Result<T, sqlx::Error>>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work).expect("the database does it")
}
