// Sends a request so that the call ends in time, and the answer is not larger than it may be and is of the service.
//
// An error without a code in `X-Service-Error` comes from something in between, such as a proxy. It may have passed the
// request on before, so it says nothing about it, and counts as no answer: the call throws `ForeignAnswer`.
import { ForeignAnswer } from "./errors.js";

/**
 * In bytes. The largest answers are orders: one with 1,000 units, which is the default limit, has less than 2 MB.
 */
export const MAX_ANSWER = 32 * 1024 * 1024;

/** The statuses whose answers have no body. */
const EMPTY = [204, 205, 304];

/**
 * `fetch`, except that the time counts for the whole call, up to the last byte of the answer, and that the answer is
 * received before it is returned. `brand` is the second part of the names of the headers.
 */
export async function send(request: Request, seconds: number, brand: string, most = MAX_ANSWER): Promise<Response> {
  const controller = new AbortController();
  const { signal } = controller;
  const late = new DOMException(`there was no whole answer within ${seconds} s`, "TimeoutError");
  const timer = setTimeout(() => controller.abort(late), seconds * 1000);
  const stop = (): void => controller.abort(request.signal.reason);
  request.signal.addEventListener("abort", stop, { once: true });
  if (request.signal.aborted) stop();
  // The body of an answer that is not compressed as its headers say never ends, not even when its request is aborted.
  const aborted = new Promise<never>((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  aborted.catch(() => undefined);
  try {
    return await Promise.race([received(request, signal, brand, most), aborted]);
  } finally {
    clearTimeout(timer);
    request.signal.removeEventListener("abort", stop);
    // Ends a connection on which more is coming than anybody reads.
    controller.abort();
  }
}

/** The codes that an answer names. They are words, so anything else does not come from the service. */
export function codesOf(headers: Headers, brand: string): string[] {
  const named = (headers.get(`X-${brand}-Error`) ?? "").split(",").map((code) => (code.split(";", 1)[0] ?? "").trim());
  return named.filter((code) => /^[a-z0-9_]{1,64}$/.test(code));
}

async function received(request: Request, signal: AbortSignal, brand: string, most: number): Promise<Response> {
  // A compressed answer could be a thousand times larger than what was received.
  request.headers.set("Accept-Encoding", "identity");
  const response = await fetch(request, { signal, redirect: "manual" });
  const { status, statusText, headers } = response;
  if (!response.ok && status !== 304 && codesOf(headers, brand).length === 0)
    throw new ForeignAnswer(
      `the status ${status} without X-${brand}-Error is not of the service but of something in between, or baseUrl or ` +
        "brand is wrong",
    );
  if (!["", "identity"].includes((headers.get("Content-Encoding") ?? "").trim().toLowerCase()))
    throw new Error("the answer is compressed, although that was not asked for");
  const body = await whole(response, most);
  return new Response(EMPTY.includes(status) ? null : body, { status, statusText, headers });
}

async function whole(response: Response, most: number): Promise<Uint8Array<ArrayBuffer>> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of response.body ?? []) {
    size += chunk.byteLength;
    if (size > most) throw new Error(`the answer has more than ${most} bytes`);
    chunks.push(chunk);
  }
  return new Uint8Array(Buffer.concat(chunks));
}

/** What goes wrong before anything is sent: no connection in time, or no trust in the other side's certificate. */
const NOT_SENT =
  /^(UND_ERR_CONNECT_TIMEOUT|ERR_TLS_CERT_ALTNAME_INVALID|ERR_SSL_WRONG_VERSION_NUMBER|(CERT|CRL)_[A-Z_]+|DEPTH_ZERO_SELF_SIGNED_CERT|SELF_SIGNED_CERT_IN_CHAIN|UNABLE_TO_[A-Z_]+)$/;

/** Whether the request certainly did not reach the service. */
export function isNotSent(error: unknown): boolean {
  const cause = (error as { cause?: unknown } | undefined)?.cause;
  const all: unknown[] = cause instanceof AggregateError ? cause.errors : [cause];
  return all.length > 0 && all.every(isBeforeSending);
}

function isBeforeSending(error: unknown): boolean {
  const { code, syscall } = (error ?? {}) as { code?: unknown; syscall?: unknown };
  return syscall === "connect" || syscall === "getaddrinfo" || NOT_SENT.test(String(code));
}
