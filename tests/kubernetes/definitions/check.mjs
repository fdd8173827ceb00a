// check.mjs NODE_MODULES FILE…: each file is a JSON list of objects. Each object of an operator is checked by the
// validator that @kubernetes-models has made of the operator's own definition: types, required fields, enumerations and
// limits. It accepts unknown fields, which check.py refuses by its list of fields.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const scope = join(folder, "@kubernetes-models");
const checked = new Map();
let problems = 0;

// The class of a kind, if one of the packages has it.
async function model(group, kind) {
  for (const name of readdirSync(scope)) {
    const path = join(scope, name, group, `${kind}.js`);
    if (existsSync(path)) return (await import(pathToFileURL(path)))[kind];
  }
  return undefined;
}

for (const file of files) {
  for (const object of JSON.parse(readFileSync(file, "utf8"))) {
    // Kubernetes' own kinds are checked by kubernetes-validate.
    if (!object.apiVersion.split("/")[0].includes(".") || object.apiVersion.includes("k8s.io/") && !object.apiVersion.startsWith("gateway.")) continue;
    const Model = await model(object.apiVersion, object.kind);
    if (!Model) continue;
    try {
      new Model(object).validate();
    } catch (error) {
      console.error(`${file}: ${object.kind} ${object.metadata.name}: ${error.message}`);
      problems += 1;
    }
    checked.set(object.kind, (checked.get(object.kind) ?? 0) + 1);
  }
}
if (problems) process.exit(1);
const counts = [...checked].map(([kind, count]) => `${count} ${kind}`).sort().join(", ");
console.log(`well: against the operators' own definitions: ${counts}`);
for (const kind of ["Certificate", "ExternalSecret", "HTTPRoute", "Issuer", "PodMonitor", "PrometheusRule", "ScaledObject"]) {
  if (!checked.has(kind)) {
    console.error(`no ${kind} was checked`);
    process.exitCode = 1;
  }
}
