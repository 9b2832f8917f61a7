const { Client } = require("pg");

@PAGE@

(async () => {
  const client = new Client({ connectionString: process.argv[2] });
  await client.connect();
  await placeOrder(client, 7);
  const error = await placeOrder(client, 7).catch((error) => error);
  await client.end();
  if (error?.code !== "23505") throw new Error("the second order was taken");
})();
