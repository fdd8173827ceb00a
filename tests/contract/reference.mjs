// The reference page's script as it is served: it signs as the guide's vector says, its requests are accepted, and it
// sends nothing but the access key and the signature.
import { deepStrictEqual, ok, strictEqual } from "node:assert";
import { randomUUID } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { BASE_URL: origin, ACCESS_KEY: access, SECRET_KEY: secret, OPTION_ID: option } = process.env;
const get = async (path) => {
  const answer = await fetch(origin + path);
  strictEqual(answer.status, 200, path);
  return answer;
};

const page = await get("/reference");
const policy = page.headers.get("Content-Security-Policy");
for (const part of ["default-src 'none'", "connect-src 'self'", "script-src 'self'", "form-action 'none'"]) {
  ok(policy.includes(part), policy);
}
const folder = await mkdtemp(join(tmpdir(), "reference-"));
const file = join(folder, "reference.mjs");
await writeFile(file, await (await get("/reference.js")).text());
const script = await import(file);
await rm(folder, { recursive: true });
const document = await (await get("/openapi.json")).json();

const guide = await readFile(new URL("../../docs/partner-guide.md", import.meta.url), "utf8");
const vector = guide.split("<!-- request vector -->")[1].split("```")[1];
const value = (name) => vector.match(new RegExp(`^${name}: (.*)$`, "m"))[1];
const keys = { access: value("access key"), secret: value("secret key") };
const hash = await script.digest(value("body"));
strictEqual(hash, value("content sha256"));
strictEqual(await script.sign(keys, value("method"), value("path"), value("timestamp"), hash), value("signature"));

const operations = script.operations(document);
const named = (id) => operations.find(({ operation }) => operation.operationId === id);
const sent = async (id, values, body) => {
  const now = Math.floor(Date.now() / 1000);
  const [url, init] = await script.request(document, named(id), values, body, { access, secret }, now, origin);
  ok(!(String(url) + JSON.stringify(init)).includes(secret), "the secret key is in the request");
  return fetch(url, init);
};

const schema = named("create_order").operation.requestBody.content["application/json"].schema;
const made = script.example(document, schema);
deepStrictEqual(Object.keys(made), ["external_order_id", "metadata", "products"]);
const names = script.fields(document, named("show_order").operation.responses["200"].content["application/json"].schema);
ok(names.some(([name]) => name === "topups[].esim.activate_code"), JSON.stringify(names));

const external_order_id = `reference ?&%/ä ${randomUUID()}`;
const order = JSON.stringify({ external_order_id, products: [{ option_id: option, qty: 1 }] });
strictEqual((await sent("create_order", {}, order)).status, 201);
strictEqual((await sent("show_order", { external_order_id })).status, 200);
const list = await sent("list_orders", { limit: "1", created_after: "2026-01-01T00:00:00+00:00" });
strictEqual((await list.json()).orders[0].external_order_id, external_order_id);
const options = await sent("list_options", {});
strictEqual((await sent("list_options", { "If-None-Match": options.headers.get("ETag") })).status, 304);
console.log(`the reference page signs; it shows ${operations.length} operations`);
