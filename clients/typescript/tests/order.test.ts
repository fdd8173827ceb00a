// What `order` does with each answer of a small HTTP server that plays the service.
import { deepStrictEqual, ok, rejects, strictEqual } from "node:assert";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, beforeEach, test } from "node:test";
import { ApiError, InDoubt, OrderIdTaken, OrderRefused, Partner, Unavailable, type PlacedOrder } from "esim-partner";

const OPTION = "424b7b26-96e7-5c95-8df9-6654a3998070";
const OTHER = "28703ec8-aebf-52e0-8465-f0c8e2ff2bef";
const TOPUPS = ["20250129123456123456789012", "20250129123456123456789013"].map((topup_id) => ({ topup_id, option_id: OPTION }));

interface Scripted {
  status: number;
  codes?: string;
  body: unknown;
}
/** Closes the connection without an answer. */
const CLOSED = undefined;
const DONE: Scripted = { status: 201, body: { products: TOPUPS } };
const TAKEN: Scripted = { status: 422, codes: "external_order_id_taken, option_not_found; item=0", body: { errors: ["taken"] } };
const REFUSED: Scripted = { status: 422, codes: "provider_rejected", body: { errors: ["eSIM Request failed - Status: 9005"] } };
const ERROR: Scripted = { status: 500, codes: "internal_error", body: { error: "Internal server error" } };
const PROXY: Scripted = { status: 502, body: "<h1>Bad gateway</h1>" };
const BUSY: Scripted = { status: 503, codes: "order_undecided", body: { error: "busy" } };
const LIMITED: Scripted = { status: 429, codes: "rate_limited", body: { error: "slow down" } };
const UNKNOWN: Scripted = { status: 404, codes: "not_found", body: { error: "Not found" } };

const stored = (option_id = OPTION, state = "processing"): Scripted => ({
  status: 200,
  body: { external_order_id: "A-1", state, topups: TOPUPS.map((topup) => ({ ...topup, option_id })) },
});

let script: (Scripted | undefined)[] = [];
let requests: string[] = [];
let slept: number[] = [];
const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    requests.push(`${request.method} ${request.url} ${Buffer.concat(chunks)}`.trim());
    const scripted = script.shift();
    if (!scripted) return void request.socket.destroy();
    const { status, codes, body } = scripted;
    if (codes) response.setHeader("X-Service-Error", codes);
    if ([429, 503].includes(status)) response.setHeader("Retry-After", "7");
    response.setHeader("X-Request-Id", "r-1");
    response.writeHead(status).end(typeof body === "string" ? body : JSON.stringify(body));
  });
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
after(() => {
  server.closeAllConnections();
  server.close();
});
const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
const sleep = async (seconds: number): Promise<void> => void slept.push(seconds);
const partner = new Partner({ baseUrl, accessKey: "ak_example", secretKey: "c2VjcmV0LWtleQ==", sleep });
const ITEMS = [{ option_id: OPTION, qty: 2 }];

beforeEach(() => {
  script = [];
  requests = [];
  slept = [];
});

async function order(answers: (Scripted | undefined)[], patience = 1e6): Promise<PlacedOrder> {
  script = [...answers];
  try {
    return await partner.order("A-1", ITEMS, { patience });
  } finally {
    deepStrictEqual(script, [], "not every answer was asked for");
  }
}

test("an order that is accepted is sent once", async () => {
  deepStrictEqual(await order([DONE]), { externalOrderId: "A-1", topups: TOPUPS, storedBefore: false });
  const body = JSON.stringify({ external_order_id: "A-1", products: ITEMS });
  deepStrictEqual(requests, [`POST /api/v1/api_partner/orders ${body}`]);
  deepStrictEqual(slept, []);
});

for (const [name, lost] of Object.entries({ closed: CLOSED, error: ERROR, proxy: PROXY }))
  test(`a lost answer (${name}) is settled by a repeat and a look-up`, async () => {
    const placed = await order([lost, TAKEN, stored()]);
    deepStrictEqual(placed, { externalOrderId: "A-1", topups: TOPUPS, storedBefore: true });
    strictEqual(requests.length, 3);
    strictEqual(requests[0], requests[1], "the repeat is the same order");
    strictEqual(requests[2], "GET /api/v1/api_partner/orders/A-1");
    deepStrictEqual(slept, [1]);
    strictEqual((await order([lost, DONE])).storedBefore, false);
  });

test("the waits are those of the guide", async () => {
  await order([ERROR, CLOSED, PROXY, ERROR, ERROR, ERROR, LIMITED, BUSY, DONE]);
  deepStrictEqual(slept, [1, 2, 4, 8, 60, 60, 7, 7]);
});

test("a refused order is not repeated", async () => {
  await rejects(order([REFUSED]), (error: Error) => {
    ok(error instanceof OrderRefused);
    deepStrictEqual(error.codes, ["provider_rejected"]);
    return /9005/.test(error.message) && /r-1/.test(error.message);
  });
  // After a 500 of the service itself nothing is on its way any more.
  await rejects(order([ERROR, REFUSED]), OrderRefused);
  deepStrictEqual(slept, [1]);
});

for (const [name, lost] of Object.entries({ closed: CLOSED, proxy: PROXY }))
  test(`a refusal after a lost answer (${name}) is believed only after a minute`, async () => {
    ok((await order([lost, REFUSED, stored()])).storedBefore);
    strictEqual(slept[0], 1);
    ok(slept[1] && slept[1] > 55 && slept[1] <= 60, String(slept));
    for (const answer of [UNKNOWN, stored(OPTION, "refused"), stored(OTHER)])
      await rejects(order([lost, REFUSED, answer]), OrderRefused);
  });

test("an id of another order is not mistaken for this one", async () => {
  await rejects(order([TAKEN, stored(OTHER)]), (error: Error) => {
    ok(error instanceof OrderIdTaken);
    return error.order?.topups[0]?.option_id === OTHER;
  });
  const archived = { status: 410, codes: "order_archived", body: { error: "archived" } };
  await rejects(order([TAKEN, archived]), (error: Error) => error instanceof OrderIdTaken && error.order === undefined);
  // The look-up is repeated; the order itself is not.
  ok((await order([TAKEN, ERROR, CLOSED, stored()])).storedBefore);
  await rejects(order([TAKEN, ERROR, ERROR, ERROR, ERROR, ERROR]), Unavailable);
});

test("a wrong request is not repeated", async () => {
  const denied = { status: 401, codes: "signature_invalid", body: { error: { code: "unauthorized", message: "Invalid signature." } } };
  await rejects(order([denied]), (error: Error) => error instanceof ApiError && /Invalid signature/.test(error.message));
  // But it says nothing about an earlier request.
  await rejects(order([CLOSED, denied]), InDoubt);
});

test("the end of the patience says whether the order may be stored", async () => {
  await rejects(order([ERROR], 0.5), InDoubt);
  await rejects(order([CLOSED], 0.5), InDoubt);
  await rejects(order([LIMITED], 5), Unavailable);
  await rejects(order([BUSY], 5), Unavailable);
  const nobody = createServer();
  await new Promise<void>((resolve) => nobody.listen(0, "127.0.0.1", resolve));
  const { port } = nobody.address() as AddressInfo;
  await new Promise((resolve) => nobody.close(resolve));
  const alone = new Partner({ baseUrl: `http://127.0.0.1:${port}`, accessKey: "ak", secretKey: "c2VjcmV0LWtleQ==", sleep });
  await rejects(alone.order("A-1", ITEMS, { patience: 0.5 }), Unavailable);
  const wrong = new Partner({ baseUrl: "localhost", accessKey: "ak", secretKey: "c2VjcmV0LWtleQ==", sleep });
  await rejects(wrong.order("A-1", ITEMS), /URL/);
});

test("lists are read to their end", async () => {
  const page = (names: string[], next_cursor: string | null): Scripted => ({
    status: 200,
    body: { options: names.map((name) => ({ option_id: OPTION, name, details: {} })), next_cursor },
  });
  script = [page(["a", "b"], "x/="), LIMITED, page([], "y"), page(["c"], null)];
  const names: string[] = [];
  for await (const option of partner.options()) names.push(option.name);
  deepStrictEqual(names, ["a", "b", "c"]);
  const second = "limit=100&cursor=x%2F%3D";
  deepStrictEqual(requests.map((request) => request.split("?")[1]), ["limit=100", second, second, "limit=100&cursor=y"]);
  deepStrictEqual(slept, [7]);

  script = [page(["a"], null)];
  const filters = { country: "JP", min_data_mb: 1024, unlimited: false, min_days: 7, max_days: 30 };
  for await (const option of partner.options(filters)) strictEqual(option.name, "a");
  const query = "country=JP&min_data_mb=1024&unlimited=false&min_days=7&max_days=30&limit=100";
  strictEqual(requests.at(-1)?.split("?")[1], query);
});

test("ids are encoded in paths", async () => {
  script = [UNKNOWN, stored()];
  strictEqual(await partner.findOrder("A/1 ü?"), undefined);
  strictEqual((await partner.findOrder("A-1"))?.state, "processing");
  strictEqual(requests[0], "GET /api/v1/api_partner/orders/A%2F1%20%C3%BC%3F");
});

test("the waits can be changed", async () => {
  const waits = { first: [0.5], then: 3 };
  const base = `${baseUrl}/v1/api_partner/`;
  const patient = new Partner({ baseUrl: base, accessKey: "ak", secretKey: "c2VjcmV0LWtleQ==", sleep, waits });
  script = [ERROR, ERROR, ERROR, DONE];
  await patient.order("A-1", ITEMS);
  deepStrictEqual(slept, [0.5, 3, 3]);
  ok(requests[0]?.startsWith("POST /v1/api_partner/orders "));
});
