// A shop behind a real proxy that throws the first answer to each request away and answers by itself, after the request
// has reached the running system. PROXIES has the base URLs by status; see tests/contract/proxy.py of the service.
import { deepStrictEqual, ok, rejects, strictEqual } from "node:assert";
import { randomUUID } from "node:crypto";
import { before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ForeignAnswer, InDoubt, OrderIdTaken, Partner, Unanswered } from "esim-partner";
import { setting } from "./vectors.js";

const PROXIES = JSON.parse(setting("PROXIES")) as Record<string, string>;
const shop = (baseUrl: string, first = [1, 1, 1]): Partner =>
  new Partner({ baseUrl, accessKey: setting("ACCESS_KEY"), secretKey: setting("SECRET_KEY"), waits: { first } });
const direct = shop(setting("BASE_URL"));
const options = new Map<string, string>();
const item = (name: string, qty = 1) => ({ option_id: options.get(name) ?? "", qty });
const fresh = (): string => `typescript-proxy-${randomUUID()}`;

before(async () => {
  for await (const { name, option_id } of direct.options()) options.set(name, option_id);
});

for (const [status, url] of Object.entries(PROXIES)) {
  test(`after a ${status} of the proxy, an order that passed it is found`, async () => {
    const id = fresh();
    const placed = await shop(url).order(id, [item("ready", 2)], { firstCall: true });
    ok(placed.storedBefore);
    const topups = (await direct.findOrder(id))?.topups.map(({ topup_id }) => topup_id);
    deepStrictEqual(topups, placed.topups.map(({ topup_id }) => topup_id));
  });

  test(`after a ${status} of the proxy, no call says that nothing is stored`, async () => {
    const id = fresh();
    await rejects(shop(url).order(id, [item("ready")], { firstCall: true, patience: 0.9 }), InDoubt);
    // The job of the shop is run again, in another process and while nobody answers.
    await rejects(shop("http://esim.invalid").order(id, [item("ready")], { patience: 0.9 }), InDoubt);
    ok((await direct.order(id, [item("ready")])).storedBefore);
    await rejects(direct.order(id, [item("ready", 2)]), OrderIdTaken);
  });

  test(`after a ${status} of the proxy, a look-up believes only the service`, async () => {
    const id = fresh();
    await direct.order(id, [item("ready")]);
    ok(await shop(url).findOrder(id));
    await rejects(shop(url, []).findOrder(fresh()), Unanswered);
  });

  test(`after a ${status} of the proxy, a cancellation is repeated`, async () => {
    const external_order_id = fresh();
    await direct.order(external_order_id, [item("cancellable")]);
    const order = { params: { path: { external_order_id } } };
    const { api } = shop(url);
    await rejects(api.DELETE("/orders/{external_order_id}", order), ForeignAnswer);
    // Until its purchase was rejected for the first time it cannot be cancelled.
    const end = performance.now() + 60_000;
    while ((await api.DELETE("/orders/{external_order_id}", order)).response.status !== 200) {
      ok(performance.now() < end);
      await sleep(100);
    }
    strictEqual((await direct.findOrder(external_order_id))?.state, "cancelled");
  });
}
