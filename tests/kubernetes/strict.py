"""strict.py 'FOLDER…' RENDERED…: each object of an operator against the operator's own definition; see tests/kubernetes/run.

Each FOLDER holds CustomResourceDefinitions, in any number of YAML files: those that crates.py has made, or the manifest of a
release. A later folder's definitions replace those of an earlier one. As the API server does with strict validation, a field
that the definition does not know is an error.
"""

import pathlib
import sys

import jsonschema
import yaml


def closed(schema):
    """The schema, in which an object with listed fields may have no others."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    named = isinstance(made.get("properties"), dict) and made.get("type") == "object"
    if named and "additionalProperties" not in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def definitions(folders):
    found = {}
    for file in [file for folder in folders.split() for file in sorted(pathlib.Path(folder).rglob("*.yaml"))]:
        for one in yaml.safe_load_all(file.read_text()):
            if one and one.get("kind") == "CustomResourceDefinition":
                for version in one["spec"]["versions"]:
                    key = f"{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"]
                    schema = closed(version["schema"]["openAPIV3Schema"])
                    schema.setdefault("properties", {})["metadata"] = {"type": "object"}
                    found[key] = jsonschema.Draft7Validator(schema)
    return found


def of_an_operator(version):
    """Other than Kubernetes' own kinds, which check.py checks. The Gateway API is not part of Kubernetes, whatever its name."""
    group = version.rpartition("/")[0]
    return "." in group and (not group.endswith(".k8s.io") or group.startswith("gateway."))


def main():
    known, counts, problems = definitions(sys.argv[1]), {}, 0
    for path in map(pathlib.Path, sys.argv[2:]):
        for one in yaml.safe_load_all(path.read_text()):
            if not one or not of_an_operator(one["apiVersion"]):
                continue
            validator = known.get((one["apiVersion"], one["kind"]))
            if not validator:
                problems += 1
                print(f"{path.stem}: there is no definition of {one['apiVersion']} {one['kind']}: add it to definitions/crates.txt", file=sys.stderr)
                continue
            counts[one["kind"]] = counts.get(one["kind"], 0) + 1
            for error in validator.iter_errors(one):
                problems += 1
                place = ".".join(map(str, error.path))
                print(f"{path.stem}: {one['kind']} {one['metadata']['name']}: {place}: {error.message[:300]}", file=sys.stderr)
    if problems or not counts:
        raise SystemExit(f"{problems} problems in {sum(counts.values())} objects, against the definitions in {sys.argv[1]}")
    print(f"well: strictly against the definitions in {sys.argv[1]}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
