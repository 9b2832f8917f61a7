// Tries the cases with node's pg: text alone is the simple protocol, a named query the extended one.
const fs = require("fs");
const { Client } = require("pg");

async function attempt(client, protocol, test, number) {
  const run = async () => {
    for (const [place, text] of test.steps.entries()) {
      await client.query(protocol === "simple" ? { text } : { text, name: `case${number}_${place}` });
    }
  };
  if (test.mode === "autocommit" || test.mode === "batch") return run();
  await client.query("begin");
  await run();
  await client.query(test.mode === "rollback" ? "rollback" : "commit");
}

async function main(socket, database, cases) {
  const client = new Client({ host: socket, user: "postgres", database });
  await client.connect();
  for (const protocol of ["simple", "extended"]) {
    for (const [number, test] of cases.entries()) {
      if (protocol === "extended" && test.mode === "batch") continue;
      await client.query("truncate shop.outbox, shop.orders, shop.watched");
      let error = null;
      try {
        await attempt(client, protocol, test, number);
      } catch (refusal) {
        error = `${refusal.message} ${refusal.hint}`;
        await client.query("rollback");
      }
      const rows = Number((await client.query("select count(*) from shop.outbox")).rows[0].count);
      console.log(JSON.stringify({ protocol, name: test.name, error, rows }));
    }
  }
  await client.end();
}

main(process.argv[2], process.argv[3], JSON.parse(fs.readFileSync(process.argv[4])));
