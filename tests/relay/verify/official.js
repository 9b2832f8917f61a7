// Verifies a request on stdin, {"secret", "headers", "body"}, with Standard Webhooks' library for JavaScript; prints the body.
const { Webhook } = require("standardwebhooks");

const { secret, headers, body } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(new Webhook(secret).verify(body, headers)));
