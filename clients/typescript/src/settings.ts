// Checks of what a client is made with. A wrong setting is an error when the client is made, and the error names it.
// Otherwise the first request would fail, and an order would be repeated for minutes although it can never arrive. No
// error quotes a value, because it may be a secret.
import { createPublicKey, type KeyObject } from "node:crypto";

/** A timer of Node counts its milliseconds in 31 bits, and one that is too long ends at once. */
const LONGEST = 2_000_000;

/** Text that can stand in a header: visible ASCII. */
export function visible(name: string, value: unknown): string {
  if (typeof value !== "string" || value === "")
    throw new TypeError(`${name} is missing: it has to be a text that is not empty`);
  const position = value.search(/[^!-~]/);
  if (position >= 0)
    throw new TypeError(
      `${name} has a character other than visible ASCII at position ${position} of ${value.length}, such as a space, ` +
        "a line break or a letter with an accent: use it exactly as you got it",
    );
  return value;
}

/** The bytes of Base64 text. */
export function decoded(name: string, value: unknown): Buffer {
  const text = visible(name, value);
  const bytes = Buffer.from(text, "base64");
  if (bytes.length === 0 || bytes.toString("base64") !== text)
    throw new TypeError(`${name} is not Base64 text: use it exactly as you got it`);
  return bytes;
}

/**
 * The key of a webhook secret. Without `whsec_` it would be another key of the account, with which every webhook would
 * look forged.
 */
export function webhookKey(value: unknown): Buffer {
  const text = visible("the webhook secret", value);
  if (!text.startsWith("whsec_"))
    throw new TypeError("the webhook secret does not begin with whsec_: use it exactly as you got it");
  return decoded("the webhook secret", text.slice("whsec_".length));
}

/** A public key of the service. */
export function publicKey(value: unknown): KeyObject {
  const raw = decoded("the public key", visible("the public key", value).replace(/^whpk_/, ""));
  if (raw.length !== 32) throw new TypeError("the public key has not 32 bytes: use it exactly as you got it");
  return createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: raw.toString("base64url") }, format: "jwk" });
}

/** A part of a header's name. */
export function brand(value: unknown): string {
  if (typeof value !== "string" || !/^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$/.test(value))
    throw new TypeError("brand is not a part of a header's name: it has letters, digits and single hyphens, such as Acme");
  return value;
}

/** The URL of the service, without a slash at its end. */
export function baseUrl(value: unknown): string {
  const hint = "use it as you got it, such as https://esim.example.com";
  const text = visible("baseUrl", value);
  if (!/^https?:\/\/[^/]/.test(text)) throw new TypeError(`baseUrl does not begin with https:// or http:// and a host: ${hint}`);
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new TypeError(`baseUrl is not a URL: ${hint}`);
  }
  if (url.username || url.password || url.port === "0" || /[?#]/.test(text))
    throw new TypeError(`baseUrl may have a host, a port and a path, but no user name, query or fragment: ${hint}`);
  return text.replace(/\/+$/, "");
}

/** A time that one can wait for. */
export function seconds(name: string, value: unknown, { zero = false } = {}): number {
  if (typeof value !== "number" || !(value >= 0 && value <= LONGEST) || (value === 0 && !zero))
    throw new TypeError(`${name} has to be a number of seconds, ${zero ? "at least" : "more than"} 0 and at most ${LONGEST}`);
  return value;
}
