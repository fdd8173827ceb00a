// Orders with the client that openapi-generator makes for TypeScript, as a partner would: this file is all that is
// written by hand.
import { createHash, createHmac } from "node:crypto";

import {
  Configuration, ErrorCode, OptionsApi, OrderState, OrdersApi, ResponseError, TopupState, TopupsApi, instanceOfMessages,
} from "./api/index.js";

const setting = (name: string): string => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
};
const accessKey = setting("ACCESS_KEY");
const secret = Buffer.from(setting("SECRET_KEY"), "base64");
const option = setting("OPTION_ID");

const configuration = new Configuration({
  basePath: `${setting("BASE_URL")}/api/v1/api_partner`,
  middleware: [
    {
      // Signs each request, with its query and its body.
      async pre({ url, init }) {
        const { pathname, search } = new URL(url);
        const body = typeof init.body === "string" ? init.body : "";
        const digest = createHash("sha256").update(body).digest("hex");
        const timestamp = String(Math.floor(Date.now() / 1000));
        const text = [init.method, pathname + search, timestamp, accessKey, digest].join("\n");
        const headers = {
          ...init.headers,
          "X-Service-Access-Key": accessKey,
          "X-Service-Timestamp": timestamp,
          "X-Service-Content-SHA256": digest,
          "X-Service-Signature": createHmac("sha256", secret).update(text).digest("hex"),
        };
        return { url, init: { ...init, headers } };
      },
    },
  ],
});
const check = (right: boolean, what: string): void => {
  if (!right) throw new Error(what);
};

async function main(): Promise<void> {
  const page = await new OptionsApi(configuration).listOptionsRaw({});
  check((await page.value()).options.length > 0, "there are no options");
  check(page.raw.headers.get("etag") !== null, "a page has no ETag");

  const orders = new OrdersApi(configuration);
  const wanted = { orderRequest: { externalOrderId: "generated-ts", products: [{ optionId: option, qty: 1 }] } };
  const created = await orders.createOrder(wanted);
  const deadline = Date.now() + 30_000;
  for (;;) {
    const { state } = await orders.showOrder({ externalOrderId: "generated-ts" });
    if (state === OrderState.OrderStateReady) break;
    check(Date.now() < deadline, `the order is ${state}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const [product] = created.products;
  if (product === undefined) throw new Error("the order has no product");
  const topup = await new TopupsApi(configuration).showTopup({ topupId: product.topupId });
  check(topup.state === TopupState.TopupStateReady && topup.esim !== null, `the topup is ${topup.state}`);

  // The error of a repeated order can be read.
  const again = await orders.createOrder(wanted).catch((error: unknown) => error);
  if (!(again instanceof ResponseError)) throw new Error(`the repeat: ${String(again)}`);
  const code = again.response.headers.get("x-service-error");
  check(again.response.status === 422 && code === ErrorCode.ErrorCodeExternalOrderIdTaken, `the repeat: ${code}`);
  check(instanceOfMessages((await again.response.json()) as object), "the repeat has other errors than documented");
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
