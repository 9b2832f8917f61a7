const { Pool } = require("pg");
const { drizzle } = require("drizzle-orm/node-postgres");
const { bigint, pgTable } = require("drizzle-orm/pg-core");

const orders = pgTable("orders", { id: bigint("id", { mode: "number" }).primaryKey() });

@PAGE@

(async () => {
  const pool = new Pool({ connectionString: process.argv[2] });
  await placeOrder(drizzle(pool), 7);
  const error = await placeOrder(drizzle(pool), 7).catch((error) => error);
  await pool.end();
  if ((error?.cause ?? error)?.code !== "23505") throw new Error("the second order was taken");
})();
