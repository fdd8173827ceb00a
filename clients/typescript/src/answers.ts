// Reads answers. Only what can be read as an answer that the partner guide describes is believed.
import type { Answer } from "./errors.js";
import { codesOf } from "./http.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];
export type Order = Schemas["Order"];
export type Topups = { topup_id: string; option_id: string }[];

/** The states of an order that stands: it is bought, is being bought, or failed later. Its id is not free. */
const STANDING: readonly string[] = ["processing", "ready", "partly_failed", "failed"];
/** Those of an order that is not bought and whose id is free. */
const GONE: readonly string[] = ["refused", "cancelled"];

export const stands = (order: Order): boolean => STANDING.includes(order.state);
export const isGone = (order: Order): boolean => GONE.includes(order.state);

type Fields = Record<string, unknown>;

/** Throws unless the condition holds: the answer is not as documented then. */
function expect(condition: boolean, what: string): asserts condition {
  if (!condition) throw new TypeError(`the answer is not as documented: ${what}`);
}

function fields(value: unknown, what: string): Fields {
  expect(typeof value === "object" && value !== null && !Array.isArray(value), `${what} is not an object`);
  return value as Fields;
}

function list(value: unknown, what: string): unknown[] {
  expect(Array.isArray(value), `${what} is not a list`);
  return value;
}

/** The id of an option in one form, so that two of them can be compared; undefined if it is none. */
export function optionId(value: unknown): string | undefined {
  const digits = typeof value === "string" ? value.toLowerCase() : "";
  const parts = /^([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})$/.exec(digits);
  return parts?.slice(1).join("-");
}

/** The topups of an order or of a 201: at least one. */
export function topupsOf(value: unknown): Topups {
  const topups = list(value, "topups").map((one) => {
    const { topup_id, option_id } = fields(one, "a topup");
    const option = optionId(option_id);
    expect(typeof topup_id === "string" && /^[0-9]{26}$/.test(topup_id), "a topup_id has 26 digits");
    expect(option !== undefined, "an option_id is a UUID");
    return { topup_id, option_id: option };
  });
  expect(topups.length > 0, "an order has topups");
  return topups;
}

/** The list of the one order with this id, or of none. */
export function found(data: unknown, externalOrderId: string): Order | undefined {
  const orders = list(fields(data, "it").orders, "orders");
  if (orders.length === 0) return undefined;
  const order = fields(orders[0], "an order");
  expect(orders.length === 1 && order.external_order_id === externalOrderId, "these are other orders than the one asked for");
  for (const name of ["state", "order_id", "created_at"]) expect(typeof order[name] === "string", `${name} is no text`);
  fields(order.topup_counts, "topup_counts");
  topupsOf(order.topups);
  return order as unknown as Order;
}

/** A page of a list, whose entries have these texts. */
export function page<T>(data: unknown, name: string, texts: readonly string[]): { entries: T[]; next: string | null } {
  const given = fields(data, "it");
  const entries = list(given[name], name);
  for (const entry of entries)
    for (const text of texts) expect(typeof fields(entry, "an entry")[text] === "string", `${text} is no text`);
  const next = given.next_cursor;
  expect(next === null || (typeof next === "string" && next !== ""), "next_cursor is no cursor");
  return { entries: entries as T[], next };
}

/** What is read of a response. `error` is its body, if it is none of success. */
export function answer(response: Response, error: unknown, brand: string): Answer {
  const body = (typeof error === "object" && error !== null ? error : {}) as { error?: unknown; errors?: unknown };
  const one = typeof body.error === "object" && body.error !== null ? (body.error as { message?: unknown }).message : body.error;
  // The errors of a 422 are a list. In another form they are not those of the service, and refuse nothing.
  const messages: unknown[] = Array.isArray(body.errors) ? body.errors : response.status === 422 ? [] : [one];
  return {
    status: response.status,
    codes: codesOf(response.headers, brand),
    messages: messages.filter((message) => typeof message === "string"),
    repeat: response.headers.get(`X-${brand}-Repeat`) ?? undefined,
    requestId: response.headers.get("X-Request-Id") ?? undefined,
    retryAfter: secondsOf(response.headers.get("Retry-After") ?? ""),
  };
}

/** `Retry-After` in seconds, in the forms of RFC 9110: a number, or one of three forms of a date. */
function secondsOf(retryAfter: string): number | undefined {
  const text = retryAfter.trim();
  if (/^[0-9]+$/.test(text)) return Number(text);
  if (!/^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)/.test(text)) return undefined;
  // The oldest form names no time zone.
  const date = Date.parse(/GMT$/.test(text) ? text : `${text} GMT`);
  return Number.isNaN(date) ? undefined : Math.max(0, Math.ceil((date - Date.now()) / 1000));
}
