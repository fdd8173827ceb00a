"""crates.py FOLDER: writes the definitions of the operators' resources into FOLDER; see tests/kubernetes/run.

The crates kcr_… of crates.io hold Rust types that kopium has made from the operators' own CustomResourceDefinitions, one file
for each. This turns the types back into definitions: fields, types, required fields and enumerations. Patterns and limits are
not in the types; those of @kubernetes-models (definitions/check.mjs) have them. cargo fetches the crates, and nothing of them
is compiled or run. definitions/crates.txt names their versions and hashes: to move to another version, change it there.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import yaml

LIST = pathlib.Path(__file__).parent / "definitions/crates.txt"
PLAIN = {
    "String": {"type": "string"},
    "bool": {"type": "boolean"},
    "i32": {"type": "integer", "format": "int32"},
    "i64": {"type": "integer", "format": "int64"},
    "f64": {"type": "number", "format": "double"},
    "IntOrString": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
    "serde_json::Value": {"x-kubernetes-preserve-unknown-fields": True},
    # A part of a status, which no manifest has.
    "Condition": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


def archive(name, version, digest):
    """The crate's archive, which cargo has fetched and compared with the hash of the registry's index."""
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    found = list(home.glob(f"registry/cache/*/{name}-{version}.crate"))
    if not found and not shutil.which("cargo"):
        raise SystemExit(f"cargo could not fetch {name} {version}: it is not installed")
    if not found:
        # Outside of this workspace, which has settings of its own.
        with tempfile.TemporaryDirectory() as folder:
            command = ["cargo", "info", "--quiet", f"{name}@{version}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        found = list(home.glob(f"registry/cache/*/{name}-{version}.crate"))
    if not found:
        raise SystemExit(f"cargo could not fetch {name} {version}: {done.stderr.strip()}")
    if hashlib.sha256(found[0].read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{found[0]} has another hash than {LIST} says")
    return found[0]


class Source:
    """The types of one resource's file."""

    def __init__(self, text):
        self.types = {name: (kind, body) for kind, name, body in re.findall(r"^pub (struct|enum) (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)}
        self.kube = dict(re.findall(r'(group|version|kind|plural|status) = "([^"]+)"', " ".join(re.findall(r"^#\[kube\((.*)\)\]$", text, re.MULTILINE))))
        self.namespaced = "#[kube(namespaced)]" in text
        # kopium spells HTTPRoute's HttpRouteSpec.
        self.spec = re.search(r"^#\[derive\(CustomResource, .*?^pub struct (\w+) ", text, re.MULTILINE | re.DOTALL)[1]

    def schema(self, name):
        """Of a Rust type."""
        wrapped = re.fullmatch(r"(Option|Vec|BTreeMap)<(.*)>", name)
        if wrapped and wrapped[1] == "Option":
            return self.schema(wrapped[2])
        if wrapped and wrapped[1] == "Vec":
            return {"type": "array", "items": self.schema(wrapped[2])}
        if wrapped:
            key, _, value = wrapped[2].partition(", ")
            assert key == "String", name
            return {"type": "object", "additionalProperties": self.schema(value)}
        if name in PLAIN:
            return PLAIN[name]
        kind, body = self.types[name]
        return self.choices(body) if kind == "enum" else self.fields(body)

    def members(self, body, pattern):
        """Each field or variant, with its attributes."""
        attributes = ""
        for line in body.splitlines():
            line = line.strip()
            found = re.fullmatch(pattern, line)
            if found:
                yield attributes, found
                attributes = ""
            elif line.startswith("#["):
                attributes += line
            elif line and not line.startswith("//"):
                # Otherwise a field of a form that this doesn't know would be missing, and be refused in our manifests.
                raise SystemExit(f"{self.kube.get('kind')}: this line is not understood: {line}")

    def choices(self, body):
        members = self.members(body, r"(?:r#)?(\w+),")
        return {"type": "string", "enum": [renamed(attributes, found[1]) for attributes, found in members]}

    def fields(self, body):
        properties, required = {}, []
        for attributes, found in self.members(body, r"pub (?:r#)?(\w+): (.*),"):
            name = renamed(attributes, found[1])
            properties[name] = self.schema(found[2])
            if not found[2].startswith("Option<") and "default" not in attributes:
                required.append(name)
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}

    def definition(self):
        kube = self.kube
        whole = {
            "type": "object",
            "required": ["spec"],
            "properties": {
                "apiVersion": PLAIN["String"],
                "kind": PLAIN["String"],
                "metadata": {"type": "object"},
                "spec": self.schema(self.spec),
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
        version = {"name": kube["version"], "served": True, "storage": True, "schema": {"openAPIV3Schema": whole}}
        if "status" in kube:
            version["subresources"] = {"status": {}}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kube['plural']}.{kube['group']}"},
            "spec": {
                "group": kube["group"],
                "scope": "Namespaced" if self.namespaced else "Cluster",
                "names": {"kind": kube["kind"], "plural": kube["plural"], "singular": kube["kind"].lower()},
                "versions": [version],
            },
        }


def renamed(attributes, name):
    found = re.search(r'rename = "([^"]+)"', attributes)
    return found[1] if found else name


def main():
    folder, written = pathlib.Path(sys.argv[1]), 0
    folder.mkdir(parents=True, exist_ok=True)
    for line in LIST.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, version, digest, *wanted = line.split()
        with tarfile.open(archive(name, version, digest)) as files:
            for path in wanted:
                source = Source(files.extractfile(f"{name}-{version}/src/{path}.rs").read().decode())
                definition = source.definition()
                (folder / f"{definition['metadata']['name']}.yaml").write_text(yaml.safe_dump(definition, sort_keys=False))
                written += 1
    print(f"well: {written} definitions of operators' resources, from the crates of {LIST.name}")


main()
