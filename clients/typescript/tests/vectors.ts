// The test vectors of the partner guide, which the package's tests read instead of repeating them.
import { ok } from "node:assert";
import { readFileSync } from "node:fs";

export const setting = (name: string): string => {
  const value = process.env[name];
  ok(value, `${name} is not set`);
  return value;
};

/** The lines `key: value` of a vector. `GUIDE` names a file with the guide and the reference. */
export function vector(name: string): (key: string) => string {
  const guide = readFileSync(setting("GUIDE"), "utf8");
  const found = new RegExp(`<!-- ${name} vector -->\n\`\`\`\n([^]*?)\`\`\``).exec(guide)?.[1];
  ok(found, `the guide has no ${name} vector`);
  const lines = new Map(found.trim().split("\n").map((line) => line.split(/: (.*)/s, 2) as [string, string]));
  return (key) => lines.get(key) ?? ok(false, `the ${name} vector has no ${key}`) ?? "";
}
