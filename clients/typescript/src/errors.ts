// What can go wrong, and what to do then.
import type { components } from "./schema.js";

/** The webhook is not from the service, or is too old. Answer with a 401, and do not trust its body. */
export class InvalidWebhook extends Error {
  override name = "InvalidWebhook";
}

/** An answer of the service, or of a proxy on the way. */
export interface Answer {
  status: number;
  /**
   * The codes of the errors, such as `option_not_found`. Decide by them, because texts may change. An answer without
   * codes that is no success does not come from the service but from something in between.
   */
  codes: string[];
  /** The errors as text. */
  messages: string[];
  /** Quote it when you ask about a request. */
  requestId: string | undefined;
  /** How many seconds to wait before the next request, if the answer says so. */
  retryAfter: number | undefined;
}

/**
 * Text of the other side, for errors that are logged or shown in a terminal: without control characters, without
 * characters that change the direction of writing, and not longer than a few lines.
 */
export function printable(text: string): string {
  const shown = text.slice(0, 1000).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "\uFFFD");
  return text.length > 1000 ? `${shown}…` : shown;
}

/** The base of the errors of requests. */
export class PartnerError extends Error {
  override name = "PartnerError";
}

/** The service refused the request. */
export class ApiError extends PartnerError {
  override name = "ApiError";

  constructor(
    readonly answer: Answer,
    message?: string,
  ) {
    const codes = answer.codes.join(", ") || "no code";
    const text = [`${answer.status} (${codes})`, ...answer.messages].join(": ");
    super(`${message ? `${message}: ` : ""}${printable(`${text} [request ${answer.requestId ?? "unknown"}]`)}`);
  }

  get codes(): string[] {
    return this.answer.codes;
  }
}

/**
 * Nothing is stored or bought, now or later. Correct the order; you may use the same id again. If `codes` has
 * `external_order_id_taken`, an earlier request stored the order, and it was cancelled since.
 */
export class OrderRefused extends ApiError {
  override name = "OrderRefused";
}

/** Another order has this id, so nothing was ordered. `order` is that order, if it can still be shown. */
export class OrderIdTaken extends ApiError {
  override name = "OrderIdTaken";

  constructor(
    answer: Answer,
    readonly order: components["schemas"]["Order"] | undefined,
  ) {
    super(answer, "nothing was ordered, because another order has this id");
  }
}

/** The service could not be reached or was too busy. Nothing was stored. */
export class Unavailable extends PartnerError {
  override name = "Unavailable";
}

/**
 * It is unknown whether the order is stored: it may even be bought. Call `order` again with the same id and the same
 * items until it returns or throws something else. Never change the id, because then both orders may be bought.
 */
export class InDoubt extends PartnerError {
  override name = "InDoubt";
}
