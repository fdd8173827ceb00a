// Webhooks: the guide's test vector, and each way in which a webhook can be wrong.
import { deepStrictEqual, ok, strictEqual, throws } from "node:assert";
import { createHmac } from "node:crypto";
import { test } from "node:test";
import { InvalidWebhook, verifyWebhook } from "esim-partner";
import { Webhook as StandardWebhook } from "standardwebhooks";
import { vector } from "./vectors.js";

const secret = (byte: number): string => `whsec_${Buffer.alloc(24, byte).toString("base64")}`;
const [NEW, OLD, OTHER] = [secret(1), secret(2), secret(3)];
const ESIM = {
  topup_id: "20250129123456123456789012",
  option_id: "424b7b26-96e7-5c95-8df9-6654a3998070",
  iccid: "8982123456789012345",
  smdp: "smdp.example.com",
  activate_code: "A1B2C3D4E5F60718",
  download_link: "LPA:1$smdp.example.com$A1B2C3D4E5F60718",
  qrcode_img_url: "https://esim.example.com/qr/x/300",
  expired_date: "2026-12-20",
  external_order_id: "A-1042 ü",
};
const EVENT = { type: "key.expiring", timestamp: "2026-11-22T04:00:00Z", data: { credential: "keys", ends_at: "2026-11-22T10:00:00Z" } };

interface Received {
  body: Buffer;
  headers: Record<string, string>;
}

function webhook(content: unknown, secrets: string[], timestamp = Math.floor(Date.now() / 1000)): Received {
  const body = Buffer.from(typeof content === "string" ? content : JSON.stringify(content));
  const signatures = secrets.map((one) => {
    const key = Buffer.from(one.slice(6), "base64");
    const signed = Buffer.concat([Buffer.from(`evt_1.${timestamp}.`), body]);
    return `v1,${createHmac("sha256", key).update(signed).digest("base64")}`;
  });
  const headers = { "Webhook-Id": "evt_1", "Webhook-Timestamp": String(timestamp), "WEBHOOK-SIGNATURE": signatures.join(" ") };
  return { body, headers };
}

const refused = (reason: RegExp, secrets: string[], { body, headers }: Received, options = {}): void =>
  throws(() => verifyWebhook(secrets, body, headers, options), (error: Error) => {
    ok(error instanceof InvalidWebhook, String(error));
    return reason.test(error.message);
  });

test("the guide's vector", () => {
  const given = vector("webhook");
  const names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
  const headers = Object.fromEntries(names.map((name) => [name, given(name)]));
  const body = Buffer.from(given("body"));
  // Its body has only one of the nine fields, so the signature is accepted and the content is not.
  refused(/form of a webhook/, [given("webhook secret")], { body, headers }, { now: 1700000000 });
  refused(/no signature/, [given("webhook secret")], { body: Buffer.concat([body, Buffer.from(" ")]), headers }, { now: 1700000000 });
});

test("a public key verifies without a secret", () => {
  const given = vector("public key");
  const names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
  const headers = Object.fromEntries(names.map((name) => [name, given(name)]));
  const signatures = given("webhook-signature");
  const [bySecret = "", byKey = ""] = signatures.split(" ");
  const body = Buffer.from(given("body"));
  const key = given("public key");
  const other = `whpk_${Buffer.alloc(32, 7).toString("base64")}`;
  // Its body has only one of the nine fields, so the signature is accepted and the content is not.
  for (const keys of [[key], [OTHER, key], [other, key]]) refused(/form of a webhook/, keys, { body, headers }, { now: 1700000000 });
  const changed: [Buffer, string][] = [
    [Buffer.concat([body, Buffer.from(" ")]), signatures],
    [body, bySecret],
    [body, byKey.replace("v1a,", "v1,")],
    [body, "v1a,"],
    [body, byKey.slice(0, -8)],
  ];
  for (const [received, signature] of changed)
    refused(/no signature/, [key], { body: received, headers: { ...headers, "webhook-signature": signature } }, { now: 1700000000 });
  for (const wrong of ["whpk_", "whpk_AAAA", "whpk_!"]) throws(() => verifyWebhook(wrong, body, headers), TypeError);
  // A library that does not know public keys leaves their signatures aside.
  const sent = webhook(ESIM, [NEW]);
  const beside = Object.fromEntries(Object.entries(sent.headers).map(([name, value]) => [name.toLowerCase(), value]));
  beside["webhook-signature"] = `${byKey} ${beside["webhook-signature"]}`;
  ok(new StandardWebhook(NEW).verify(sent.body.toString(), beside));
});

test("an eSIM is read", () => {
  const { body, headers } = webhook({ ...ESIM, added_later: 1 }, [NEW]);
  const received = verifyWebhook(NEW, body, headers);
  ok(received.kind === "esim");
  strictEqual(received.esim.external_order_id, "A-1042 ü");
  strictEqual(received.id, "evt_1");
  // Any kind of headers is read, and the library of the standard agrees.
  deepStrictEqual(verifyWebhook([NEW], body.toString(), new Headers(headers)), received);
  const lower = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
  ok(new StandardWebhook(NEW).verify(body, lower));
});

test("events are read, also unknown ones", () => {
  const of = (content: unknown) => {
    const { body, headers } = webhook(content, [NEW]);
    return verifyWebhook(NEW, body, headers);
  };
  const known = of(EVENT);
  ok(known.kind === "event" && known.event.type === "key.expiring");
  strictEqual(known.event.data.credential, "keys");
  const unknown = { type: "order.sung", data: { verse: 1 } };
  const received = of(unknown);
  ok(received.kind === "event");
  deepStrictEqual(received.event as unknown, unknown);
});

test("one matching secret is enough", () => {
  for (const [secrets, signedWith] of [[[NEW, OLD], [NEW]], [[NEW, OLD], [OLD]], [[OLD], [NEW, OLD]], [[NEW], [NEW, OLD]]] as const) {
    const { body, headers } = webhook(ESIM, [...signedWith]);
    ok(verifyWebhook(secrets, body, headers));
  }
});

test("the tolerance is counted in both directions", () => {
  const received = webhook(ESIM, [NEW], 1700000000);
  for (const off of [-300, 0, 300]) ok(verifyWebhook(NEW, received.body, received.headers, { now: 1700000000 + off }));
  for (const off of [-301, 301]) refused(/too far/, [NEW], received, { now: 1700000000 + off });
  ok(verifyWebhook(NEW, received.body, received.headers, { now: 1700000301, tolerance: 3600 }));
});

test("what is not from the service is refused", () => {
  refused(/no signature/, [NEW, OLD], webhook(ESIM, [OTHER]));
  const { body, headers } = webhook(ESIM, [NEW]);
  const good = headers["WEBHOOK-SIGNATURE"] ?? "";
  const bad = ["v1", "v1,", good.slice(3), good.replace("v1,", "v2,"), good.replace("v1,", "v1a,"), `${good}x`, "ä"];
  for (const signature of bad) refused(/no signature/, [NEW, OLD], { body, headers: { ...headers, "WEBHOOK-SIGNATURE": signature } });
  refused(/no signature/, [NEW, OLD], { body, headers: { ...headers, "Webhook-Id": "evt_2" } });
  for (const name of Object.keys(headers)) {
    const { [name]: _, ...others } = headers;
    refused(/header is missing/, [NEW], { body, headers: others });
  }
  for (const timestamp of ["soon", "-1", "1.5", "²", "1".repeat(13)])
    refused(/not a Unix time/, [NEW], { body, headers: { ...headers, "Webhook-Timestamp": timestamp } });
  for (const odd of [[], "text", null, { type: [] }]) refused(/the body/, [NEW], webhook(odd, [NEW]));
});

test("whatever is sent throws nothing but InvalidWebhook", () => {
  const { body, headers } = webhook(ESIM, [NEW]);
  const bad: [unknown, unknown][] = [
    [undefined, headers], [5, headers], [{}, headers], [body, {}], [body, { ...headers, "Webhook-Id": "\ud800" }],
    [body, { ...headers, "WEBHOOK-SIGNATURE": "v1,\ud800 v1,\u0000 ,,, \u202e" }], [body, { ...headers, "Webhook-Id": Object.create(null) }],
    [body, { ...headers, "Webhook-Id": Symbol("x") }], [body, [["x"]]], [body, [[5, "x"]]], [body, undefined], [body, null],
    [body, { ...headers, "Webhook-Timestamp": "9".repeat(5000) }], [body, { ...headers, "Webhook-Id": ["a", "b"] }],
  ];
  for (const [given, others] of bad) throws(() => verifyWebhook(NEW, given as Buffer, others as Record<string, string>), InvalidWebhook);
  const signed: unknown[] = [
    null, true, 5, "x", [], {}, { type: 5, data: {} }, { type: "topup.failed", data: 5 }, { type: "topup.failed", data: null },
    { type: [], data: {} }, ...Object.keys(ESIM).map((name) => ({ ...ESIM, [name]: 5 })),
  ];
  for (const content of signed) {
    const one = webhook(content, [NEW]);
    throws(() => verifyWebhook(NEW, one.body, one.headers), InvalidWebhook, JSON.stringify(content));
  }
  for (const text of ["[".repeat(100_000), '{"a":'.repeat(100_000), "9".repeat(5000), "\xff", ""]) {
    const raw = Buffer.from(text, "latin1");
    const id = "evt_1";
    const timestamp = String(Math.floor(Date.now() / 1000));
    const mac = createHmac("sha256", Buffer.from(NEW.slice(6), "base64")).update(`${id}.${timestamp}.`).update(raw).digest("base64");
    const others = { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": `v1,${mac}` };
    throws(() => verifyWebhook(NEW, raw, others), InvalidWebhook);
  }
});

test("a secret that is none is a mistake and no wrong signature, and it is not shown", () => {
  const bare = NEW.slice("whsec_".length);
  const { body, headers } = webhook(ESIM, [NEW]);
  const wrong: unknown[] = ["", "whsec_", "whsec_!", "secret text", bare, ` ${NEW}`, `${NEW}\n`, `${NEW}=`, "whsec_ä", "whsec_AAA", undefined, 5];
  for (const bad of wrong)
    for (const secrets of [bad as string, [NEW, bad as string]])
      throws(() => verifyWebhook(secrets, body, headers), (error: Error) => {
        if (bad) ok(!error.message.includes(String(bad)) && !error.message.includes(bare), error.message);
        return error instanceof TypeError && /webhook secret/.test(error.message);
      });
  throws(() => verifyWebhook([], body, headers), TypeError);
  throws(() => verifyWebhook(NEW, body, headers, { tolerance: NaN }), TypeError);
});
