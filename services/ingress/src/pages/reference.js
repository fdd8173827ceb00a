// The reference page. It shows the operations of openapi.json and sends requests that it signs with the partner's keys.
// The secret key never leaves the page, and no key is stored.

/** What `$ref` names, or the value itself. */
export function resolved(document, value) {
  if (value?.$ref === undefined) return value;
  const parts = value.$ref.replace(/^#\//, "").split("/");
  return parts.reduce((at, part) => at[part.replaceAll("~1", "/").replaceAll("~0", "~")], document);
}

/** All operations, in the order of their tags: `{method, path, tag, operation}`. */
export function operations(document) {
  const found = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      method: method.toUpperCase(),
      path,
      tag: operation.tags?.[0] ?? "",
      operation,
    })),
  );
  const tags = (document.tags ?? []).map(({ name }) => name);
  const place = ({ tag }) => (tags.includes(tag) ? tags.indexOf(tag) : tags.length);
  return found.sort((one, other) => place(one) - place(other) || one.path.localeCompare(other.path));
}

/** A schema whose references and alternatives with null are resolved, and whose parts (`allOf`) are joined. */
export function plain(document, schema) {
  const found = resolved(document, schema) ?? {};
  const alternatives = (found.oneOf ?? found.anyOf)?.filter((one) => one.type !== "null");
  if (alternatives?.length === 1) return plain(document, alternatives[0]);
  if (!found.allOf) return found;
  const parts = found.allOf.map((part) => plain(document, part));
  return { type: "object", properties: Object.assign({}, ...parts.map((part) => part.properties)) };
}

/** An example of a schema. */
export function example(document, schema) {
  const found = plain(document, schema);
  if (found.example !== undefined) return found.example;
  if (found.enum) return found.enum[0];
  const type = [found.type].flat().find((one) => one !== "null");
  if (type === "array") return [example(document, found.items)];
  if (type === "integer" || type === "number") return found.minimum ?? 0;
  if (type === "boolean") return false;
  if (!found.properties) return "";
  const fields = Object.entries(found.properties);
  return Object.fromEntries(fields.map(([name, field]) => [name, example(document, field)]));
}

/** The fields of a schema and of what it holds: `[name, type, description]`. */
export function fields(document, schema, prefix = "", depth = 0) {
  const found = plain(document, schema);
  if (found.type === "array") return fields(document, found.items, `${prefix}[]`, depth);
  if (!found.properties || depth > 4) return [];
  return Object.entries(found.properties).flatMap(([name, field]) => {
    const inner = plain(document, field);
    const path = prefix ? `${prefix}.${name}` : name;
    const type = [inner.type ?? "object"].flat().join(" or ");
    const values = inner.enum ? `${type}: ${inner.enum.join(", ")}` : type;
    return [[path, values, field.description ?? inner.description ?? ""], ...fields(document, field, path, depth + 1)];
  });
}

const hex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** The lowercase hex SHA-256 of a body, or of no bytes. */
export async function digest(body) {
  return hex(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(body ?? "")));
}

/** The lowercase hex HMAC-SHA256 of a request. `target` is the path as sent, with the query. */
export async function sign(keys, method, target, timestamp, contentSha256) {
  const secret = Uint8Array.from(atob(keys.secret), (character) => character.charCodeAt(0));
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", secret, algorithm, false, ["sign"]);
  const text = [method, target, timestamp, keys.access, contentSha256].join("\n");
  return hex(await crypto.subtle.sign("HMAC", key, new TextEncoder().encode(text)));
}

/**
 * A signed request as `[url, init]` for `fetch`. `values` holds the parameters by name, `body` is JSON text or
 * undefined, `now` is Unix time in seconds, `origin` the URL of the service.
 */
export async function request(document, { method, path, operation }, values, body, keys, now, origin) {
  const filled = path.replace(/\{([^}]+)\}/g, (_, name) => encodeURIComponent(values[name] ?? ""));
  const url = new URL(new URL(document.servers[0].url, origin).pathname + filled, origin);
  for (const parameter of operation.parameters ?? []) {
    const value = values[parameter.name];
    if (parameter.in === "query" && value) url.searchParams.set(parameter.name, value);
  }
  // The URL object may have normalized the path, so the signature covers what it sends and not what was typed.
  const timestamp = String(now);
  const schemes = document.components.securitySchemes;
  const contentSha256 = await digest(body);
  const headers = {
    [schemes.access_key.name]: keys.access,
    [schemes.timestamp.name]: timestamp,
    [schemes.content_sha256.name]: contentSha256,
    [schemes.signature.name]: await sign(keys, method, url.pathname + url.search, timestamp, contentSha256),
  };
  for (const parameter of operation.parameters ?? []) {
    const value = values[parameter.name];
    if (parameter.in === "header" && value) headers[parameter.name] = value;
  }
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return [url, { method, headers, body, credentials: "omit", cache: "no-store", redirect: "error" }];
}

// --- the page -------------------------------------------------------------------------------------

/** Makes an element with attributes and children. Text is inserted as text and never read as HTML. */
function element(name, attributes, ...children) {
  const made = window.document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

/** Makes a paragraph of a text in which backticks mark code. */
function prose(text) {
  const parts = text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
  return element("p", {}, ...parts);
}

function table(heads, rows) {
  if (rows.length === 0) return "";
  const head = element("tr", {}, ...heads.map((text) => element("th", {}, text)));
  const lines = rows.map((row) => {
    const cells = row.map((text, index) => element("td", {}, index === 0 ? element("code", {}, text) : prose(text)));
    return element("tr", {}, ...cells);
  });
  return element("table", {}, head, ...lines);
}

function responses(document, operation) {
  const rows = Object.entries(operation.responses).map(([status, response]) => {
    const { description } = resolved(document, response);
    return [status, description];
  });
  const success = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  const schema = success && resolved(document, success[1]).content?.["application/json"]?.schema;
  const answer = schema ? fields(document, schema) : [];
  return [table(["Status", "Meaning"], rows), table(["Field of the answer", "Type", "Meaning"], answer)];
}

async function send(document, one, form, output) {
  const keys = new FormData(window.document.getElementById("keys"));
  const values = Object.fromEntries(new FormData(form));
  const { body } = values;
  output.hidden = false;
  output.textContent = "…";
  output.classList.remove("failed");
  try {
    const signer = { access: keys.get("access").trim(), secret: keys.get("secret").trim() };
    const now = Math.floor(Date.now() / 1000);
    const [url, init] = await request(document, one, values, body, signer, now, window.location.origin);
    const answer = await fetch(url, init);
    const head = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    const text = await answer.text();
    let shown = text;
    try {
      shown = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // The answer is not JSON, so it is shown as it is.
    }
    output.classList.toggle("failed", !answer.ok);
    output.textContent = `${answer.status} ${answer.statusText}\n${head}\n\n${shown}`;
  } catch (error) {
    output.classList.add("failed");
    output.textContent = `The request was not sent, or no answer arrived: ${error.message}`;
  }
}

function shown(document, one) {
  const { method, path, operation } = one;
  const form = element("form", { autocomplete: "off" });
  for (const parameter of operation.parameters ?? []) {
    const label = element("label", {}, element("code", {}, parameter.name), ` ${parameter.description ?? ""} `);
    const input = element("input", { name: parameter.name, spellcheck: "false" });
    if (parameter.required) input.required = true;
    label.append(input);
    form.append(label);
  }
  const schema = operation.requestBody?.content["application/json"].schema;
  if (schema) {
    form.append(table(["Field of the body", "Type", "Meaning"], fields(document, schema)));
    const area = element("textarea", { name: "body", rows: "8", spellcheck: "false" });
    area.value = JSON.stringify(example(document, schema), null, 2);
    form.append(element("label", {}, "Body", area));
  }
  form.append(element("button", {}, `Send ${method} ${path}`));
  const output = element("pre", { "aria-live": "polite" });
  output.hidden = true;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (method === "GET" || window.confirm(`Send ${method} ${path} with your keys?`)) send(document, one, form, output);
  });
  const summary = element("summary", {}, element("code", {}, `${method} ${path}`), ` ${operation.summary ?? ""}`);
  const about = operation.description ? prose(operation.description) : "";
  const id = operation.operationId ?? "";
  return element("details", { id }, summary, about, ...responses(document, operation), form, output);
}

function webhook(document, [name, { post }]) {
  const headers = (post.parameters ?? []).map(({ name, description }) => [name, "header", description]);
  const schema = post.requestBody?.content["application/json"].schema;
  const rows = [...headers, ...(schema ? fields(document, schema) : [])];
  const summary = element("summary", {}, element("code", {}, name), ` ${post.summary ?? ""}`);
  return element("details", {}, summary, prose(post.description ?? ""), table(["Name", "Type", "Meaning"], rows));
}

async function start() {
  const place = window.document.getElementById("operations");
  window.document.getElementById("insecure").hidden = window.isSecureContext;
  window.document.getElementById("keys").addEventListener("submit", (event) => event.preventDefault());
  const document = await (await fetch("openapi.json")).json();
  let tag;
  for (const one of operations(document)) {
    if (one.tag !== tag) place.append(element("h2", {}, (tag = one.tag)));
    place.append(shown(document, one));
  }
  place.append(element("h2", {}, "Webhooks to you"));
  place.append(...Object.entries(document.webhooks ?? {}).map((entry) => webhook(document, entry)));
}

if (globalThis.window?.document) start();
