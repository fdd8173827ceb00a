// Signs requests, as the partner guide describes it under "Sign". The signature covers the method, the path with its
// query, the time, the access key and the body, so nobody who records a request can send another one with its headers.
import { createHash, createHmac } from "node:crypto";
import type { Middleware } from "openapi-fetch";

/** The keys of an account. */
export interface Keys {
  accessKey: string;
  /** Base64 text, as you got it. */
  secretKey: string;
  /** The second part of the header names: `X-Service-…` unless you were told another one. */
  brand?: string;
}

/** Decodes Base64, and fails if the text is none. The error does not quote the text, because errors are logged. */
export function decoded(text: string, what: string): Buffer {
  const bytes = Buffer.from(text, "base64");
  if (bytes.length === 0 || bytes.toString("base64").replace(/=+$/, "") !== text.replace(/=+$/, ""))
    throw new TypeError(`${what} is not Base64 text: use it exactly as you got it`);
  return bytes;
}

/** The value of the header `Content-SHA256`. */
export function digest(body: Uint8Array): string {
  return createHash("sha256").update(body).digest("hex");
}

/** The signature of a request. `target` is its path with `?` and the query, exactly as it is sent. */
export function sign(keys: Keys, method: string, target: string, timestamp: string, contentSha256: string): string {
  const text = [method, target, timestamp, keys.accessKey, contentSha256].join("\n");
  return createHmac("sha256", decoded(keys.secretKey, "the secret key")).update(text).digest("hex");
}

/** Signs each request of an openapi-fetch client just before it is sent. */
export function signature(keys: Keys, clock: () => number = Date.now): Middleware {
  decoded(keys.secretKey, "the secret key");
  const header = (name: string): string => `X-${keys.brand ?? "Service"}-${name}`;
  return {
    async onRequest({ request }) {
      const { pathname, search } = new URL(request.url);
      const timestamp = String(Math.floor(clock() / 1000));
      const contentSha256 = digest(new Uint8Array(await request.clone().arrayBuffer()));
      request.headers.set(header("Access-Key"), keys.accessKey);
      request.headers.set(header("Timestamp"), timestamp);
      request.headers.set(header("Content-SHA256"), contentSha256);
      request.headers.set(header("Signature"), sign(keys, request.method, pathname + search, timestamp, contentSha256));
      return request;
    },
  };
}
