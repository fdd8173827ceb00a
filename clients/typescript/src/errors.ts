// What can go wrong, and what to do then.
import type { components } from "./schema.js";

/** The webhook is not from the service, or is too old. Answer with a 401, and do not trust its body. */
export class InvalidWebhook extends Error {
  override name = "InvalidWebhook";
}

/** An answer of the service. */
export interface Answer {
  status: number;
  /** The codes of the errors, such as `option_not_found`. Decide by them, because texts may change. */
  codes: string[];
  /** The errors as text. */
  messages: string[];
  /** Quote it when you ask about a request. */
  requestId: string | undefined;
  /** How many seconds to wait before the next request, if the answer says so. */
  retryAfter: number | undefined;
  /** What the answer to a repeat of an order says: `answered` or `undecided`. */
  repeat?: string | undefined;
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

/**
 * The service refused the request. For an order that is not an `OrderRefused`: this request stored nothing, and it says
 * nothing about an earlier one. Correct what `codes` name, and call again with the same id.
 */
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
 * Nothing is stored or bought, now or later, also by no earlier call. You may use the same id again. If `codes` has
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

/**
 * The service could not be reached or was too busy, and nothing is stored. Only a call with `firstCall` throws it, because
 * other calls cannot know what an earlier one has stored.
 */
export class Unavailable extends PartnerError {
  override name = "Unavailable";
}

/** An error that does not come from the service. The request may have reached the service, or still reach it. */
export class ForeignAnswer extends PartnerError {
  override name = "ForeignAnswer";
}

/** A look-up or a list got no answer of the service. It says nothing: an order may be stored or not. */
export class Unanswered extends PartnerError {
  override name = "Unanswered";
}

/**
 * It is unknown whether the order is stored, by this call or by an earlier one: it may even be bought. Call `order` again
 * with the same id and the same items until it returns or throws something else. Never change the id, because then both
 * orders may be bought.
 */
export class InDoubt extends PartnerError {
  override name = "InDoubt";
}
