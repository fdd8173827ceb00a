#!/usr/bin/env node
// A partner's client and webhook receiver, with Node's own modules only (Node 18 or later).
//
//   BASE_URL=… ACCESS_KEY=… SECRET_KEY=… docs/examples/esim.mjs order EXTERNAL_ORDER_ID OPTION_ID QTY
//   … docs/examples/esim.mjs show EXTERNAL_ORDER_ID
//   … docs/examples/esim.mjs redeliver TOPUP_ID
//   … docs/examples/esim.mjs options
//   … docs/examples/esim.mjs webhook URL
//   WEBHOOK_SECRET=whsec_… docs/examples/esim.mjs receive PORT
import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const API = "/api/v1/api_partner";
const env = process.env;

/** Ends the program with one line. */
function fail(line, status = 2) {
  console.error(line);
  process.exit(status);
}

/** An environment variable. If it is missing, the program ends with one line that says so. */
const setting = (name) => env[name] || fail(`${name} is not set: set this environment variable to the value that we gave you`);

/** The key in an environment variable. What is no key ends the program, because its signatures would only look forged. */
function keyIn(name, prefix = "") {
  const value = setting(name);
  const text = value.startsWith(prefix) ? value.slice(prefix.length) : "";
  const key = Buffer.from(text, "base64");
  if (key.length > 0 && key.toString("base64") === text) return key;
  return fail(`${name} is not ${prefix && `${prefix} and `}Base64 text: use it exactly as you got it`);
}

/**
 * Sends a signed request and returns the status, the error code and the JSON of the answer. Status 0 means that there
 * was no answer of the service: none that can be read, or an error without X-Service-Error, which comes from something
 * in between, such as a proxy. It may have passed the request on before.
 */
async function signed(method, path, body) {
  const [baseUrl, accessKey, key] = [setting("BASE_URL"), setting("ACCESS_KEY"), keyIn("SECRET_KEY")];
  if (!/^https?:\/\//.test(baseUrl)) fail("BASE_URL does not begin with http:// or https://");
  const timestamp = String(Math.floor(Date.now() / 1000));
  const content = body ? JSON.stringify(body) : "";
  const digest = createHash("sha256").update(content).digest("hex");
  const text = [method, path, timestamp, accessKey, digest].join("\n");
  const signature = createHmac("sha256", key).update(text).digest("hex");
  try {
    const answer = await fetch(baseUrl.replace(/\/$/, "") + path, {
      method,
      body: content || undefined,
      headers: {
        "X-Service-Access-Key": accessKey,
        "X-Service-Timestamp": timestamp,
        "X-Service-Content-SHA256": digest,
        "X-Service-Signature": signature,
        "Content-Type": "application/json",
      },
      signal: AbortSignal.timeout(30_000),
      redirect: "manual", // a signed request goes to no other host
    });
    const code = answer.headers.get("X-Service-Error") ?? "";
    if (!answer.ok && !code) throw `the status ${answer.status} without X-Service-Error is not of the service`;
    return { status: answer.status, code, json: await answer.json() };
  } catch (error) {
    return { status: 0, code: "", json: { error: String(error.cause?.code ?? error) } };
  }
}

/** Looks an order up. `fetch` would take the ids `.` and `..` for folders, so they go by the query, where nothing is changed. */
const show = async (externalOrderId) => {
  const id = encodeURIComponent(externalOrderId);
  if (!/^\.\.?$/.test(externalOrderId)) return signed("GET", `${API}/orders/${id}`);
  const answer = await signed("GET", `${API}/orders?external_order_id=${id}`);
  const [found] = answer.json.orders ?? [];
  return found ? { ...answer, json: found } : { ...answer, status: answer.status === 200 ? 404 : answer.status };
};

/** Whether repeating the request would not change its answer. */
const isDecided = ({ status }) => status > 0 && status < 500 && ![408, 429].includes(status);

/** Whether a look-up shows that nothing is bought. */
const isGone = ({ status, json }) => status === 404 || (status === 200 && ["refused", "cancelled"].includes(json.state));

/**
 * Orders until it is known whether the order is stored. After a 5xx, a 408, a 429 or without an answer, it sends the same
 * id again, because another id would be a second order. It gives up after five requests; a real shop goes on until the
 * answer is definite.
 */
async function order(externalOrderId, optionId, qty) {
  const body = { external_order_id: externalOrderId, products: [{ option_id: optionId, qty: Number(qty) }] };
  let unanswered; // when the last request was sent that got no answer
  for (const wait of [1000, 2000, 4000, 8000, null]) {
    const sent = Date.now();
    const answer = await signed("POST", `${API}/orders`, body);
    if (answer.status === 0) unanswered = sent;
    const isTaken = answer.code.includes("external_order_id_taken");
    if (isTaken) {
      // An earlier request stored this order, so nothing more is ordered. This shows what became of it.
      const shown = await show(externalOrderId);
      if (isDecided(shown) && !isGone(shown)) return shown;
      // It is not bought, and its id is free again, or the look-up got no answer. The repeat decides.
    }
    const isFinal = !isTaken && isDecided(answer);
    if (isFinal && answer.status === 422 && unanswered) {
      // The request without an answer may still be on its way, and be stored in spite of this refusal.
      const rest = Math.max(0, unanswered + 60_000 - Date.now());
      console.error(`HTTP status 422; looking the order up in ${Math.round(rest / 1000)} s`);
      await new Promise((resolve) => setTimeout(resolve, rest));
      const shown = await show(externalOrderId);
      return isGone(shown) ? answer : shown;
    }
    if (isFinal) return answer;
    if (wait === null) {
      console.error("it is unknown whether the order is stored: order it again with the same id");
      return answer;
    }
    const why = answer.status ? `HTTP status ${answer.status} ${answer.code}`.trimEnd() : answer.json.error;
    console.error(`${why}; repeating the order in ${wait / 1000} s`);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/** Whether one of the signatures is made with our secret, and the timestamp is at most five minutes old. */
function isOurs(key, headers, body) {
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!/^[0-9]{1,12}$/.test(timestamp)) return false;
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300)) return false;
  const mac = createHmac("sha256", key).update(`${headers["webhook-id"]}.${timestamp}.`).update(body);
  const expected = Buffer.from("v1," + mac.digest("base64"));
  const given = (headers["webhook-signature"] ?? "").split(" ").map((one) => Buffer.from(one));
  return given.some((one) => one.length === expected.length && timingSafeEqual(one, expected));
}

function receive(port) {
  // The same webhook can arrive twice, with the same webhook-id. A real shop keeps these ids in its database.
  const seen = new Set();
  const key = keyIn("WEBHOOK_SECRET", "whsec_");
  const server = createServer((request, response) => {
    const chunks = [];
    let size = 0;
    request.on("data", (chunk) => {
      size += chunk.length;
      // Our webhooks have less than 64 KiB, so nobody can fill the memory.
      if (size > 65_536) request.destroy();
      else chunks.push(chunk);
    });
    request.on("end", () => {
      const body = Buffer.concat(chunks);
      // After an answer other than 2xx the webhook is sent again, so none is lost while the secret changes.
      if (!isOurs(key, request.headers, body)) return response.writeHead(401).end();
      const content = JSON.parse(body);
      // Only a further event has a webhook-type; the webhook of an eSIM has none.
      const { "webhook-id": id, "webhook-type": kind } = request.headers;
      if (!seen.has(id)) {
        // A real shop stores the eSIM here, before it answers. Only ids are printed, because the activation code is a
        // secret.
        seen.add(id);
        if (kind) console.log("event", kind, id);
        else console.log("ready", content.external_order_id, content.topup_id);
      }
      // A host that a sandbox account has chosen proves by this answer that it wants our webhooks.
      const { challenge } = kind === "webhook.test" ? content.data : {};
      response.writeHead(200).end(challenge && JSON.stringify({ challenge }));
    });
  });
  server.on("error", (error) => fail(`cannot listen at port ${port}: ${error.message}`, 1));
  server.listen(Number(port), "127.0.0.1");
}

const [command, ...rest] = process.argv.slice(2);
const commands = {
  order: (externalOrderId, optionId, qty) => order(externalOrderId, optionId, qty),
  show: (externalOrderId) => show(externalOrderId),
  redeliver: (topupId) => signed("POST", `${API}/topups/${topupId}/redeliver`),
  options: () => signed("GET", `${API}/options`),
  webhook: (url) => signed("PUT", `${API}/webhook`, { url }),
  receive: (port) => receive(port),
};
const numbers = { order: rest[2], receive: rest[0] };
const run = Object.hasOwn(commands, command ?? "") && commands[command];
if (run.length !== rest.length || !/^[0-9]+$/.test(numbers[command] ?? "0"))
  fail("usage: esim.mjs order|show|redeliver|options|webhook|receive …; see the head of this file");
const answer = await run(...rest);
if (answer) {
  const { status, code, json } = answer;
  if (status === 0) fail(`no answer that can be read: ${json.error}`, 1);
  console.log(JSON.stringify(json));
  if (status < 200 || status > 299) fail(`HTTP status ${status} ${code}`, 1);
}
