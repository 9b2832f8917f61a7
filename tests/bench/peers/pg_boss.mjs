// Fetched and completed 500 at a time without a pause: faster than its own polling worker.
import pg from "pg";
import PgBoss from "pg-boss";

const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
const boss = new PgBoss({ connectionString, supervise: false, schedule: false });
await boss.start();
await boss.createQueue("noop");
for (let from = 0; from < count; from += 1000) {
  const size = Math.min(1000, count - from);
  await boss.insert(Array.from({ length: size }, () => ({ name: "noop", data: { order: 1 } })));
}
const pool = new pg.Pool({ connectionString });
await pool.query("vacuum analyze");
await pool.query("checkpoint");
const begun = performance.now();
for (;;) {
  const jobs = await boss.fetch("noop", { batchSize: 500 });
  if (jobs.length === 0) break;
  await boss.complete("noop", jobs.map((job) => job.id));
}
console.log(JSON.stringify({ per_second: count / ((performance.now() - begun) / 1000) }));
process.exit(0);
