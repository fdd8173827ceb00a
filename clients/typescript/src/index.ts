// A client for partners who order eSIMs: see README.md.
export {
  ApiError,
  ForeignAnswer,
  InDoubt,
  InvalidWebhook,
  OrderIdTaken,
  OrderRefused,
  PartnerError,
  Unanswered,
  Unavailable,
  type Answer,
} from "./errors.js";
export type * from "./events.js";
export {
  Partner,
  type Item,
  type Order,
  type OrderOptions,
  type PartnerOptions,
  type Patience,
  type PlacedOrder,
  type Waits,
} from "./partner.js";
export type { components, operations, paths } from "./schema.js";
export { digest, sign, signature, type Keys } from "./signing.js";
export {
  verifyWebhook,
  type Esim,
  type VerifyOptions,
  type Webhook,
} from "./webhooks.js";
