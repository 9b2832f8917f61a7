// Verifies a `v1a` signature on stdin, {"secret": "whpk_…", "headers", "body"}, with Node's own Ed25519; prints the body.
const { createPublicKey, verify } = require("crypto");

const { secret, headers, body } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const x = Buffer.from(secret.replace(/^whpk_/, ""), "base64").toString("base64url");
const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
const content = Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`);
const signatures = headers["webhook-signature"].split(" ").filter((signature) => signature.startsWith("v1a,"));
if (!signatures.some((signature) => verify(null, content, key, Buffer.from(signature.slice(4), "base64")))) {
  throw new Error("no matching signature");
}
console.log(JSON.stringify(JSON.parse(body)));
