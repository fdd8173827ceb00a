// The account of a partner: it places orders so that none is bought twice, and reads lists page by page.
import { setTimeout as wait } from "node:timers/promises";
import createClient, { type Client } from "openapi-fetch";
import { ApiError, InDoubt, OrderIdTaken, OrderRefused, Unavailable, type Answer } from "./errors.js";
import type { components, paths } from "./schema.js";
import { signature, type Keys } from "./signing.js";

type Schemas = components["schemas"];
export type Item = Schemas["Item"];
export type Order = Schemas["Order"];

const PREFIX = "/v1/api_partner";
const TAKEN = "external_order_id_taken";
/** The size of the pages that lists are read in. */
const PAGE = 100;
/** The wait after a 503 without `Retry-After`. */
const BUSY = 3;

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
  /** In seconds. A shorter one than 30, the default, would only leave you in doubt about more of your orders. */
  timeout?: number;
  waits?: Partial<Waits>;
  /** Replaces the waiting, in seconds, for tests. */
  sleep?: (seconds: number) => Promise<unknown>;
}

/** A stored order. It is bought once, and each eSIM comes to you in a webhook. */
export interface PlacedOrder {
  externalOrderId: string;
  topups: { topup_id: string; option_id: string }[];
  /** Whether an earlier request had stored the order, for example one whose answer was lost. */
  storedBefore: boolean;
}

/** What a request led to. */
interface Answered {
  answer: Answer;
  data: unknown;
}
interface Unanswered {
  error: unknown;
  /** The connection was refused, so the request certainly did not arrive. */
  notSent: boolean;
}
type Outcome = Answered | Unanswered;

/** The part of the result of openapi-fetch that is read here. */
interface Result {
  data?: unknown;
  error?: unknown;
  response: Response;
}

/** An account of the service. */
export class Partner {
  /** The generated client with all requests, signed by this account: `partner.api.GET("/webhook")`. */
  readonly api: Client<paths>;
  readonly #brand: string;
  readonly #waits: Waits;
  readonly #sleep: (seconds: number) => Promise<unknown>;

  constructor({ baseUrl, timeout = 30, waits = {}, sleep, ...keys }: PartnerOptions) {
    const root = baseUrl.replace(/\/+$/, "");
    this.#brand = keys.brand ?? "Service";
    this.#waits = { first: [1, 2, 4, 8], then: 60, onItsWay: 60, ...waits };
    this.#sleep = sleep ?? ((seconds) => wait(seconds * 1000));
    this.api = createClient<paths>({
      baseUrl: root.endsWith(PREFIX) ? root : `${root}/api${PREFIX}`,
      fetch: (request) => fetch(request, { signal: AbortSignal.timeout(timeout * 1000), redirect: "manual" }),
    });
    this.api.use(signature(keys));
  }

  /**
   * Places an order, and repeats the request with the same id until the answer is definite. A repeat never buys twice.
   * If an earlier request stored the same order, that order is returned; so calling this again after a crash of your
   * program is safe, too. It waits between repeats for at most `patience` seconds (300).
   *
   * @throws {OrderRefused} if nothing is stored
   * @throws {OrderIdTaken} if another order has the id
   * @throws {InDoubt} if the patience is over without a definite answer
   * @throws {Unavailable} if the patience is over and nothing was stored
   * @throws {ApiError} if the request itself is wrong, for example its signature
   */
  async order(externalOrderId: string, items: Item[], { patience = 300 } = {}): Promise<PlacedOrder> {
    const body = { external_order_id: externalOrderId, products: items };
    const end = now() + patience;
    let inDoubt = false;
    // When the last request was sent that got no answer. It may be stored even after a later one was refused.
    let unanswered: number | undefined;
    for (let turn = 0; ; turn++) {
      const sent = now();
      const outcome = await this.#send(() => this.api.POST("/orders", { body }));
      if ("answer" in outcome) {
        const { answer } = outcome;
        if (answer.status === 201) {
          const { products } = outcome.data as Schemas["CreatedOrder"];
          return { externalOrderId, topups: products, storedBefore: false };
        }
        if (answer.codes.includes(TAKEN)) return this.#taken(externalOrderId, items, answer);
        if (answer.status === 422) {
          const arrived = unanswered !== undefined && (await this.#arrived(externalOrderId, items, unanswered));
          if (arrived) return arrived;
          throw new OrderRefused(answer);
        }
        if (!isTemporary(answer)) {
          const error = new ApiError(answer);
          if (!inDoubt) throw error;
          throw new InDoubt(`the order may be stored, but its repeat was refused: ${error.message}`, { cause: error });
        }
        const storedNothing = [408, 429].includes(answer.status) || (answer.status === 503 && answer.codes.length > 0);
        if (!storedNothing) {
          inDoubt = true;
          // Without a code it is not the service that answers, so the request may still be on its way to it.
          if (answer.codes.length === 0) unanswered = sent;
        }
      } else if (!outcome.notSent) {
        inDoubt = true;
        unanswered = sent;
      }
      const seconds = waitAfter(outcome, this.#waits.first[turn] ?? this.#waits.then);
      if (now() + seconds > end) {
        const cause = causeOf(outcome);
        if (!inDoubt) throw new Unavailable("nothing was stored; place the order later", { cause });
        throw new InDoubt("there is no definite answer; repeat the order with the same id", { cause });
      }
      await this.#sleep(seconds);
    }
  }

  /**
   * The order with this id. `undefined` means that it is not stored now, although a request for it may still be on its
   * way; so this does not replace a repeat of the order.
   */
  async findOrder(externalOrderId: string): Promise<Order | undefined> {
    const found = await this.#look(externalOrderId);
    if (found.answer.status === 404) return undefined;
    return success(found) as Order;
  }

  /** All orders without their topups, the newest first, read page by page as you go on. */
  orders(query: { created_after?: string; state?: Schemas["OrderState"] } = {}): AsyncGenerator<Schemas["Summary"]> {
    return this.#pages(async (page) => {
      const found = await this.#read(() => this.api.GET("/orders", { params: { query: { ...query, ...page } } }));
      const { orders, next_cursor } = success(found) as Schemas["Orders"];
      return { entries: orders, next: next_cursor };
    });
  }

  /**
   * The options that this account may order, and that match all filters. `country` is a code of ISO 3166-1 alpha-2 such
   * as JP. Unlimited data is enough for every `min_data_mb`.
   */
  options(
    query: {
      country?: string;
      min_data_mb?: number;
      unlimited?: boolean;
      min_days?: number;
      max_days?: number;
    } = {},
  ): AsyncGenerator<Schemas["Offered"]> {
    return this.#pages(async (page) => {
      const found = await this.#read(() => this.api.GET("/options", { params: { query: { ...query, ...page } } }));
      const { options, next_cursor } = success(found) as Schemas["Options"];
      return { entries: options, next: next_cursor };
    });
  }

  /** The further events of the last 30 days, the newest first. */
  events(): AsyncGenerator<Schemas["Event"]> {
    return this.#pages(async (page) => {
      const found = await this.#read(() => this.api.GET("/webhook/events", { params: { query: page } }));
      const { events, next_cursor } = success(found) as Schemas["Events"];
      return { entries: events, next: next_cursor };
    });
  }

  async *#pages<T>(
    read: (page: { limit: number; cursor?: string }) => Promise<{ entries: T[]; next?: string | null | undefined }>,
  ): AsyncGenerator<T> {
    let cursor: string | null | undefined;
    do {
      const page = await read(cursor ? { limit: PAGE, cursor } : { limit: PAGE });
      yield* page.entries;
      // A page may be empty although others follow, so only the cursor ends the list.
      cursor = page.next;
    } while (cursor);
  }

  /** What the order is that has the id: the same one, which an earlier request stored, or another one. */
  async #taken(externalOrderId: string, items: Item[], answer: Answer): Promise<PlacedOrder> {
    const shown = await this.#look(externalOrderId);
    if ([404, 410].includes(shown.answer.status)) throw new OrderIdTaken(answer, undefined);
    const order = success(shown) as Order;
    if (!isSame(order, items)) throw new OrderIdTaken(answer, order);
    return placed(order);
  }

  /** Whether a request without an answer has stored the order after all, although a later one was refused. */
  async #arrived(externalOrderId: string, items: Item[], unanswered: number): Promise<PlacedOrder | undefined> {
    await this.#sleep(Math.max(0, unanswered + this.#waits.onItsWay - now()));
    const order = await this.findOrder(externalOrderId);
    if (!order || ["refused", "cancelled"].includes(order.state) || !isSame(order, items)) return undefined;
    return placed(order);
  }

  #look(external_order_id: string): Promise<Answered> {
    const params = { path: { external_order_id } };
    return this.#read(() => this.api.GET("/orders/{external_order_id}", { params }));
  }

  /** A GET, which is repeated after a temporary failure, because it changes nothing. */
  async #read(get: () => Promise<Result>): Promise<Answered> {
    for (let turn = 0; ; turn++) {
      const outcome = await this.#send(get);
      if ("answer" in outcome && !isTemporary(outcome.answer)) return outcome;
      const seconds = this.#waits.first[turn];
      if (seconds === undefined)
        throw new Unavailable("a look-up was repeated and got no answer", { cause: causeOf(outcome) });
      await this.#sleep(waitAfter(outcome, seconds));
    }
  }

  async #send(request: () => Promise<Result>): Promise<Outcome> {
    let result: Result;
    try {
      result = await request();
    } catch (error) {
      const code = (error as { cause?: { code?: unknown } }).cause?.code;
      // A wrong base URL is a mistake and no failure of the network.
      if (code === "ERR_INVALID_URL") throw error;
      return { error, notSent: code === "ECONNREFUSED" || code === "ENOTFOUND" };
    }
    return { answer: read(result, this.#brand), data: result.data };
  }
}

const now = (): number => performance.now() / 1000;

function read({ error, response }: Result, brand: string): Answer {
  const named = response.headers.get(`X-${brand}-Error`) ?? "";
  const codes = named.split(",").map((code) => (code.split(";", 1)[0] ?? "").trim());
  const body = (typeof error === "object" && error !== null ? error : {}) as { error?: unknown; errors?: unknown };
  const one = typeof body.error === "object" && body.error !== null ? (body.error as { message?: unknown }).message : body.error;
  const messages = Array.isArray(body.errors) ? body.errors : typeof one === "string" ? [one] : [];
  const retryAfter = response.headers.get("Retry-After") ?? "";
  return {
    status: response.status,
    codes: codes.filter((code) => code !== ""),
    messages: messages.map(String),
    requestId: response.headers.get("X-Request-Id") ?? undefined,
    retryAfter: /^\d+$/.test(retryAfter) ? Number(retryAfter) : undefined,
  };
}

const isTemporary = ({ status }: Answer): boolean => status >= 500 || [408, 429].includes(status);

function waitAfter(outcome: Outcome, otherwise: number): number {
  if (!("answer" in outcome)) return otherwise;
  const { retryAfter, status, codes } = outcome.answer;
  if (retryAfter !== undefined) return Math.max(1, retryAfter);
  return status === 503 && codes.length > 0 ? BUSY : otherwise;
}

const causeOf = (outcome: Outcome): unknown => ("answer" in outcome ? new ApiError(outcome.answer) : outcome.error);

function success({ answer, data }: Answered): unknown {
  if (answer.status !== 200) throw new ApiError(answer);
  return data;
}

function isSame(order: Order, items: Item[]): boolean {
  const left = new Map<string, number>();
  const add = (option: string, count: number): void => {
    const id = option.toLowerCase();
    left.set(id, (left.get(id) ?? 0) + count);
  };
  for (const { option_id, qty } of items) add(option_id, qty);
  for (const { option_id } of order.topups) add(option_id, -1);
  return [...left.values()].every((count) => count === 0);
}

function placed(order: Order): PlacedOrder {
  const topups = order.topups.map(({ topup_id, option_id }) => ({ topup_id, option_id }));
  return { externalOrderId: order.external_order_id, topups, storedBefore: true };
}
