// A shop with the generated TypeScript client: it orders, loses a webhook, and recovers it. The types are generated
// from docs/openapi.json; webhooks are verified with the Standard Webhooks library.
import { deepStrictEqual, ok, strictEqual } from "node:assert";
import { createHmac, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import createClient from "openapi-fetch";
import { Webhook } from "standardwebhooks";
import type { components, paths } from "./schema.js";

type Esim = components["schemas"]["Esim"];

const setting = (name: string): string => {
  const value = process.env[name];
  ok(value, `${name} is not set`);
  return value;
};
const [base, accessKey, optionId] = [setting("BASE_URL"), setting("ACCESS_KEY"), setting("OPTION_ID")];
const key = Buffer.from(setting("SECRET_KEY"), "base64");

const client = createClient<paths>({ baseUrl: `${base}/api/v1/api_partner` });
client.use({
  onRequest({ request }) {
    const timestamp = String(Math.floor(Date.now() / 1000));
    const text = [request.method, new URL(request.url).pathname, timestamp, accessKey].join("\n");
    request.headers.set("X-Service-Access-Key", accessKey);
    request.headers.set("X-Service-Timestamp", timestamp);
    request.headers.set("X-Service-Signature", createHmac("sha256", key).update(text).digest("hex"));
    return request;
  },
});

/** Looks every 100 ms, for at most 60 s. */
async function until<T>(what: string, look: () => Promise<T | undefined>): Promise<T> {
  for (let turn = 0; turn < 600; turn++) {
    const found = await look();
    if (found !== undefined) return found;
    await sleep(100);
  }
  throw new Error(`no ${what} within 60 s`);
}

// The first webhook gets a 410, which ends its retries; the others are acknowledged.
const received: { id: string; esim: Esim }[] = [];
const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    const headers = request.headers as Record<string, string>;
    const esim = new Webhook(setting("WEBHOOK_SECRET")).verify(Buffer.concat(chunks), headers) as Esim;
    received.push({ id: headers["webhook-id"] ?? "", esim });
    response.writeHead(received.length === 1 ? 410 : 200).end();
  });
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
const webhook = async (index: number) => until("webhook", async () => received[index]);

const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/webhooks`;
strictEqual((await client.PUT("/webhook", { body: { url } })).data?.url, url);

const external_order_id = `TypeScript client/${randomUUID()}`;
const order = { external_order_id, products: [{ option_id: optionId, qty: 1 }] };
const created = await client.POST("/orders", { body: order });
const topup_id = created.data?.products[0]?.topup_id;
ok(topup_id, JSON.stringify(created.error));
const repeated = await client.POST("/orders", { body: order });
strictEqual(repeated.response.headers.get("X-Service-Error"), "external_order_id_taken");

const lost = await webhook(0);
strictEqual(lost.id, topup_id);
const topup = { params: { path: { topup_id } } };
const attempts = await until("end of the retries", async () => {
  const { data } = await client.GET("/topups/{topup_id}/deliveries", topup);
  return data?.state === "exhausted" ? data.attempts : undefined;
});
deepStrictEqual(attempts.map(({ status }) => status), [410]);
await until("redelivery", async () => (await client.POST("/topups/{topup_id}/redeliver", topup)).data);
deepStrictEqual(await webhook(1), lost);

const shown = await client.GET("/orders/{external_order_id}", { params: { path: { external_order_id } } });
deepStrictEqual(shown.data?.topups[0]?.esim, lost.esim);
server.closeAllConnections();
server.close();
console.log("the generated TypeScript client ordered, verified and recovered a webhook");
