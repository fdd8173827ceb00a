// A wrong setting is an error when the client is made, and the error names it and shows no secret.
import { doesNotMatch, ok, throws } from "node:assert";
import { test } from "node:test";
import { Partner, signature, type PartnerOptions } from "esim-partner";

const GOOD = { baseUrl: "https://esim.example.com", accessKey: "ak_example", secretKey: "c2VjcmV0LWtleQ==" };
const WRONG: Record<string, unknown[]> = {
  baseUrl: [
    "esim.example.com", "localhost:8080", "ftp://x", "", "https://", "https:///path", "https://x:port", "https://x:99999",
    "https://me:secret@x", "https://x?y", "https://x#y", "https://x y", "https://x\n", " https://x", "https://exämple.com",
    "https://[::1", undefined, 5,
  ],
  accessKey: ["", "ak_example\n", "ak example", "äk", undefined, "ak\0", 5],
  secretKey: ["", "c2VjcmV0LWtleQ==\n", "c2VjcmV0LWtleQ", "c2VjcmV0LWtleQ===", "not Base64!", "whsec_c2VjcmV0", "schlüssel", undefined, 5],
  brand: ["", "Ac me", "Acme\r\nX", "Äcme", "-", 5],
  timeout: [0, -1, NaN, Infinity, "30", null, 1e12, true],
  waits: [{ first: [-1] }, { then: 0 }, { onItsWay: NaN }],
};

for (const [name, values] of Object.entries(WRONG))
  for (const value of values)
    test(`a wrong ${name} is named: ${JSON.stringify(value)}`, () => {
      throws(() => new Partner({ ...GOOD, [name]: value } as PartnerOptions), (error: Error) => {
        ok(error instanceof TypeError, String(error));
        doesNotMatch(error.message, /secret@|c2Vj/);
        return error.message.includes(name);
      });
      if (["accessKey", "secretKey", "brand"].includes(name))
        throws(() => signature({ ...GOOD, [name]: value } as PartnerOptions), (error: Error) => error.message.includes(name));
    });

test("good settings are accepted", () => {
  for (const baseUrl of ["https://x", "http://127.0.0.1:8080/", "http://[::1]:8080", "https://x/esim//", "https://x/v1/api_partner"])
    ok(new Partner({ ...GOOD, baseUrl, brand: "Acme-2", timeout: 5 }));
});
