// Verifies webhooks, which are signed as Standard Webhooks describes it.
import { createHmac, type KeyObject, timingSafeEqual, verify } from "node:crypto";
import { InvalidWebhook } from "./errors.js";
import type { FurtherEvent } from "./events.js";
import type { components } from "./schema.js";
import { publicKey, seconds, webhookKey } from "./settings.js";

export type Esim = components["schemas"]["Esim"];

/** A webhook whose signature is valid. */
export type Webhook = {
  /** The same in every attempt, so remember it to recognise a repeat. For an eSIM it is the `topup_id`. */
  id: string;
  /** The Unix time of this attempt in seconds. */
  timestamp: number;
} & (
  | {
      kind: "esim";
      /** Its fields let anyone install the eSIM, so never log them. */
      esim: Esim;
    }
  | {
      kind: "event";
      /** Acknowledge events of a `type` that you do not know, and ignore them. */
      event: FurtherEvent;
    }
);

type Headers = Iterable<[string, string]> | Record<string, string | string[] | undefined>;

export interface VerifyOptions {
  /** How many seconds the timestamp may be before or after our time: 300 unless you say otherwise. */
  tolerance?: number;
  /** The current Unix time in seconds. */
  now?: number;
}

/**
 * Verifies a webhook against one or several secrets (`whsec_…`) or public keys of the service (`whpk_…`), and returns it
 * if one of all matches. Give it the new and the old secret while you change your programs. `body` has to be the bytes as they arrived, and `headers` those of the request.
 * Verify a webhook when it arrives, because its timestamp is too old later.
 *
 * @throws {InvalidWebhook} and nothing else, whatever was sent to you
 * @throws {TypeError} if a secret or an option is wrong, whatever was sent: a mistake in your program, and no forged webhook
 */
export function verifyWebhook(
  secrets: string | readonly string[],
  body: Uint8Array | string,
  headers: Headers,
  { tolerance = 300, now = Date.now() / 1000 }: VerifyOptions = {},
): Webhook {
  const isPublic = (one: unknown): boolean => typeof one === "string" && one.startsWith("whpk_");
  const keys = [secrets].flat().map((one) => (isPublic(one) ? publicKey(one) : webhookKey(one)));
  if (keys.length === 0) throw new TypeError("the webhook secret is missing: at least one is needed");
  seconds("tolerance", tolerance, { zero: true });
  try {
    return verified(keys, body, headers, tolerance, now);
  } catch (error) {
    if (error instanceof InvalidWebhook) throw error;
    // Nobody may cause a 500 by what he sends.
    throw new InvalidWebhook("it cannot be read as a webhook");
  }
}

type Key = Buffer | KeyObject;

function verified(keys: Key[], body: Uint8Array | string, headers: Headers, tolerance: number, now: number): Webhook {
  const given = new Map<string, string>();
  const entries = Symbol.iterator in headers ? headers : Object.entries(headers);
  for (const [name, value] of entries as Iterable<[string, unknown]>) given.set(name.toLowerCase(), String(value ?? ""));
  const [id, timestamp, signatures] = ["id", "timestamp", "signature"].map((name) => given.get(`webhook-${name}`));
  if (!id || !timestamp || !signatures)
    throw new InvalidWebhook("a header is missing: webhook-id, webhook-timestamp or webhook-signature");
  if (!/^\d{1,12}$/.test(timestamp)) throw new InvalidWebhook("webhook-timestamp is not a Unix time");
  const raw = Buffer.from(body as Uint8Array);
  const signed = Buffer.concat([Buffer.from(`${id}.${timestamp}.`), raw]);
  if (!matches(keys, signed, signatures))
    throw new InvalidWebhook("no signature matches: it is signed with another secret, or it was changed");
  if (!(Math.abs(now - Number(timestamp)) <= tolerance))
    throw new InvalidWebhook("webhook-timestamp is too far from the current time: it may be a repeated recording");
  return { id, timestamp: Number(timestamp), ...content(raw) };
}

function matches(keys: Key[], signed: Buffer, signatures: string): boolean {
  const expected = keys.filter(Buffer.isBuffer).map((key) => createHmac("sha256", key).update(signed).digest());
  const publicKeys = keys.filter((key): key is KeyObject => !Buffer.isBuffer(key));
  let found = false;
  // All pairs are compared, each in constant time, so that the time tells nothing about a signature.
  for (const signature of signatures.split(" ")) {
    const [version, value = ""] = signature.split(",", 2);
    const bytes = Buffer.from(value, "base64");
    for (const one of expected) {
      const same = bytes.length === one.length && timingSafeEqual(bytes, one);
      found = (same && version === "v1" && one.toString("base64") === value) || found;
    }
    if (version === "v1a") found = publicKeys.some((key) => verify(null, signed, key, bytes)) || found;
  }
  return found;
}

const FIELDS = [
  "topup_id", "option_id", "iccid", "smdp", "activate_code", "download_link", "qrcode_img_url", "expired_date",
  "external_order_id",
] as const satisfies readonly (keyof Esim)[];

function content(body: Buffer): { kind: "esim"; esim: Esim } | { kind: "event"; event: FurtherEvent } {
  let parsed: unknown;
  try {
    parsed = JSON.parse(body.toString("utf8"));
  } catch {
    // The error of JSON.parse would quote the body, which may hold an activation code.
  }
  if (typeof parsed !== "object" || parsed === null) throw new InvalidWebhook("the body is not a JSON object");
  // The signature covers the body and not the header webhook-type, so the body decides.
  if ("type" in parsed && "data" in parsed) {
    if (typeof parsed.type !== "string" || typeof parsed.data !== "object" || parsed.data === null)
      throw new InvalidWebhook("the body does not have the form of a webhook");
    return { kind: "event", event: parsed as FurtherEvent };
  }
  if (!FIELDS.every((field) => typeof (parsed as Partial<Esim>)[field] === "string"))
    throw new InvalidWebhook("the body does not have the form of a webhook");
  return { kind: "esim", esim: parsed as Esim };
}
