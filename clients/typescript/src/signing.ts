// Signs requests, as the partner guide describes it under "Sign". The signature covers the method, the path with its
// query, the time, the access key and the body, so nobody who records a request can send another one with its headers.
import { createHash, createHmac } from "node:crypto";
import type { Middleware } from "openapi-fetch";
import { brand, decoded, visible } from "./settings.js";

/** The keys of an account. */
export interface Keys {
  accessKey: string;
  /** Base64 text, as you got it. */
  secretKey: string;
  /** The second part of the header names: `X-Service-…` unless you were told another one. */
  brand?: string;
}

/** The value of the header `Content-SHA256`. */
export function digest(body: Uint8Array): string {
  return createHash("sha256").update(body).digest("hex");
}

/** The signature of a request. `target` is its path with `?` and the query, exactly as it is sent. */
export function sign(keys: Keys, method: string, target: string, timestamp: string, contentSha256: string): string {
  const text = [method, target, timestamp, keys.accessKey, contentSha256].join("\n");
  return createHmac("sha256", decoded("secretKey", keys.secretKey)).update(text).digest("hex");
}

/**
 * Signs each request of an openapi-fetch client just before it is sent.
 *
 * @throws {TypeError} which names the key that is wrong
 */
export function signature(keys: Keys, clock: () => number = Date.now): Middleware {
  visible("accessKey", keys.accessKey);
  decoded("secretKey", keys.secretKey);
  const part = brand(keys.brand ?? "Service");
  const header = (name: string): string => `X-${part}-${name}`;
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
