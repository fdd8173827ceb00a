// A shop on a running system: it orders, loses answers and webhooks, and recovers them. BASE_URL, ACCESS_KEY, SECRET_KEY
// and WEBHOOK_SECRET are those of a sandbox account, whose options produce the failures. Webhooks are also verified with
// the library of Standard Webhooks.
import { deepStrictEqual, ok, rejects, strictEqual } from "node:assert";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { OrderIdTaken, OrderRefused, Partner, verifyWebhook, type Webhook } from "esim-partner";
import { Webhook as StandardWebhook } from "standardwebhooks";
import { setting } from "./vectors.js";

const secret = setting("WEBHOOK_SECRET");
const partner = new Partner({
  baseUrl: setting("BASE_URL"),
  accessKey: setting("ACCESS_KEY"),
  secretKey: setting("SECRET_KEY"),
  waits: { first: [1, 1, 1] },
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
const received: Webhook[] = [];
const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    const body = Buffer.concat(chunks);
    received.push(verifyWebhook(secret, body, request.headers));
    new StandardWebhook(secret).verify(body, request.headers as Record<string, string>);
    response.writeHead(received.length === 1 ? 410 : 200).end();
  });
});
const webhooks = async (id: string, count = 1): Promise<Webhook[]> =>
  until(`webhook ${id}`, async () => {
    const found = received.filter((one) => one.id === id);
    return found.length >= count ? found : undefined;
  });
const fresh = (): string => `TypeScript client/${randomUUID()}`;
const options = new Map<string, string>();
const item = (name: string, qty: number) => {
  const option_id = options.get(name);
  ok(option_id, `there is no option ${name}`);
  return { option_id, qty };
};

before(async () => {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/webhooks`;
  const { data } = await partner.api.PUT("/webhook", { body: { url, events: ["key.expiring"] } });
  strictEqual(data?.url, url);
  for await (const { name, option_id } of partner.options()) options.set(name, option_id);
});
after(async () => {
  await partner.api.PUT("/webhook", { body: { url: null } });
  server.closeAllConnections();
  server.close();
});

test("a lost webhook is recovered", async () => {
  const externalOrderId = fresh();
  const placed = await partner.order(externalOrderId, [item("ready", 1)]);
  ok(!placed.storedBefore);
  const topup_id = placed.topups[0]?.topup_id ?? "";
  const [lost] = await webhooks(topup_id);
  ok(lost?.kind === "esim");
  const topup = { params: { path: { topup_id } } };
  const attempts = await until("end of the retries", async () => {
    const { data } = await partner.api.GET("/topups/{topup_id}/deliveries", topup);
    return data?.state === "exhausted" ? data.attempts : undefined;
  });
  deepStrictEqual(attempts.map(({ status }) => status), [410]);
  await until("redelivery", async () => (await partner.api.POST("/topups/{topup_id}/redeliver", topup)).data);
  const again = (await webhooks(topup_id, 2))[1];
  ok(again?.kind === "esim");
  deepStrictEqual(again.esim, lost.esim);
  deepStrictEqual((await partner.findOrder(externalOrderId))?.topups[0]?.esim, lost.esim);
  const ids: string[] = [];
  for await (const order of partner.orders({ state: "ready" })) ids.push(order.external_order_id);
  ok(ids.includes(externalOrderId));
});

for (const option of ["stored-then-500", "answer-lost", "limited-first"])
  test(`what the guide warns of is settled: ${option}`, async () => {
    const externalOrderId = fresh();
    const placed = await partner.order(externalOrderId, [item(option, 2)]);
    strictEqual(placed.storedBefore, option !== "limited-first");
    strictEqual(new Set(placed.topups.map(({ topup_id }) => topup_id)).size, 2);
    for (const { topup_id } of placed.topups) strictEqual((await webhooks(topup_id))[0]?.kind, "esim");
    // After a crash of the shop, the same call finds the same order, and another one does not.
    const again = await partner.order(externalOrderId, [item(option, 2)]);
    deepStrictEqual(again, { ...placed, storedBefore: true, state: "ready" });
    await rejects(partner.order(externalOrderId, [item("ready", 2)]), OrderIdTaken);
  });

test("every id that can be ordered can be looked up", async () => {
  for (const id of [".", "..", `a/../b ?&=%2E+ü ${randomUUID()}`]) {
    const placed = await partner.order(id, [item("stored-then-500", 1)]);
    ok(placed.storedBefore);
    deepStrictEqual((await partner.findOrder(id))?.topups.map(({ topup_id }) => topup_id), [placed.topups[0]?.topup_id]);
  }
});

test("a refused order says why", async () => {
  // An order is accepted until the first heartbeat of a provisioner has arrived.
  const refused = await until("refusal", async () => {
    try {
      await partner.order(fresh(), [item("out-of-stock", 1)], { firstCall: true });
    } catch (error) {
      return error;
    }
    return undefined;
  });
  ok(refused instanceof OrderRefused, String(refused));
  deepStrictEqual(refused.codes, ["provider_rejected"]);
  strictEqual(await partner.findOrder(fresh()), undefined);
});

test("an order that waits is cancelled", async () => {
  const external_order_id = fresh();
  await partner.order(external_order_id, [item("cancellable", 1)]);
  const order = { params: { path: { external_order_id } } };
  const cancelled = await until("cancellation", async () => (await partner.api.DELETE("/orders/{external_order_id}", order)).data);
  strictEqual(cancelled.state, "cancelled");
});

test("an event arrives", async () => {
  const { data } = await partner.api.POST("/sandbox/events", { body: { type: "key.expiring" } });
  ok(data);
  const [event] = await webhooks(data.event_id);
  ok(event?.kind === "event" && event.event.type === "key.expiring");
  strictEqual(event.event.data.credential, "keys");
  const ids: string[] = [];
  for await (const { event_id } of partner.events()) ids.push(event_id);
  ok(ids.includes(data.event_id));
});
