// The account of a partner: it places orders so that none is bought twice, and reads lists page by page.
import { setTimeout as wait } from "node:timers/promises";
import createClient, { type Client } from "openapi-fetch";
import { answer, found, isGone, optionId, page, stands, topupsOf, type Order, type Topups } from "./answers.js";
import {
  ApiError,
  InDoubt,
  OrderIdTaken,
  OrderRefused,
  PartnerError,
  Unanswered,
  Unavailable,
  printable,
  type Answer,
} from "./errors.js";
import { isNotSent, send } from "./http.js";
import type { components, paths } from "./schema.js";
import { baseUrl as checkedUrl, seconds as checkedSeconds } from "./settings.js";
import { signature, type Keys } from "./signing.js";

type Schemas = components["schemas"];
export type Item = Schemas["Item"];
export type { Order };

const PREFIX = "/v1/api_partner";
const TAKEN = "external_order_id_taken";
/** Another order has the id, as the answer to a repeat says it. */
const DIFFERS = "order_differs";
/** The size of the pages that lists are read in. */
const PAGE = 100;
/** The wait after a 503 without `Retry-After`. */
const BUSY = 3;
/** How long a call may take at most, in seconds. */
const PATIENCE = 300;

/** How long the client waits, in seconds. The defaults are those of the partner guide. */
export interface Waits {
  /** Before the first repeats of a request without a definite answer: 1, 2, 4 and 8. */
  first: readonly number[];
  /** Before each further repeat of an order: 60. */
  then: number;
  /** How long a request without an answer may still be on its way: 60. */
  onItsWay: number;
}

export interface PartnerOptions extends Keys {
  /** The base URL of the service, such as `https://esim.example.com`. */
  baseUrl: string;
  /**
   * How many seconds one request may take. A shorter time than 30, the default, would only leave you in doubt about more
   * of your orders.
   */
  timeout?: number;
  waits?: Partial<Waits>;
  /** Replaces the waiting, in seconds, for tests. */
  sleep?: (seconds: number) => Promise<unknown>;
}

/** How long a call may take. */
export interface Patience {
  /** In seconds, all in all, whatever the other side does: 300 unless you say otherwise. For a list, it is that of a page. */
  patience?: number;
}

export interface OrderOptions extends Patience {
  /**
   * Whether you know that nobody has called `order` with this id before, for example because you made the id just now.
   * Then a refusal is final at once. Otherwise it is believed only after a minute, because a request of an earlier call,
   * also of a process that crashed, may still be on its way.
   */
  firstCall?: boolean;
  /**
   * What you want to find again with the order: at most 10 texts by name. If an earlier call has stored the same units,
   * its metadata stays.
   */
  metadata?: Record<string, string>;
}

/** A stored order. It is bought once, and each eSIM comes to you in a webhook. */
export interface PlacedOrder {
  externalOrderId: string;
  topups: Topups;
  /** Whether an earlier request had stored the order, for example one whose answer was lost. */
  storedBefore: boolean;
  /**
   * As the answer or the look-up showed it. Units of an order that an earlier call stored may have failed since; then it
   * is `partly_failed` or `failed`.
   */
  state: Schemas["OrderState"];
}

/** What a request led to. */
interface Answered {
  answer: Answer;
  /** The parsed body of a success, if it is JSON. */
  data: unknown;
}
interface NoAnswer {
  error: unknown;
  notSent: boolean;
}
type Outcome = Answered | NoAnswer;

/** The part of the result of openapi-fetch that is read here. */
interface Result {
  data?: unknown;
  error?: unknown;
  response: Response;
}
/** How a request is sent: in time, and its body is parsed here. */
interface Sending {
  fetch: (request: Request) => Promise<Response>;
  parseAs: "text";
}
type Sent = (sending: Sending) => Promise<Result>;

/** An account of the service. */
export class Partner {
  /** The generated client with all requests, signed by this account: `partner.api.GET("/webhook")`. */
  readonly api: Client<paths>;
  readonly #brand: string;
  readonly #timeout: number;
  readonly #waits: Waits;
  readonly #sleep: (seconds: number) => Promise<unknown>;

  /** @throws {TypeError} which names the setting that is wrong */
  constructor({ baseUrl, timeout = 30, waits = {}, sleep, ...keys }: PartnerOptions) {
    const root = checkedUrl(baseUrl);
    this.#brand = keys.brand ?? "Service";
    this.#timeout = checkedSeconds("timeout", timeout);
    this.#waits = { first: [1, 2, 4, 8], then: 60, onItsWay: 60, ...waits };
    for (const one of this.#waits.first) checkedSeconds("waits.first", one, { zero: true });
    checkedSeconds("waits.then", this.#waits.then);
    checkedSeconds("waits.onItsWay", this.#waits.onItsWay, { zero: true });
    this.#sleep = sleep ?? ((seconds) => wait(seconds * 1000));
    this.api = createClient<paths>({
      baseUrl: root.endsWith(PREFIX) ? root : `${root}/api${PREFIX}`,
      fetch: (request) => send(request, timeout, this.#brand),
    });
    this.api.use(signature(keys));
  }

  /**
   * Places an order, and repeats the request with the same id until the answer is definite. A repeat never buys twice.
   * If an earlier request stored the same order, that order is returned; so calling this again after a crash of your
   * program is safe, too. The call takes at most `patience` seconds (300), whatever the other side does.
   *
   * @throws {OrderRefused} if nothing is stored
   * @throws {OrderIdTaken} if another order has the id
   * @throws {InDoubt} if the patience is over without a definite answer
   * @throws {Unavailable} if the patience of a `firstCall` is over and nothing was stored
   * @throws {ApiError} if the request itself is wrong, for example its signature
   * @throws {TypeError} which names what cannot be sent, for example an `option_id` that is not a UUID
   */
  async order(
    externalOrderId: string,
    items: readonly Item[],
    { firstCall = false, patience = PATIENCE, metadata }: OrderOptions = {},
  ): Promise<PlacedOrder> {
    const began = now();
    const end = began + checkedSeconds("patience", patience);
    const products = checkedItems(items);
    const kept = checkedMetadata(metadata, "the order");
    const body = { external_order_id: checkedId(externalOrderId), products, ...kept };
    // Whether a request of this call may have stored the order.
    let inDoubt = false;
    // When the last request was sent that got no answer. It may be stored even after a later one was refused. An earlier
    // call, perhaps of a process that crashed, may have sent one just before this call.
    let unanswered: number | undefined = firstCall ? undefined : began;
    for (let turn = 0; ; turn++) {
      const sent = now();
      // The first request of a call does not ask for the answer of an earlier call, which may be long ago: the look-up
      // shows what has become of the order since.
      const headers: Record<string, string> = turn === 0 ? {} : { [`X-${this.#brand}-Repeat`]: "answer" };
      const outcome = await this.#send(end, (sending) => this.api.POST("/orders", { body, headers, ...sending }));
      // Why this answer decides nothing, for the message at the end.
      const cause = causeOf(outcome);
      if (!("answer" in outcome)) {
        if (!outcome.notSent) {
          inDoubt = true;
          unanswered = sent;
        }
      } else {
        const { answer, data } = outcome;
        const topups = answer.status === 201 ? created(data, products) : undefined;
        if (topups) return { externalOrderId, topups, storedBefore: false, state: "processing" };
        if (answer.status === 200 && answer.repeat === "answered") {
          const repeated = created(data, products);
          if (repeated) return { externalOrderId, topups: repeated, storedBefore: true, state: "processing" };
        }
        const isTaken = answer.status === 422 && answer.codes.includes(TAKEN);
        if (isTaken || (answer.status === 409 && answer.codes.includes(DIFFERS))) {
          const order = await this.#taken(externalOrderId, end, answer);
          if (order && stands(order)) {
            if (!isSame(order, products)) throw new OrderIdTaken(answer, order);
            return placed(order);
          }
          if (order?.state === "cancelled" && isSame(order, products)) {
            const cancelled = new OrderRefused(answer, "the order with this id was cancelled, so nothing is bought");
            if (unanswered === undefined) throw cancelled;
            return this.#settle(externalOrderId, products, end, unanswered, cancelled);
          }
          // An order that was refused has freed the id, so the repeat decides. If no order is found, or one in a state
          // that this version does not know, then nothing is certain.
          if (!order || !isGone(order)) inDoubt = true;
        } else if (answer.status === 422 && answer.messages.length > 0) {
          const refused = new OrderRefused(answer);
          if (unanswered === undefined) throw refused;
          return this.#settle(externalOrderId, products, end, unanswered, refused);
        } else if (isWrong(answer)) {
          if (!inDoubt) throw cause;
          throw new InDoubt(`the order may be stored, but its repeat was refused: ${textOf(cause)}`, { cause });
        } else if (!storedNothing(answer)) {
          inDoubt = true;
          // After an error of the service itself nothing is on its way any more. Any other answer is not as documented.
          if (answer.status < 500) unanswered = sent;
        }
      }
      const seconds = waitAfter(outcome, this.#waits.first[turn] ?? this.#waits.then);
      if (now() + seconds >= end) {
        const last = `the last attempt: ${textOf(cause)}`;
        if (inDoubt) throw new InDoubt(`there is no definite answer; repeat the order with the same id; ${last}`, { cause });
        if (firstCall) throw new Unavailable(`nothing was stored; place the order later; ${last}`, { cause });
        const doubt = "this call stored nothing, but an earlier one may have; repeat the order with the same id";
        throw new InDoubt(`${doubt}; ${last}`, { cause });
      }
      await this.#sleep(seconds);
    }
  }

  /**
   * The order with this id. `undefined` means that it is not stored now, although a request for it may still be on its
   * way; so this does not replace a repeat of the order. An order that was archived is an `ApiError` with the code
   * `order_archived`. Without an answer of the service it throws `Unanswered`, as the lists do.
   */
  async findOrder(externalOrderId: string, { patience = PATIENCE }: Patience = {}): Promise<Order | undefined> {
    return this.#look(checkedId(externalOrderId), now() + checkedSeconds("patience", patience));
  }

  /** All orders without their topups, the newest first, read page by page as you go on. */
  orders(
    query: { created_after?: string; state?: Schemas["OrderState"] } = {},
    patience: Patience = {},
  ): AsyncGenerator<Schemas["Summary"]> {
    return this.#pages("orders", ["external_order_id", "order_id", "state"], patience, (part) => (sending) =>
      this.api.GET("/orders", { params: { query: { ...query, ...part } }, ...sending }),
    );
  }

  /**
   * What became ready, failed, was extended or given back after `updated_since`, the oldest first, for example for the
   * books of a day: a topup that changed twice comes twice. A change appears after a minute, so pass an `updated_until`
   * that is longer ago, and begin the next walk there.
   */
  topupChanges(
    query: { updated_since: string; updated_until: string },
    patience: Patience = {},
  ): AsyncGenerator<Schemas["ListedTopup"]> {
    return this.#pages("topups", ["topup_id", "change", "updated_at"], patience, (part) => (sending) =>
      this.api.GET("/topups", { params: { query: { ...query, ...part } }, ...sending }),
    );
  }

  /**
   * The options that this account may order, and that match all filters. `country` is a code of ISO 3166-1 alpha-2 such
   * as JP. Unlimited data is enough for every `min_data_mb` and too much for every `max_data_mb`.
   */
  options(
    query: {
      country?: string;
      network?: string;
      kind?: "data" | "data_voice_text";
      min_data_mb?: number;
      max_data_mb?: number;
      unlimited?: boolean;
      min_days?: number;
      max_days?: number;
      updated_since?: string;
    } = {},
    patience: Patience = {},
  ): AsyncGenerator<Schemas["Offered"]> {
    return this.#pages("options", ["option_id", "name"], patience, (part) => (sending) =>
      this.api.GET("/options", { params: { query: { ...query, ...part } }, ...sending }),
    );
  }

  /** The further events of the last 30 days, the newest first. */
  events(patience: Patience = {}): AsyncGenerator<Schemas["Event"]> {
    return this.#pages("events", ["event_id"], patience, (part) => (sending) =>
      this.api.GET("/webhook/events", { params: { query: part }, ...sending }),
    );
  }

  async *#pages<T>(
    name: string,
    texts: readonly string[],
    { patience = PATIENCE }: Patience,
    request: (part: { limit: number; cursor?: string }) => Sent,
  ): AsyncGenerator<T> {
    checkedSeconds("patience", patience);
    let cursor: string | null = null;
    do {
      const sent = request(cursor === null ? { limit: PAGE } : { limit: PAGE, cursor });
      const { entries, next }: { entries: T[]; next: string | null } = await this.#read(now() + patience, sent, (data) =>
        page<T>(data, name, texts),
      );
      yield* entries;
      // A page may be empty although others follow, so only the cursor ends the list.
      cursor = next;
    } while (cursor !== null);
  }

  /** The order that has the id. */
  async #taken(externalOrderId: string, end: number, taken: Answer): Promise<Order | undefined> {
    try {
      return await this.#look(externalOrderId, end);
    } catch (cause) {
      if (cause instanceof ApiError && cause.codes.includes("order_archived")) throw new OrderIdTaken(taken, undefined);
      throw new InDoubt(`the id is taken, but the order could not be looked up: ${textOf(cause)}`, { cause });
    }
  }

  /** Whether a request without an answer has stored the order after all, although a later one was refused. */
  async #settle(
    externalOrderId: string,
    items: readonly Item[],
    end: number,
    unanswered: number,
    refused: OrderRefused,
  ): Promise<PlacedOrder> {
    const doubt = "the order was refused, but an earlier request may be stored; repeat the order with the same id";
    const rest = unanswered + this.#waits.onItsWay - now();
    if (rest > 0) {
      if (now() + rest >= end) throw new InDoubt(doubt, { cause: refused });
      await this.#sleep(rest);
    }
    let order: Order | undefined;
    try {
      order = await this.#look(externalOrderId, end);
    } catch (cause) {
      throw new InDoubt(doubt, { cause });
    }
    if (!order || isGone(order)) throw refused;
    if (!stands(order)) throw new InDoubt("the state of the order is unknown to this version", { cause: refused });
    if (!isSame(order, items)) throw refused;
    return placed(order);
  }

  /** The look-up by the query finds every id, also `.`, `..` and those with `/`, which a path cannot name. */
  #look(external_order_id: string, end: number): Promise<Order | undefined> {
    const params = { query: { external_order_id } };
    const sent: Sent = (sending) => this.api.GET("/orders", { params, ...sending });
    return this.#read(end, sent, (data) => found(data, external_order_id));
  }

  /** A GET, which is repeated until its answer is readable, because it changes nothing. */
  async #read<T>(end: number, sent: Sent, readable: (data: unknown) => T): Promise<T> {
    for (let turn = 0; ; turn++) {
      const outcome = await this.#send(end, sent);
      let cause = causeOf(outcome);
      if ("answer" in outcome) {
        const { answer, data } = outcome;
        if (isWrong(answer) || answer.status === 422) throw cause;
        if (answer.status === 200)
          try {
            return readable(data);
          } catch (error) {
            cause = error;
          }
      }
      const pause = this.#waits.first[turn];
      const seconds = pause === undefined ? Infinity : waitAfter(outcome, pause);
      if (now() + seconds >= end)
        throw new Unanswered(`a look-up got no answer of the service; the last attempt: ${textOf(cause)}`, { cause });
      await this.#sleep(seconds);
    }
  }

  async #send(end: number, sent: Sent): Promise<Outcome> {
    const seconds = Math.max(0.001, Math.min(this.#timeout, end - now()));
    let result: Result;
    try {
      result = await sent({ fetch: (request) => send(request, seconds, this.#brand), parseAs: "text" });
    } catch (error) {
      return { error, notSent: isNotSent(error) };
    }
    return { answer: answer(result.response, result.error, this.#brand), data: parsed(result.data) };
  }
}

const now = (): number => performance.now() / 1000;

function parsed(text: unknown): unknown {
  try {
    return typeof text === "string" ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

function checkedId(externalOrderId: unknown): string {
  if (typeof externalOrderId !== "string") throw new TypeError("externalOrderId is not a text");
  try {
    encodeURIComponent(externalOrderId);
  } catch {
    throw new TypeError("externalOrderId has a character that cannot be sent");
  }
  return externalOrderId;
}

function checkedItems(items: readonly Item[]): Item[] {
  return items.map(({ option_id, qty, metadata }, index) => {
    const option = optionId(option_id);
    if (option === undefined) throw new TypeError(`option_id of item ${index} is not a UUID`);
    if (!Number.isSafeInteger(qty)) throw new TypeError(`qty of item ${index} is not a whole number`);
    return { option_id: option, qty, ...checkedMetadata(metadata, `item ${index}`) };
  });
}

function checkedMetadata(given: unknown, owner: string): { metadata?: Record<string, string> } {
  if (given === undefined || given === null) return {};
  const isText = (text: unknown): text is string => typeof text === "string";
  if (typeof given !== "object" || Array.isArray(given) || !Object.values(given).every(isText))
    throw new TypeError(`metadata of ${owner} is not an object of texts`);
  return { metadata: given as Record<string, string> };
}

/** The topups of a 201 or of its repeat, if it is as documented: one for each unit that was ordered. */
function created(data: unknown, items: readonly Item[]): Topups | undefined {
  try {
    const topups = topupsOf((data as { products?: unknown } | undefined)?.products);
    return areOf(topups, items) ? topups : undefined;
  } catch {
    return undefined;
  }
}

/** The service says that the request itself is wrong. It stored nothing, and a repeat would get the same answer. */
const isWrong = ({ status }: Answer): boolean => status >= 400 && status < 500 && ![408, 422, 429].includes(status);

/** The service says that this request stored nothing, and a repeat can succeed. */
const storedNothing = ({ status, repeat }: Answer): boolean =>
  [408, 429, 503].includes(status) || (status === 202 && repeat === "undecided");

function waitAfter(outcome: Outcome, otherwise: number): number {
  if (!("answer" in outcome)) return otherwise;
  const { retryAfter, status } = outcome.answer;
  if (retryAfter !== undefined) return Math.max(1, retryAfter);
  return status === 503 ? BUSY : otherwise;
}

const causeOf = (outcome: Outcome): unknown => ("answer" in outcome ? new ApiError(outcome.answer) : outcome.error);

/** What went wrong, in one line. The errors of this package hold no text that a terminal would obey. */
const textOf = (cause: unknown): string => (cause instanceof PartnerError ? cause.message : printable(String(cause)));

const isSame = (order: Order, items: readonly Item[]): boolean => areOf(topupsOf(order.topups), items);

function areOf(topups: Topups, items: readonly Item[]): boolean {
  const left = new Map<string, number>();
  const add = (option: string, count: number): void => void left.set(option, (left.get(option) ?? 0) + count);
  for (const { option_id, qty } of items) add(option_id, qty);
  for (const { option_id } of topups) add(option_id, -1);
  return [...left.values()].every((count) => count === 0);
}

function placed(order: Order): PlacedOrder {
  const { external_order_id: externalOrderId, state } = order;
  return { externalOrderId, topups: topupsOf(order.topups), storedBefore: true, state };
}
