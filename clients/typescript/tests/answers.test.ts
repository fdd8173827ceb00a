// Whatever the other side answers, `order` ends with a result or an error that its documentation names, and believes only
// what is an answer of the service. And it ends in time.
import { ok, rejects } from "node:assert";
import type { Socket } from "node:net";
import { test } from "node:test";
import { ApiError, InDoubt, OrderIdTaken, OrderRefused, Partner, Unanswered, Unavailable, type PlacedOrder } from "esim-partner";
import { withServer } from "./hostile.js";

const KEYS = { accessKey: "ak_example", secretKey: "c2VjcmV0LWtleQ==" };
const OPTION = "424b7b26-96e7-5c95-8df9-6654a3998070";
const ITEMS = [{ option_id: OPTION, qty: 2 }];
const TOPUPS = ["20250129123456123456789012", "20250129123456123456789013"].map((topup_id) => ({ topup_id, option_id: OPTION }));
const found = (state: string): object => ({
  orders: [{ external_order_id: "A-1", order_id: OPTION, state, created_at: "2026-11-22T04:00:00.1Z", topup_counts: {}, topups: TOPUPS }],
  next_cursor: null,
});
const GOOD = {
  created: JSON.stringify({ products: TOPUPS }),
  refusal: JSON.stringify({ errors: ["eSIM Request failed"] }),
  found: JSON.stringify(found("ready")),
  cancelled: JSON.stringify(found("cancelled")),
};
/** A call has at most four requests with an order, each with look-ups, and no wait. */
const WAITS = { first: [0, 0, 0], then: 1000, onItsWay: 0 };

/** Numbers that a seed decides, so that a failure can be repeated. */
class Random {
  constructor(private state: number) {}
  below(bound: number): number {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % bound;
  }
  of<T>(values: readonly T[]): T {
    return values[this.below(values.length)] as T;
  }
}

interface Raw {
  status: string;
  body: Buffer;
  text: Buffer;
}

const HEADERS = [
  "Content-Encoding: gzip", "Content-Encoding: br", "Content-Encoding: \xff", "Content-Type: text/html; charset=\xff",
  "Content-Length: 5", "Content-Length: 100000", "Content-Length: -1", "Content-Length: x", "Transfer-Encoding: chunked",
  "Transfer-Encoding: x", "Retry-After: 86400", `Retry-After: ${"9".repeat(5000)}`, "Retry-After: -5", "Retry-After: \xb2",
  "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", "X-Service-Error: \xff", "X-Service-Error: ,;,", "X-Request-Id: \x1b[31m",
  "Set-Cookie: \xff=\xff; Domain=[", "Location: http://[", "no colon", "\x00: \x00", " folded", "Connection: keep-alive",
  "X-Service-Error: provider_rejected", "X-Service-Error: external_order_id_taken", "X-Service-Error: internal_error",
  `X-Service-Error: ${"a".repeat(70_000)}`,
];
const STATUSES = ["200", "201", "422", "500", "502", "503", "429", "400", "404", "410", "301", "204", "304", "", "-1", "abc", "2e2", "99999", "\xff"];
const LINES = ["HTTP/1.1 % OK", "HTTP/1.0 % OK", "HTTP/1.1 %", "HTTP/9.9 % OK", "ICY % OK", "%", "HTTP/1.1 % \xff"];
const BODIES = [
  "", "null", "[]", "{}", "5", '"x"', "<h1>Bad gateway</h1>", "[".repeat(100_000), '{"a":'.repeat(100_000),
  "[".repeat(100_000) + "]".repeat(100_000), "\xff\xfe", "1".repeat(5000), "\xef\xbb\xbf",
];
const VALUES: unknown[] = [null, true, 5, "", "x", [], {}, [[]], "2".repeat(26), "\ud800", { toString: 5 }];

function damaged(random: Random, text: string): string {
  const kind = random.below(4);
  if (kind === 0) return text.slice(0, random.below(text.length));
  if (kind === 1) return random.of(BODIES);
  // One value somewhere in the JSON is another one, or is left out.
  const changed: unknown = JSON.parse(text);
  let at = changed as Record<string, unknown>;
  for (;;) {
    const key = random.of(Object.keys(at));
    const inner = at[key];
    if (typeof inner === "object" && inner !== null && Object.keys(inner).length > 0 && random.below(4)) {
      at = inner as Record<string, unknown>;
      continue;
    }
    if (kind === 2) at[key] = random.of(VALUES);
    else delete at[key];
    return JSON.stringify(changed);
  }
}

/** A documented answer, often with some damage. */
function answer(random: Random): Raw {
  const bases: [string, string[], string][] = [
    ["201", [], GOOD.created],
    ["200", [], GOOD.found],
    ["200", [], GOOD.cancelled],
    ["422", ["X-Service-Error: external_order_id_taken"], GOOD.refusal],
    ["422", ["X-Service-Error: provider_rejected"], GOOD.refusal],
  ];
  let [status, headers, text] = random.of(bases);
  const damage = random.of(["none", "none", "status", "line", "headers", "body", "all", "bytes"]);
  const has = (kind: string): boolean => damage === kind || damage === "all";
  if (has("status")) status = random.below(2) ? random.of(STATUSES) : String(random.below(1200));
  if (has("body")) text = damaged(random, text);
  const line = (has("line") ? random.of(LINES) : "HTTP/1.1 % OK").replace("%", status);
  if (has("headers")) headers = [...(random.below(2) ? headers : []), ...Array.from({ length: random.below(4) }, () => random.of(HEADERS))];
  const body = Buffer.from(text);
  if (random.below(4)) headers = [...headers, `Content-Length: ${body.length}`];
  if (damage === "bytes") return { status, body, text: Buffer.from(Array.from({ length: random.below(60) }, () => random.below(256))) };
  return { status, body, text: Buffer.concat([Buffer.from([line, ...headers, "", ""].join("\r\n"), "latin1"), body]) };
}

const place = (baseUrl: string): Promise<PlacedOrder> =>
  new Partner({ baseUrl, ...KEYS, waits: WAITS, timeout: 5, sleep: async () => undefined }).order("A-1", ITEMS, {
    firstCall: true,
    patience: 100,
  });

/** Whether an answer shows what was ordered, under one of the names, and as an order in one of the states. */
function shows({ status, body }: Raw, wanted: string, name: "products" | "topups", states: string[] = []): boolean {
  try {
    const parsed = JSON.parse(body.toString());
    const order = name === "topups" ? parsed.orders[0] : parsed;
    if (name === "topups" && !(order.external_order_id === "A-1" && states.includes(order.state))) return false;
    return status === wanted && order[name].length === 2 && order[name].every((one: { option_id: string }) => one.option_id === OPTION);
  } catch {
    return false;
  }
}

function isRefusal({ status, body }: Raw): boolean {
  try {
    const { errors } = JSON.parse(body.toString()) as { errors: unknown };
    return status === "422" && Array.isArray(errors) && errors.some((error) => typeof error === "string");
  } catch {
    return false;
  }
}

test("only documented errors, and only what is an answer is believed", async () => {
  const first = Number(process.env.SEED ?? Date.now() % 1_000_000);
  const rounds = process.env.SEED ? 1 : 500;
  for (let seed = first; seed < first + rounds; seed++) {
    const random = new Random(seed);
    const left = Array.from({ length: 1 + random.below(8) }, () => answer(random));
    const sent: Raw[] = [];
    const next = (socket: Socket): void => {
      // When the script is over, the connection is closed without an answer.
      const one = left.shift();
      if (!one) return void socket.destroy();
      sent.push(one);
      socket.end(one.text);
    };
    const began = performance.now();
    const result: unknown = await withServer(next, place).catch((error: unknown) => error);
    const about = `SEED=${seed} repeats it: ${String(result)} after ${sent.map(({ text }) => JSON.stringify(text.toString("latin1").slice(0, 300)))}`;
    ok(performance.now() - began < 4000, `it took ${performance.now() - began} ms: ${about}`);
    const stood = ["processing", "ready", "partly_failed", "failed"];
    if (result instanceof Error) {
      ok([OrderRefused, OrderIdTaken, InDoubt, Unavailable, ApiError].some((kind) => result instanceof kind), about);
      // The errors are logged and shown in terminals.
      ok(!/[\p{C}\p{Zl}\p{Zp}]/u.test(result.message), about);
      if (result instanceof OrderRefused) ok(sent.some((one) => isRefusal(one) || shows(one, "200", "topups", ["cancelled"])), about);
      const hasCode = ({ text }: Raw): boolean => text.includes("X-Service-Error:");
      // Nothing is stored: no answer was one after which an order may be stored.
      if (result instanceof Unavailable)
        ok(sent.every((one) => hasCode(one) && ["429", "408", "503", "422"].includes(one.status)), about);
      if (result instanceof ApiError) ok(sent.some(hasCode), about);
    } else {
      const { topups, storedBefore } = result as PlacedOrder;
      const isShown = (one: Raw): boolean => (storedBefore ? shows(one, "200", "topups", stood) : shows(one, "201", "products"));
      ok(topups.length === 2 && sent.some(isShown), about);
    }
  }
});

test("look-ups and lists throw only documented errors", async () => {
  const first = Number(process.env.SEED ?? Date.now() % 1_000_000);
  const all = async (list: AsyncIterable<unknown>): Promise<void> => {
    for await (const _ of list);
  };
  const reads: ((partner: Partner) => Promise<unknown>)[] = [
    (partner) => partner.findOrder("A-1", { patience: 100 }),
    (partner) => all(partner.orders({}, { patience: 100 })),
    (partner) => all(partner.options({}, { patience: 100 })),
    (partner) => all(partner.events({ patience: 100 })),
  ];
  for (let seed = first; seed < first + (process.env.SEED ? 1 : 100); seed++)
    for (const read of reads) {
      const random = new Random(seed);
      const left = Array.from({ length: 1 + random.below(4) }, () => answer(random));
      const next = (socket: Socket): void => {
        const one = left.shift();
        if (one) socket.end(one.text);
        else socket.destroy();
      };
      await withServer(next, (baseUrl) =>
        read(new Partner({ baseUrl, ...KEYS, waits: WAITS, timeout: 5, sleep: async () => undefined })),
      ).catch((error: unknown) => {
        ok(error instanceof Unanswered || error instanceof ApiError, `SEED=${seed} repeats it: ${String(error)}`);
        ok(!/[\p{C}\p{Zl}\p{Zp}]/u.test(error.message), `SEED=${seed} repeats it`);
      });
    }
});

/** Writes the pieces one after the other, for as long as the other side reads. */
const writing =
  (pieces: () => Iterator<string>, pause: number) =>
  (socket: Socket): void => {
    const texts = pieces();
    const write = (): void => {
      const { value, done } = texts.next();
      if (done || socket.destroyed) return;
      socket.write(value, () => (pause ? setTimeout(write, pause) : setImmediate(write)));
    };
    write();
  };
function* forever(start: string, piece: string): Generator<string> {
  yield start;
  for (;;) yield piece;
}
const slow: Record<string, (socket: Socket) => void> = {
  silent: () => undefined,
  "a head a byte at a time": writing(() => ("HTTP/1.1 201 Created\r\nX-A: " + "a".repeat(1000))[Symbol.iterator](), 50),
  "a body a byte at a time": writing(() => forever("HTTP/1.1 201 Created\r\nContent-Length: 5000\r\n\r\n", " "), 50),
  "an endless body": writing(() => forever("HTTP/1.1 201 Created\r\n\r\n", "x".repeat(65536)), 0),
  "endless chunks": writing(() => forever("HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n".repeat(1000)), 0),
  "an endless head": writing(() => forever("HTTP/1.1 201 Created\r\n", `X-A: ${"a".repeat(1000)}\r\n`), 0),
  "endless interim answers": writing(() => forever("", "HTTP/1.1 100 Continue\r\n\r\n"), 0),
};
for (const [name, answering] of Object.entries(slow))
  test(`no call is longer than allowed: ${name}`, async () => {
    await withServer(answering, async (baseUrl) => {
      const partner = new Partner({ baseUrl, ...KEYS, timeout: 0.4, waits: { first: [0.1], then: 0.1 } });
      const inTime = async (most: number, work: () => Promise<void>): Promise<void> => {
        const began = performance.now();
        await work();
        ok(performance.now() - began < most * 1000, `it took ${performance.now() - began} ms`);
      };
      await inTime(2.2, () => rejects(partner.order("A-1", ITEMS, { patience: 1.2 }), InDoubt));
      await inTime(1.5, () => rejects(partner.findOrder("A-1", { patience: 0.5 }), Unanswered));
      // The requests of the generated client are bounded in the same way.
      await inTime(1.4, () => rejects(partner.api.GET("/webhook")));
    });
  });

test("a request of the generated client can be aborted", async () => {
  await withServer(slow.silent ?? ok, async (baseUrl) => {
    const aborted = new AbortController();
    setTimeout(() => aborted.abort(), 100);
    const partner = new Partner({ baseUrl, ...KEYS });
    await rejects(partner.api.GET("/webhook", { signal: aborted.signal }), { name: "AbortError" });
    await rejects(partner.api.GET("/webhook", { signal: aborted.signal }), { name: "AbortError" });
  });
});

test("an answer has a limit", async () => {
  const large = " ".repeat(33 * 1024 * 1024);
  await withServer(
    (socket) => socket.end(`HTTP/1.1 201 Created\r\nContent-Length: ${large.length + GOOD.created.length}\r\n\r\n${GOOD.created}${large}`),
    (baseUrl) => rejects(place(baseUrl), /more than/),
  );
});
