//! `docs/publish.md` shows nothing that was not run: each block of it is put into a small program of `publish/`, which places
//! order 7 twice. The second time the commit fails, and the message must be gone with the order.

use std::path::PathBuf;
use std::process::Command;

use outboxd_test_support::postgres::TestPostgres;
use outboxd_test_support::proxy::Proxy;
use outboxd_test_support::tools::tool;
use serde_json::Value;

use crate::page::{block, execute, tcp_url};
use crate::stage::Stage;

const PAGE: &str = include_str!("../../docs/publish.md");

/// A shop with a table of orders, which finds out at commit that there are two of one number.
struct Shop {
    stage: Stage,
    proxy: Option<Proxy>,
    /// What programs connect to.
    url: String,
}

const ORDERS: &str = "create table orders (id bigint primary key deferrable initially deferred)";

impl Shop {
    fn postgres() -> Shop {
        let stage = Stage::postgres();
        let proxy = Proxy::before_postgres(TestPostgres::shared().socket_folder());
        let url = tcp_url(&proxy, &stage.database);
        execute(&stage.database, ORDERS);
        Shop { stage, proxy: Some(proxy), url }
    }

    fn sqlite() -> Shop {
        let stage = Stage::sqlite();
        execute(&stage.database, "create table orders (id integer primary key)");
        let url = stage.database.clone();
        Shop { stage, proxy: None, url }
    }

    /// Writes the program `file` of `publish/` with the page's block in it.
    fn write(&self, file: &str, heading: &str) -> PathBuf {
        let source = outboxd_test_support::repository().join("tests/relay/publish").join(file);
        let program = std::fs::read_to_string(source).expect("a program").replace("@PAGE@", block(PAGE, heading));
        // Not by its own name: `django.py` would hide Django.
        let path = self.stage.path().join(if file == "Shop.java" { file.into() } else { format!("page_{file}") });
        std::fs::write(&path, program).expect("written");
        path
    }

    fn run(&self, command: &mut Command) {
        let output = command.arg(&self.url).current_dir(self.stage.path()).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
    }

    /// The one message of the order that was committed.
    fn assert_one_order_published(&self) {
        let list = self.stage.outboxd(&["messages", "list", "--json"]).ok();
        let list: Value = serde_json::from_str(&list).expect("JSON");
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{list:#}");
        let message = self.stage.show(list[0]["id"].as_str().expect("an id"));
        let payload = message["payload"].as_str().map(serde_json::from_str::<Value>);
        assert_eq!(message["topic"], "orders.created", "{message:#}");
        assert_eq!(payload.expect("a text").expect("JSON"), serde_json::json!({ "order": 7 }));
    }
}

fn python(shop: &Shop, file: &str, heading: &str) {
    let Some(python) = tool("python") else { return };
    shop.run(Command::new(python.join("bin/python")).arg(shop.write(file, heading)));
    shop.assert_one_order_published();
}

fn node(file: &str, heading: &str) {
    let Some(node) = tool("node") else { return };
    let shop = Shop::postgres();
    shop.run(Command::new("node").env("NODE_PATH", node.join("node_modules")).arg(shop.write(file, heading)));
    shop.assert_one_order_published();
}

#[test]
fn asyncpg() {
    python(&Shop::postgres(), "asyncpg.py", "asyncpg");
}

#[test]
fn psycopg() {
    python(&Shop::postgres(), "psycopg.py", "psycopg");
}

#[test]
fn sqlalchemy() {
    python(&Shop::postgres(), "sqlalchemy.py", "SQLAlchemy");
}

#[test]
fn django() {
    python(&Shop::postgres(), "django.py", "Django");
}

#[test]
fn sqlite3() {
    python(&Shop::sqlite(), "sqlite3.py", "sqlite3");
}

#[test]
fn node_pg() {
    node("pg.js", "Node, pg");
}

#[test]
fn node_drizzle() {
    node("drizzle.js", "Node, Drizzle");
}

#[test]
fn go() {
    let (Some(go), Some(path)) = (tool("go"), tool("go-pq")) else { return };
    let shop = Shop::postgres();
    let mut command = Command::new(go.join("bin/go"));
    // Debian's packages of Go modules lie in a GOPATH.
    command.env("GO111MODULE", "off").env("GOPATH", path).env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
    shop.run(command.arg("run").arg(shop.write("shop.go", "Go")));
    shop.assert_one_order_published();
}

#[test]
fn java() {
    let (Some(jdbc), Some(_)) = (tool("jdbc"), tool("jdk")) else { return };
    let shop = Shop::postgres();
    let program = shop.write("Shop.java", "Java, JDBC");
    shop.run(Command::new("java").arg("-cp").arg(jdbc.join("postgresql.jar")).arg(program));
    shop.assert_one_order_published();
}

/// Runs the page's command and one of its migrations on an empty database; a relay must then find the table up to date.
fn migrated_by(file: &str, heading: &str) {
    let Some(python) = tool("python") else { return };
    let mut shop = Shop::postgres();
    shop.url = tcp_url(shop.proxy.as_ref().expect("a proxy"), &TestPostgres::shared().database());
    shop.stage.database = shop.url.clone();
    shop.stage.configure("");
    let command = block(PAGE, "The table in your own migrations");
    let outboxd = shop.stage.command(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-euc", &format!("outboxd() {{ \"$BINARY\" \"$@\" --config outboxd.toml; }}\n{command}"), "sh"]);
    shop.run(shell.env("BINARY", outboxd.get_program()));
    std::fs::write(shop.stage.path().join("page.py"), block(PAGE, heading)).expect("written");

    shop.run(Command::new(python.join("bin/python")).arg(shop.write(file, heading)));

    let again = shop.stage.outboxd(&["migrate"]).ok();
    assert!(again.contains("up to date"), "{again}");
    shop.stage.publish("orders.created", "{}");
}

#[test]
fn alembic_holds_the_table() {
    migrated_by("alembic.py", "Alembic");
}

#[test]
fn django_holds_the_table() {
    migrated_by("django_migration.py", "Django migration");
}
