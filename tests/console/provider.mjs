// provider.mjs NODE_MODULES PORT CONSOLE_URL: a real OpenID provider (the certified npm package oidc-provider) for the walk
// of tests/console. Its page signs in whoever writes a name; the name decides the groups.
import { randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [modules, port, console_url] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`));
const issuer = `http://127.0.0.1:${port}`;
const groups = { "on-call": ["everybody", "esim-on-call"], guest: ["everybody"] };

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "esim-console",
      client_secret: process.env.CLIENT_SECRET,
      redirect_uris: [new URL("/sign-in/openid/callback", console_url).href],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  // As most providers do, it puts the claims of the scopes into the ID token.
  conformIdTokenClaims: false,
  claims: { email: ["email", "email_verified"], profile: ["groups"] },
  pkce: { required: () => true },
  cookies: { keys: [randomBytes(16).toString("hex")] },
  findAccount: (_, name) => ({
    accountId: name,
    claims: () => ({ sub: name, email: `${name}@example.com`, email_verified: true, groups: groups[name] ?? [] }),
  }),
});
createServer(provider.callback()).listen(Number(port), "127.0.0.1", () => process.stdout.write("ready\n"));
