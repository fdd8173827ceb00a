"""The chart deploy/helm: it makes the same objects as the Kustomize overlays; see tests/kubernetes/run.

chart.py OUTPUT LOCAL PRODUCTION OPTIONS KUSTOMIZE…    OUTPUT: a folder for what the chart renders, which check.py then checks
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import helm_python
import mistakes
import yaml

CHART = pathlib.Path("deploy/helm")
PROBLEMS = []


def wrong(what):
    PROBLEMS.append(what)


def rendered(chart, values, **options):
    """The objects that the chart makes, without tests and notes."""
    files = chart.render(values, name="esim", namespace="esim", **options)
    texts = [text for path, text in files.items() if path.endswith((".yaml", ".yml")) and not path.endswith("/test.yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def save(folder, name, objects):
    (folder / f"chart-{name}.yaml").write_text(yaml.safe_dump_all(objects, sort_keys=False))


# --- the same objects -----


def plain(objects):
    """By kind and name, without what must differ: the hash in names of config maps, and helm's own marks."""
    text = json.dumps(objects)
    for one in objects:
        if one["kind"] == "ConfigMap":
            name = one["metadata"]["name"]
            short = re.sub("-[a-z0-9]{10}$", "", name)
            text = text.replace(f'"name": "{name}"', f'"name": "{short}"')
    return {(one["kind"], one["metadata"]["name"]): normal(one) for one in json.loads(text)}


def normal(one):
    labels = one["metadata"].get("labels", {})
    for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
        labels.pop(label, None)
    one["metadata"].get("annotations", {}).pop("helm.sh/resource-policy", None)
    if one["metadata"].get("annotations") == {}:
        del one["metadata"]["annotations"]
    template = one.get("spec", {}).get("template", {}) if one["kind"] in ("Deployment", "Job") else None
    if template:
        if template["metadata"].pop("annotations", None) and one["kind"] != "Deployment":
            wrong(f"{one['kind']} {one['metadata']['name']}: its pods have annotations")
        spec = template["spec"]
        # The two tools append in different sequences, which means nothing here.
        spec.get("volumes", []).sort(key=lambda volume: volume["name"])
        for container in spec["containers"]:
            for part in ("env", "volumeMounts"):
                container.get(part, []).sort(key=lambda entry: entry["name"])
    return one


def differences(path, first, second):
    if type(first) is not type(second) and not (isinstance(first, (int, float)) and isinstance(second, (int, float))):
        yield f"{path}: {first!r} and {second!r}"
    elif isinstance(first, dict):
        for key in sorted(set(first) | set(second)):
            if key not in first or key not in second:
                yield f"{path}.{key} is only in {'the chart' if key in first else 'the overlay'}"
            else:
                yield from differences(f"{path}.{key}", first[key], second[key])
    elif isinstance(first, list) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second)):
            yield from differences(f"{path}[{number}]", one, other)
    elif first != second:
        yield f"{path}: {first!r} and {second!r}"


def same(name, chart, overlay):
    first, second = plain(chart), plain(overlay)
    if len(first) != len(chart):
        wrong(f"{name}: the chart makes two objects of one name")
    for key in sorted(set(first) ^ set(second)):
        wrong(f"{name}: {key} is only in {'the chart' if key in first else 'the overlay'}")
    for key in sorted(set(first) & set(second)):
        for one in differences(" ".join(key), first[key], second[key]):
            wrong(f"{name}: {one}")


# --- values -----


def check_values(chart):
    """The schema's defaults are those of values.yaml."""
    values, schema = yaml.safe_load((CHART / "values.yaml").read_text()), chart.schema

    def walk(path, one, there):
        # A release that is pushed writes its images into values.yaml.
        if path in (".images.registry", ".images.digests"):
            return
        if "default" in one:
            if one["default"] != there:
                wrong(f"values: {path} is {there!r} in values.yaml and {one['default']!r} in the schema")
            return
        if "description" in one:
            return
        if "properties" not in one:
            wrong(f"values: {path} has no description")
        for name, inner in one.get("properties", {}).items():
            if name not in there and name != "global":
                wrong(f"values: values.yaml lacks {path}.{name}")
            elif name != "global":
                walk(f"{path}.{name}", inner, there[name])

    walk("", schema, values)


# --- variants -----

OPTIONS = {
    "images": {"registry": "registry.example.com/esim", "pullSecrets": ["esim-registry"], "digests": {"ingress": "sha256:" + "0" * 64}},
    "host": "orders.test",
    "http": {"kind": "Gateway", "parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "own", "namespace": "gw"}]},
    "namespaces": {"http": "gw", "observability": "monitoring"},
    "settings": {
        "ingress": {"QR_KEYS_FILE": "/run/secrets/esim/qr.key"},
        "notifier": {"QR_KEYS_FILE": "/run/secrets/esim/qr.key"},
        "console": {"OIDC_ISSUER": "https://id.example.com/realms/staff"},
    },
    "console": {"activationCodes": True, "partnerKeys": True, "openid": True},
    "priorityClassName": "orders",
    "resources": {"ingress": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}},
    "monitoring": {"enabled": True, "labels": {"release": "own"}},
    "externalSecrets": {"enabled": True, "store": {"name": "own", "kind": "SecretStore"}},
}


def check_options(objects):
    by = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    text = json.dumps(objects)
    ingress = by["Deployment", "ingress"]["spec"]["template"]["spec"]
    for what, holds in {
        "the digest": ingress["containers"][0]["image"] == "registry.example.com/esim/ingress@sha256:" + "0" * 64,
        "resources": ingress["containers"][0]["resources"] == OPTIONS["resources"]["ingress"],
        "pull secrets": ingress["imagePullSecrets"] == [{"name": "esim-registry"}],
        "the console's keys": {"profiles", "partners", "webhooks"}
        <= {volume["name"] for volume in by["Deployment", "console"]["spec"]["template"]["spec"]["volumes"]},
        "the priority class": ingress["priorityClassName"] == "orders",
        "host names": "esim.example.com" not in text and "orders.test" in text,
        "namespaces": '"traefik"' not in text and '"monitoring"' in text,
        "Gateway": by["HTTPRoute", "orders"]["spec"]["parentRefs"][0]["name"] == "own" and not any(kind == "Ingress" for kind, _ in by),
        "the label of monitors": by["PodMonitor", "esim"]["metadata"]["labels"]["release"] == "own",
        "the way to an OpenID provider": ("NetworkPolicy", "console-openid") in by and ("ExternalSecret", "esim-openid") in by,
        "the store": by["ExternalSecret", "esim-qr"]["spec"]["secretStoreRef"] == {"name": "own", "kind": "SecretStore"},
    }.items():
        if not holds:
            wrong(f"options: {what} does not reach the objects")


def check_monitoring(chart, overlay):
    """The resources of the Prometheus operator are those of the component."""
    def of(objects):
        return [one for one in objects if one["kind"] in ("PodMonitor", "PrometheusRule") or one["metadata"]["name"].startswith("dashboard-")]

    objects = of(rendered(chart, {"monitoring": {"enabled": True}}))
    if len(objects) != 5:
        wrong(f"monitoring: {len(objects)} objects, not 5")
    same("monitoring", objects, of(overlay))


def check_upgrade(chart):
    """A second version migrates before it replaces anything, by a Job of its own; the first is a part of the release."""
    install = [one for one in rendered(chart, {}, is_install=True) if one["kind"] == "Job"][0]
    upgrade = [one for one in rendered(chart, {"images": {"tag": "0.2.0"}}, is_upgrade=True) if one["kind"] == "Job"][0]
    if "helm.sh/hook" in install["metadata"]["annotations"]:
        wrong("an installation migrates by a hook, which would wait for a database that comes after it")
    annotations = upgrade["metadata"]["annotations"]
    if annotations.get("helm.sh/hook") != "pre-upgrade" or annotations.get("helm.sh/hook-delete-policy") != "before-hook-creation,hook-succeeded":
        wrong(f"an upgrade does not migrate first: {annotations}")
    if upgrade["metadata"]["name"] != "migrate-0-2-0":
        wrong(f"the Job of 0.2.0 is named {upgrade['metadata']['name']}")

    # All stages roll at once: no replica ends before its successor is ready, and a Deployment that was paused to keep the
    # sequence stays so (README.md).
    for one in rendered(chart, {}, is_upgrade=True):
        if one["kind"] == "Deployment" and one["metadata"]["name"] in ("ingress", "provisioner", "notifier"):
            if one["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] != 0 or "paused" in one["spec"]:
                wrong(f"an upgrade interrupts {one['metadata']['name']}, or sets `paused`: {one['spec']['strategy']}")

    def checksums(values):
        deployments = [one for one in rendered(chart, values) if one["kind"] == "Deployment"]
        return {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for one in deployments}

    before, stages = checksums({}), {"ingress", "provisioner", "notifier"}
    for values, expected in (
        ({"settings": {"ingress": {"LOG": "debug"}}}, {"ingress"}),
        ({"settings": {"console": {"LOG": "debug"}}}, {"console"}),
        ({"settings": {"stages": {"LOG": "debug"}}}, stages),
        ({"settings": {"common": {"LOG": "debug"}}}, {*stages, "console", "sandbox"}),
        ({"providers": ["sandbox"]}, {"ingress", "provisioner"}),
        ({"nats": {"url": "tls://other:4222"}}, stages),
        ({"publicUrl": "https://other.example.com"}, {"ingress", "notifier"}),
    ):
        after = checksums(values)
        replaced = {name for name, one in after.items() if one != before[name]}
        if replaced != expected:
            wrong(f"{values} replaces the pods of {sorted(replaced)}, not of {sorted(expected)}")


def check_combinations(chart):
    """Values that belong together."""
    for backup, archived in ((True, ["esim-db"]), (False, [])):
        objects = rendered(chart, {"postgres": {"backup": {"enabled": backup}}})
        cluster = [one for one in objects if one["kind"] == "Cluster"][0]
        stores = [plugin["parameters"]["barmanObjectName"] for plugin in cluster["spec"].get("plugins", [])]
        if stores != archived or [one["metadata"]["name"] for one in objects if one["kind"] == "ObjectStore"] != archived:
            wrong(f"with postgres.backup.enabled {backup} the database archives to {stores}")


def check_kept(objects):
    """`helm uninstall` leaves what holds data."""
    for one in objects:
        kept = one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
        if kept != (one["kind"] in ("Cluster", "ObjectStore", "PersistentVolumeClaim")):
            wrong(f"helm uninstall {'leaves' if kept else 'deletes'} {one['kind']} {one['metadata']['name']}")


def check_table(kustomize):
    """`update` writes the table of README.md as it is committed."""
    with tempfile.TemporaryDirectory() as folder:
        deploy = pathlib.Path(folder) / "deploy"
        for part in ("kubernetes", "observability", "helm"):
            shutil.copytree(f"deploy/{part}", deploy / part)
        shutil.copytree("docs", pathlib.Path(folder) / "docs")
        subprocess.run(["git", "show", "HEAD:deploy/helm/README.md"], stdout=(deploy / "helm/README.md").open("w"), check=True)
        before = (deploy / "helm/README.md").read_bytes()
        subprocess.run([sys.executable, "-B", deploy / "helm/update", *kustomize], check=True, timeout=60)
        if (deploy / "helm/README.md").read_bytes() != before:
            wrong("deploy/helm/README.md lacks values of values.schema.json: commit what deploy/helm/update has written")


def check_package(chart):
    """It can be packed, and the archive makes the same."""
    with tempfile.TemporaryDirectory() as folder:
        archive = helm_python.package(CHART, destination=folder)
        with helm_python.Chart.load(archive) as packed:
            if rendered(packed, {}) != rendered(chart, {}):
                wrong("the packed chart makes other objects")


def main():
    folder, overlays = pathlib.Path(sys.argv[1]), {"local": sys.argv[2], "production": sys.argv[3]}
    folder.mkdir(exist_ok=True)
    local = yaml.safe_load((CHART / "values-local.yaml").read_text())
    for values in ({}, local, OPTIONS):
        for message in helm_python.lint(CHART, values, strict=True)["messages"]:
            # 1 is a recommendation: an icon.
            if message["severity"] > 1:
                wrong(f"helm lint: {message['path']}: {message['error']}")
    with helm_python.Chart.load(CHART) as chart:
        check_values(chart)
        mistakes.check(chart, wrong)
        for name, values in (("local", local), ("production", {})):
            objects = rendered(chart, values)
            save(folder, name, objects)
            check_kept(objects)
            overlay = [one for one in yaml.safe_load_all(pathlib.Path(overlays[name]).read_text()) if one]
            same(name, objects, overlay)
        objects = rendered(chart, OPTIONS)
        save(folder, "options", objects)
        check_options(objects)
        check_monitoring(chart, [one for one in yaml.safe_load_all(pathlib.Path(sys.argv[4]).read_text()) if one])
        check_upgrade(chart)
        check_combinations(chart)
        check_package(chart)
        test = chart.render({}, name="esim", namespace="esim")["esim/templates/test.yaml"]
        save(folder, "test", [one for one in yaml.safe_load_all(test) if one])
    check_table(sys.argv[5:])
    for problem in PROBLEMS:
        print(problem, file=sys.stderr)
    if PROBLEMS:
        raise SystemExit(f"{len(PROBLEMS)} problems")
    print("well: the chart passes helm lint, and makes the objects of both overlays")


main()
