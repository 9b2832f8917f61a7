// Jobs are taken 500 at a time into a local queue and completed in batches: the fastest setting its documentation has. It logs
// two lines a job by default; here none.
import pg from "pg";
import { Logger, run, runMigrations } from "graphile-worker";

const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
const pool = new pg.Pool({ connectionString, max: 20 });
await runMigrations({ pgPool: pool });
await pool.query(
  `select graphile_worker.add_jobs(array(
     select json_populate_record(null::graphile_worker.job_spec, '{"identifier":"noop","payload":{"order":1}}')
     from generate_series(1, $1::int)))`,
  [count],
);
await pool.query("vacuum analyze");
await pool.query("checkpoint");
let done = 0;
const begun = performance.now();
const ended = new Promise((resolve) => {
  globalThis.finish = resolve;
});
const runner = await run({
  pgPool: pool,
  noHandleSignals: true,
  logger: new Logger(() => () => {}),
  preset: { worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
  taskList: {
    noop: () => {
      done += 1;
      if (done === count) globalThis.finish();
    },
  },
});
await ended;
for (;;) {
  const { rows } = await pool.query("select count(*)::int as left from graphile_worker.jobs");
  if (rows[0].left === 0) break;
}
const seconds = (performance.now() - begun) / 1000;
await runner.stop();
console.log(JSON.stringify({ per_second: count / seconds }));
process.exit(0);
