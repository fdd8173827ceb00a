// Signatures of requests: the guide's test vector, and what the signature covers.
import { deepStrictEqual, doesNotMatch, strictEqual, throws } from "node:assert";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import createClient from "openapi-fetch";
import { digest, sign, signature, type paths } from "esim-partner";
import { vector } from "./vectors.js";

test("the guide's vector", () => {
  const given = vector("request");
  const keys = { accessKey: given("access key"), secretKey: given("secret key") };
  const content = digest(Buffer.from(given("body")));
  strictEqual(content, given("content sha256"));
  strictEqual(sign(keys, given("method"), given("path"), given("timestamp"), content), given("signature"));
});

test("what is sent is signed", async () => {
  const keys = { accessKey: "ak_example", secretKey: "c2VjcmV0LWtleQ==", brand: "Acme" };
  const seen: { request: IncomingMessage; body: Buffer }[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      seen.push({ request, body: Buffer.concat(chunks) });
      response.writeHead(200, { "Content-Type": "application/json" }).end("{}");
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = createClient<paths>({ baseUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}/api` });
  client.use(signature(keys, () => 1700000000900));
  const path = { external_order_id: "a/b c" };
  await client.GET("/orders/{external_order_id}", { params: { path } });
  await client.GET("/orders", { params: { query: { cursor: "a=b" } } });
  await client.POST("/orders", { body: { external_order_id: "A-1", products: [] } });
  server.closeAllConnections();
  server.close();
  deepStrictEqual(seen.map(({ request }) => request.url), ["/api/orders/a%2Fb%20c", "/api/orders?cursor=a%3Db", "/api/orders"]);
  for (const { request, body } of seen) {
    strictEqual(request.headers["x-acme-access-key"], "ak_example");
    strictEqual(request.headers["x-acme-timestamp"], "1700000000");
    strictEqual(request.headers["x-acme-content-sha256"], digest(body));
    const expected = sign(keys, request.method ?? "", request.url ?? "", "1700000000", digest(body));
    strictEqual(request.headers["x-acme-signature"], expected);
  }
});

test("a secret key that is none is refused and not shown", () => {
  for (const bad of ["", "not Base64!", "whsec_"])
    throws(() => signature({ accessKey: "ak", secretKey: bad }), (error: Error) => {
      if (bad) doesNotMatch(error.message, new RegExp(bad));
      return error instanceof TypeError;
    });
});
