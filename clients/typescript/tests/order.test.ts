// What `order` does with each answer of a small HTTP server that plays the service.
import { deepStrictEqual, ok, rejects, strictEqual } from "node:assert";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, beforeEach, test } from "node:test";
import { ApiError, InDoubt, OrderIdTaken, OrderRefused, Partner, Unanswered, Unavailable, type Item, type PlacedOrder } from "esim-partner";

const OPTION = "424b7b26-96e7-5c95-8df9-6654a3998070";
const OTHER = "28703ec8-aebf-52e0-8465-f0c8e2ff2bef";
const TOPUPS = ["20250129123456123456789012", "20250129123456123456789013"].map((topup_id) => ({ topup_id, option_id: OPTION }));

interface Scripted {
  status: number;
  codes?: string;
  /** The value of the header about repeats. */
  repeat?: string;
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
const DENIED: Scripted = {
  status: 401,
  codes: "signature_invalid",
  body: { error: { code: "unauthorized", message: "Invalid signature." } },
};
const ARCHIVED: Scripted = { status: 410, codes: "order_archived", body: { error: "archived" } };
/** The answers to a repeat. */
const ANSWERED: Scripted = { status: 200, repeat: "answered", body: { products: TOPUPS } };
const UNDECIDED: Scripted = { status: 202, repeat: "undecided", body: { message: "not answered yet" } };
const DIFFERS: Scripted = { status: 409, codes: "order_differs", body: { error: "other units" } };
/** What a proxy answers by itself, perhaps after it has passed the request on. */
const FOREIGN: Scripted[] = [301, 400, 401, 403, 404, 408, 410, 413, 422, 429, 503].flatMap((status) =>
  ["<h1>No</h1>", { errors: ["has already been taken"] }].map((body) => ({ status, body })),
);
/** The look-up of an id that no order has. */
const UNKNOWN: Scripted = { status: 200, body: { orders: [], next_cursor: null } };

/** The look-up of an order. */
const stored = (option_id = OPTION, state = "processing", external_order_id = "A-1"): Scripted => ({
  status: 200,
  body: {
    orders: [
      {
        external_order_id,
        order_id: OPTION,
        state,
        created_at: "2026-11-22T04:00:00.1Z",
        topup_counts: { total: 2, processing: 2, on_hold: 0, ready: 0, failed: 0, returned: 0 },
        topups: TOPUPS.map((topup) => ({ ...topup, option_id, external_order_id, state: "processing" })),
      },
    ],
    next_cursor: null,
  },
});

let script: (Scripted | undefined)[] = [];
let requests: string[] = [];
let repeats: (string | undefined)[] = [];
let slept: number[] = [];
let retryAfter = "7";
const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    requests.push(`${request.method} ${request.url} ${Buffer.concat(chunks)}`.trim());
    repeats.push(request.headers["x-service-repeat"] as string | undefined);
    const scripted = script.shift();
    if (!scripted) return void request.socket.destroy();
    const { status, codes, repeat, body } = scripted;
    if (codes) response.setHeader("X-Service-Error", codes);
    if (repeat) response.setHeader("X-Service-Repeat", repeat);
    if ([202, 429, 503].includes(status)) response.setHeader("Retry-After", retryAfter);
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
const ITEMS: Item[] = [{ option_id: OPTION, qty: 2 }];

beforeEach(() => {
  script = [];
  requests = [];
  repeats = [];
  slept = [];
  retryAfter = "7";
});

async function order(
  answers: (Scripted | undefined)[],
  patience = 1e6,
  items = ITEMS,
  firstCall = true,
): Promise<PlacedOrder> {
  script = [...answers];
  try {
    return await partner.order("A-1", items, { patience, firstCall });
  } finally {
    deepStrictEqual(script, [], "not every answer was asked for");
  }
}

test("an order that is accepted is sent once", async () => {
  deepStrictEqual(await order([DONE]), { externalOrderId: "A-1", topups: TOPUPS, storedBefore: false, state: "processing" });
  const body = JSON.stringify({ external_order_id: "A-1", products: ITEMS });
  deepStrictEqual(requests, [`POST /api/v1/api_partner/orders ${body}`]);
  deepStrictEqual(slept, []);
});

for (const [name, lost] of Object.entries({ closed: CLOSED, error: ERROR, proxy: PROXY }))
  test(`a lost answer (${name}) is settled by a repeat and a look-up`, async () => {
    const placed = await order([lost, TAKEN, stored()]);
    deepStrictEqual(placed, { externalOrderId: "A-1", topups: TOPUPS, storedBefore: true, state: "processing" });
    strictEqual(requests.length, 3);
    strictEqual(requests[0], requests[1], "the repeat is the same order");
    strictEqual(requests[2], "GET /api/v1/api_partner/orders?external_order_id=A-1");
    deepStrictEqual(slept, [1]);
    strictEqual((await order([lost, DONE])).storedBefore, false);
  });

for (const [name, lost] of Object.entries({ closed: CLOSED, error: ERROR, proxy: PROXY }))
  test(`a repeat asks for the lost answer (${name})`, async () => {
    const placed = await order([lost, UNDECIDED, ANSWERED]);
    deepStrictEqual(placed, { externalOrderId: "A-1", topups: TOPUPS, storedBefore: true, state: "processing" });
    deepStrictEqual(repeats, [undefined, "answer", "answer"], "a first request may be long after another call");
    deepStrictEqual(slept, [1, 7]);
    await rejects(order([lost, DIFFERS, stored(OTHER)]), OrderIdTaken);
    // An order that is not decided is stored or not. What else has this status says nothing.
    await rejects(order([lost, UNDECIDED], 6), InDoubt);
    await rejects(order([UNDECIDED], 6), Unavailable);
    for (const other of [{ ...UNDECIDED, repeat: "" }, { ...ANSWERED, repeat: "" }, { ...ANSWERED, body: { products: [] } }])
      await rejects(order([other], 0.9), InDoubt);
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
  // The errors of a 422 are a list. In another form it is not the service's answer, and the repeat decides.
  strictEqual((await order([{ ...REFUSED, body: { error: "" } }, DONE])).storedBefore, false);
});

for (const [name, lost] of Object.entries({ closed: CLOSED, proxy: PROXY }))
  test(`a refusal after a lost answer (${name}) is believed only after a minute`, async () => {
    ok((await order([lost, REFUSED, stored()])).storedBefore);
    strictEqual(slept[0], 1);
    ok(slept[1] && slept[1] > 55 && slept[1] <= 60, String(slept));
    for (const answer of [UNKNOWN, stored(OPTION, "refused"), stored(OPTION, "cancelled"), stored(OTHER)])
      await rejects(order([lost, REFUSED, answer]), OrderRefused);
    // Without a look-up, or with one that says nothing, the earlier request may be stored.
    for (const answer of [stored(OPTION, "enchanted"), ARCHIVED]) await rejects(order([lost, REFUSED, answer]), InDoubt);
    await rejects(order([lost, REFUSED], 30), InDoubt);
  });

test("an error without a code of the service is no answer", async () => {
  for (const foreign of FOREIGN) {
    ok((await order([foreign, TAKEN, stored()])).storedBefore);
    await rejects(order([foreign], 0.9), InDoubt);
    // The request may have passed the proxy and still be on its way.
    ok((await order([foreign, REFUSED, stored()])).storedBefore);
    // The same holds for look-ups, after a taken id and alone.
    ok((await order([TAKEN, foreign, stored()])).storedBefore);
    script = [foreign, stored()];
    ok(await partner.findOrder("A-1"));
    script = Array(5).fill(foreign) as Scripted[];
    await rejects(partner.findOrder("A-1"), Unanswered);
    script = Array(5).fill(foreign) as Scripted[];
    await rejects(partner.orders().next(), Unanswered);
  }
});

test("a further call says nothing of the calls before it", async () => {
  const further = (answers: (Scripted | undefined)[], patience = 1e6): Promise<PlacedOrder> => order(answers, patience, ITEMS, false);
  await rejects(further([LIMITED], 5), (error) => error instanceof InDoubt && /an earlier one may have/.test(error.message));
  // What an earlier call has sent may arrive within a minute, so a refusal is believed only then.
  ok((await further([REFUSED, stored()])).storedBefore);
  ok((slept.at(-1) ?? 0) > 55 && (slept.at(-1) ?? 0) <= 60, String(slept));
  ok((await further([TAKEN, stored(OPTION, "cancelled"), stored()])).storedBefore);
  for (const answer of [UNKNOWN, stored(OPTION, "refused"), stored(OTHER)]) await rejects(further([REFUSED, answer]), OrderRefused);
  await rejects(further([REFUSED, ARCHIVED]), InDoubt);
  await rejects(further([REFUSED], 30), InDoubt);
  // It is the request that is wrong, and not the order that is refused.
  await rejects(further([DENIED]), (error) => error instanceof ApiError && !(error instanceof OrderRefused));
  const nowhere = new Partner({ baseUrl: "http://esim.invalid", accessKey: "ak", secretKey: "c2VjcmV0LWtleQ==", sleep });
  await rejects(nowhere.order("A-1", ITEMS, { patience: 0.9 }), InDoubt);
});

for (const state of ["processing", "ready", "partly_failed", "failed"])
  test(`an order that stands is placed with its state: ${state}`, async () => {
    const look = stored(OPTION, state);
    for (const answers of [[TAKEN, look], [CLOSED, TAKEN, look], [CLOSED, REFUSED, look]]) {
      const placed = await order(answers);
      ok(placed.storedBefore && placed.state === state);
    }
    await rejects(order([TAKEN, stored(OTHER, state)]), (error) => error instanceof OrderIdTaken && error.order?.state === state);
  });

test("a taken id of a refused order is free again", async () => {
  // Equal orders at once: another one had the id for a moment and was refused.
  strictEqual((await order([TAKEN, stored(OPTION, "refused"), DONE])).storedBefore, false);
  strictEqual((await order([TAKEN, stored(OTHER, "cancelled"), DONE])).storedBefore, false);
  await rejects(order([TAKEN, stored(OPTION, "refused"), REFUSED]), (error: Error) => {
    ok(error instanceof OrderRefused);
    return error.codes[0] === "provider_rejected";
  });
  await rejects(order([TAKEN, stored(OPTION, "refused")], 0.9), Unavailable);
  await rejects(order([CLOSED, TAKEN, stored(OPTION, "refused")], 2.9), InDoubt);
});

test("a cancelled order is not placed again", async () => {
  const cancelled = stored(OPTION, "cancelled");
  const isCancelled = (error: Error): boolean => error instanceof OrderRefused && /cancelled/.test(error.message);
  await rejects(order([TAKEN, cancelled]), isCancelled);
  await rejects(order([ERROR, TAKEN, cancelled]), isCancelled);
  // A request without an answer may arrive after the cancellation, so a minute later it is looked up once more.
  await rejects(order([CLOSED, TAKEN, cancelled, cancelled]), isCancelled);
  ok((slept.at(-1) ?? 0) > 55);
  ok((await order([CLOSED, TAKEN, cancelled, stored()])).storedBefore);
});

test("a taken id without an order that shows what it is decides nothing", async () => {
  for (const answer of [UNKNOWN, stored(OPTION, "enchanted")]) {
    ok((await order([TAKEN, answer, TAKEN, stored()])).storedBefore);
    await rejects(order([TAKEN, answer], 0.9), InDoubt);
  }
});

test("an id of another order is not mistaken for this one", async () => {
  await rejects(order([TAKEN, stored(OTHER)]), (error: Error) => {
    ok(error instanceof OrderIdTaken);
    return error.order?.topups[0]?.option_id === OTHER;
  });
  await rejects(order([TAKEN, ARCHIVED]), (error: Error) => error instanceof OrderIdTaken && error.order === undefined);
});

test("a look-up is repeated and at the end in doubt", async () => {
  ok((await order([TAKEN, ERROR, CLOSED, stored()])).storedBefore);
  await rejects(order([TAKEN, ERROR, ERROR, ERROR, ERROR, ERROR]), InDoubt);
  await rejects(order([TAKEN, DENIED]), InDoubt);
  // An order of another id is an answer to another question.
  ok((await order([TAKEN, stored(OPTION, "ready", "A-2"), stored()])).storedBefore);
});

test("ids of options are values", async () => {
  for (const option_id of [OPTION, OPTION.toUpperCase(), OPTION.replaceAll("-", "")]) {
    const items = [{ option_id, qty: 1 }, { option_id, qty: 1 }];
    requests = [];
    ok((await order([CLOSED, TAKEN, stored(OPTION.toUpperCase())], 1e6, items)).storedBefore);
    const products = [{ option_id: OPTION, qty: 1 }, { option_id: OPTION, qty: 1 }];
    strictEqual(requests[0], `POST /api/v1/api_partner/orders ${JSON.stringify({ external_order_id: "A-1", products })}`);
    strictEqual((await order([DONE], 1e6, items)).storedBefore, false);
  }
});

test("metadata is sent as it is given", async () => {
  const metadata = { ticket: "T-1 \u00e9" };
  const items = [{ option_id: OPTION, qty: 1, metadata }, { option_id: OPTION, qty: 1 }];
  script = [DONE];
  requests = [];
  await partner.order("A-1", items, { firstCall: true, metadata });
  const body = JSON.stringify({ external_order_id: "A-1", products: items, metadata });
  strictEqual(requests[0], `POST /api/v1/api_partner/orders ${body}`);
  const wrong = { a: 1 } as unknown as Record<string, string>;
  await rejects(partner.order("A-1", items, { metadata: wrong }), /metadata of the order/);
  await rejects(order([], 1e6, [{ option_id: OPTION, qty: 1, metadata: wrong }]), /metadata of item 0/);
});

test("what cannot be ordered is not sent", async () => {
  const wrong: unknown[] = ["2", NaN, 1.5, undefined];
  for (const qty of wrong) await rejects(order([], 1e6, [{ option_id: OPTION, qty: qty as number }]), /qty of item 0/);
  for (const option_id of ["option", undefined, 5]) {
    await rejects(order([], 1e6, [{ option_id: option_id as string, qty: 1 }]), /option_id of item 0/);
  }
  for (const id of ["\ud800", 5 as unknown as string]) {
    await rejects(partner.order(id, ITEMS), /externalOrderId/);
    await rejects(partner.findOrder(id), /externalOrderId/);
  }
  for (const patience of [0, -1, NaN, Infinity, "5" as unknown as number]) await rejects(order([], patience), /patience/);
  deepStrictEqual(requests, []);
});

test("a wrong request is not repeated", async () => {
  await rejects(order([DENIED]), (error: Error) => error instanceof ApiError && /Invalid signature/.test(error.message));
  // But it says nothing about an earlier request.
  await rejects(order([CLOSED, DENIED]), InDoubt);
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
  await rejects(alone.order("A-1", ITEMS, { firstCall: true, patience: 0.5 }), Unavailable);
  // Nothing is sent to a host without an address, or to one that does not speak TLS.
  for (const unreachable of ["http://esim.invalid", baseUrl.replace("http:", "https:")]) {
    const nowhere = new Partner({ baseUrl: unreachable, accessKey: "ak", secretKey: "c2VjcmV0LWtleQ==", sleep });
    await rejects(nowhere.order("A-1", ITEMS, { firstCall: true, patience: 0.9 }), Unavailable);
  }
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
  const filters = {
    country: "JP",
    network: "NTT Docomo",
    kind: "data" as const,
    min_data_mb: 1024,
    max_data_mb: 2048,
    unlimited: false,
    min_days: 7,
    max_days: 30,
    updated_since: "2026-11-22T00:00:00Z",
  };
  for await (const option of partner.options(filters)) strictEqual(option.name, "a");
  const query = new URLSearchParams(requests.at(-1)?.split("?")[1]);
  const expected = Object.entries({ ...filters, limit: 100 }).map(([name, value]) => [name, String(value)]);
  deepStrictEqual([...query], expected);
});

test("every id can be looked up", async () => {
  for (const id of ["A/1 ü?&=%+", ".", "..", "a/../b", "%2E"]) {
    script = [UNKNOWN, stored(OPTION, "ready", id)];
    requests = [];
    strictEqual(await partner.findOrder(id), undefined);
    strictEqual((await partner.findOrder(id))?.state, "ready");
    const url = new URL(requests[0]?.replace("GET ", "") ?? "", baseUrl);
    strictEqual(url.pathname, "/api/v1/api_partner/orders");
    deepStrictEqual([...url.searchParams], [["external_order_id", id]]);
  }
});

test("no wait is longer than the caller allowed", async () => {
  const collect = async (): Promise<void> => {
    for await (const _ of partner.options({}, { patience: 5 }));
  };
  for (const seconds of ["86400", "9".repeat(400), "Fri, 31 Dec 9999 23:59:59 GMT", "Friday, 31-Dec-49 23:59:59 GMT"]) {
    retryAfter = seconds;
    await rejects(order([LIMITED], 5), Unavailable);
    script = [LIMITED];
    await rejects(partner.findOrder("A-1", { patience: 5 }), Unanswered);
    script = [LIMITED];
    await rejects(collect(), Unanswered);
  }
  deepStrictEqual(slept, []);
  for (const seconds of ["-1", "1.5", "soon", "", "Sun, 06 Nov 1994 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "0001"]) {
    retryAfter = seconds;
    await order([LIMITED, DONE]);
  }
  deepStrictEqual(slept, Array(7).fill(1));
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
