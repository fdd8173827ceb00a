// Sends a request so that the call ends in time and the answer is not larger than it may be.

/**
 * In bytes. The largest answers are orders: one with 1,000 units, which is the default limit, has less than 2 MB.
 */
export const MAX_ANSWER = 32 * 1024 * 1024;

/** The statuses whose answers have no body. */
const EMPTY = [204, 205, 304];

/**
 * `fetch`, except that the time counts for the whole call, up to the last byte of the answer, and that the answer is
 * received before it is returned.
 */
export async function send(request: Request, seconds: number, most = MAX_ANSWER): Promise<Response> {
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
    return await Promise.race([received(request, signal, most), aborted]);
  } finally {
    clearTimeout(timer);
    request.signal.removeEventListener("abort", stop);
    // Ends a connection on which more is coming than anybody reads.
    controller.abort();
  }
}

async function received(request: Request, signal: AbortSignal, most: number): Promise<Response> {
  // A compressed answer could be a thousand times larger than what was received.
  request.headers.set("Accept-Encoding", "identity");
  const response = await fetch(request, { signal, redirect: "manual" });
  const { status, statusText, headers } = response;
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
