"""What a valid manifest may still lack: what was found on a real control plane, and stays mended.

check.py calls `check` for each rendered overlay. The functions yield (resource, text).
"""

import pathlib
import re

import yaml

FOLDER = pathlib.Path("deploy/kubernetes")
STAGES = ("ingress", "provisioner", "notifier")
# Secrets that CloudNativePG makes.
BY_OPERATOR = {"esim-db-app", "esim-db-ca"}
# The fields of a managed role that have defaults. If one is not written, CloudNativePG writes it, and the next apply of
# the list conflicts.
ROLE_FIELDS = {"name", "ensure", "login", "inherit", "connectionLimit", "inRoles", "passwordSecret"}


def read(path):
    return [one for one in yaml.safe_load_all((FOLDER / path).read_text()) if one]


def check(rendered):
    for part in (versions, rollouts, labels, defaults, egress, routes, rights, samples, monitors, postgres):
        yield from part(rendered)


def versions(rendered):
    """A Job can't be changed, so each version has its own, and each object says which version it is of."""
    for one in rendered.of("Job"):
        version = one["metadata"].get("labels", {}).get("app.kubernetes.io/version")
        if not version or one["metadata"]["name"] != f"migrate-{version.replace('.', '-')}":
            yield one, f"is not named by the version {version}, so a second version could not be applied"
        if "--await-roles" not in one["spec"]["template"]["spec"]["containers"][0]["args"]:
            yield one, "does not wait for the roles that the operator creates (--await-roles)"
    for one, template in rendered.templates():
        if template["metadata"]["labels"].get("app.kubernetes.io/version") is None:
            yield one, "its pods have no app.kubernetes.io/version"


def rollouts(rendered):
    waves = {}
    for one in rendered.of("Deployment"):
        name, spec = one["metadata"]["name"], one["spec"]
        if spec.get("revisionHistoryLimit", 10) > 5:
            yield one, "keeps ten old ReplicaSets: set revisionHistoryLimit"
        if name not in STAGES:
            continue
        waves[name] = int(one["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave", 0))
        if spec.get("minReadySeconds", 0) < 10:
            yield one, "an image that is ready and then dies would replace all replicas: minReadySeconds is below 10"
        pod = spec["template"]["spec"]
        soon = {rule["key"] for rule in pod.get("tolerations", []) if rule.get("effect") == "NoExecute" and rule.get("tolerationSeconds", 300) <= 60}
        if soon != {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}:
            yield one, "a dead node's pods are replaced after five minutes only: tolerationSeconds"
        nodes = [rule for rule in pod["topologySpreadConstraints"] if rule["topologyKey"] == "kubernetes.io/hostname"]
        if not nodes or nodes[0]["whenUnsatisfiable"] != "DoNotSchedule" or nodes[0].get("nodeTaintsPolicy") != "Honor":
            yield one, "both replicas may end on one node"
    for one in rendered.of("Job"):
        waves["migrate"] = int(one["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"])
    order = ["migrate", "notifier", "provisioner", "ingress"]
    if sorted(waves, key=waves.get) != order or len(set(waves.values())) != 4:
        yield rendered.of("Job")[0], f"the order of the sync waves is {waves}, not {order}"


def labels(rendered):
    """Scrapes and the policy `deny` select by this label."""
    for one, template in rendered.templates():
        if template["metadata"]["labels"].get("app.kubernetes.io/part-of") != "esim":
            yield one, "its pods lack app.kubernetes.io/part-of: they are neither scraped nor under the policy deny"


def defaults(rendered):
    """Fields that Kubernetes would add, and that a later apply on the server's side would fight over."""
    for one in rendered.of("Deployment"):
        if "type" not in one["spec"].get("strategy", {}):
            yield one, "does not write the type of its strategy"
    for one, ports in all_ports(rendered):
        for port in ports:
            if "protocol" not in port:
                yield one, f"does not write the protocol of the port {port}"
    for one in rendered.of("Cluster"):
        for role in one["spec"]["managed"]["roles"]:
            if set(role) != ROLE_FIELDS:
                yield one, f"managed role {role['name']} lacks {sorted(ROLE_FIELDS - set(role))}"


def all_ports(rendered):
    for one in rendered.of("Service"):
        yield one, one["spec"]["ports"]
    for one, template in rendered.templates():
        for container in template["spec"]["containers"]:
            yield one, container.get("ports", [])
    for one in rendered.of("NetworkPolicy"):
        for way in ("ingress", "egress"):
            for rule in one["spec"].get(way, []):
                yield one, rule.get("ports", [])


def egress(rendered):
    policies = {one["metadata"]["name"]: one for one in rendered.of("NetworkPolicy")}
    for name in ("nats", "postgres"):
        if "Egress" not in policies[name]["spec"]["policyTypes"]:
            yield policies[name], "whoever gets in may connect to anything: there is no egress policy"
    for name in ("dns", "nats", "postgres"):
        ports = {port["port"] for rule in policies[name]["spec"]["egress"] for port in rule.get("ports", [])}
        if not {53, 5353} <= ports:
            yield policies[name], "can't look names up, on OpenShift at least"


def routes(rendered):
    """The paths of the Ingress objects and of the HTTPRoutes are the same, and nothing retries."""
    gateway = {one["metadata"]["name"]: http_paths(one) for one in read("components/gateway/routes.yaml")}
    ingress = {one["metadata"]["name"]: ingress_paths(one) for one in read("base/http.yaml")}
    for one in rendered.of("Ingress", "HTTPRoute"):
        if gateway != ingress:
            yield one, f"its paths differ from the other kind's: {gateway} and {ingress}"
        if "retry" in str(one["spec"]) or any("nginx" in key for key in one["metadata"].get("annotations", {})):
            yield one, "retries, or is for ingress-nginx, which is retired"
    if rendered.of("Ingress") and rendered.of("HTTPRoute"):
        yield rendered.of("Ingress")[0], "stands beside HTTPRoutes"


def http_paths(one):
    paths = set()
    for rule in one["spec"]["rules"]:
        for match in rule["matches"]:
            for backend in rule["backendRefs"]:
                paths.add((match["path"]["type"], match["path"]["value"], backend["name"], backend["port"]))
    return paths


def ingress_paths(one):
    numbers = {}
    for stage in STAGES:
        for service in read(f"base/{stage}.yaml"):
            if service["kind"] == "Service":
                for port in service["spec"]["ports"]:
                    numbers[stage, port["name"]] = port["port"]
    paths = set()
    for path in one["spec"]["rules"][0]["http"]["paths"]:
        to = path["backend"]["service"]
        kind = {"Prefix": "PathPrefix", "Exact": "Exact"}[path["pathType"]]
        paths.add((kind, path["path"], to["name"], numbers[to["name"], to["port"]["name"]]))
    return paths


def rights(rendered):
    """The role of those who deploy covers each resource, and no secret."""
    role = next(one for one in read("namespace/deployer.yaml") if one["kind"] == "Role")
    allowed = {
        (group, resource)
        for rule in role["rules"]
        if {"get", "create", "patch", "delete"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    for one in rendered.all:
        group = one["apiVersion"].rpartition("/")[0]
        kind = one["kind"].lower()
        plural = kind + "es" if kind.endswith("s") else kind[:-1] + "ies" if kind.endswith("y") else kind + "s"
        if (group, plural) not in allowed:
            yield one, f"the role deployer may not apply it ({group or 'core'}, {plural})"
    if any("secrets" in rule["resources"] or "*" in rule["resources"] for rule in role["rules"]):
        yield role, "can read secrets"


def samples(rendered):
    """Each key of a secret that is used comes from a sample."""
    there = set()
    for one in read("samples/external-secrets.yaml"):
        if one["spec"].get("target", {}).get("name", one["metadata"]["name"]) == one["metadata"]["name"]:
            there |= {(one["metadata"]["name"], entry["secretKey"]) for entry in one["spec"]["data"]}
    for one in read("samples/cert-manager.yaml"):
        if one["kind"] == "Certificate":
            there |= {(one["spec"]["secretName"], key) for key in ("tls.crt", "tls.key", "ca.crt")}
    for one, used in used_keys(rendered):
        for name, key in sorted(used - there):
            if name not in BY_OPERATOR:
                yield one, f"no sample makes the key {key} of the secret {name}"


def used_keys(rendered):
    for one, template in rendered.templates():
        yield one, {(name, item["key"]) for name, item in rendered.items(template["spec"])}
    for one in rendered.of("Cluster"):
        yield one, {(role["passwordSecret"]["name"], key) for role in one["spec"]["managed"]["roles"] for key in ("username", "password")}
    for one in rendered.of("ObjectStore"):
        yield one, {(key["name"], key["key"]) for key in one["spec"]["configuration"]["s3Credentials"].values()}
    for one in rendered.of("Ingress"):
        yield one, {(tls["secretName"], "tls.crt") for tls in one["spec"].get("tls", [])}


def monitors(rendered):
    """The operator's rules are those that promtool has tested, and each monitor finds pods with its port."""
    alerts = yaml.safe_load(pathlib.Path("deploy/observability/prometheus/alerts.yml").read_text())
    for one in rendered.of("PrometheusRule"):
        if one["spec"] != alerts:
            yield one, "differs from deploy/observability/prometheus/alerts.yml: run deploy/helm/update"
    for one in rendered.of("PodMonitor"):
        selector = one["spec"]["selector"]
        for endpoint in one["spec"]["podMetricsEndpoints"]:
            pods = [
                template
                for _, template in rendered.templates()
                if rendered.selects(selector, template["metadata"]["labels"])
                and endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0].get("ports", [])}
            ]
            # CloudNativePG makes the database's pods, and names this port.
            if not pods and (selector["matchLabels"], endpoint["port"]) != ({"cnpg.io/cluster": "esim-db"}, "metrics"):
                yield one, f"finds no pod with a port {endpoint['port']}"
    for one in rendered.of("ConfigMap"):
        if one["metadata"]["name"].startswith("dashboard-"):
            name = one["metadata"]["name"].removeprefix("dashboard-") + ".json"
            source = pathlib.Path("deploy/observability/grafana/dashboards", name).read_text()
            if one["data"].get(name) != source or one["metadata"]["labels"].get("grafana_dashboard") != "1":
                yield one, "is not the dashboard, or lacks the label of Grafana's sidecar"


def postgres(rendered):
    """All that names a version of PostgreSQL names the same: Compose, its stand-in, CloudNativePG and the docs."""
    named = {
        "docker-compose.yml": "image: \\${POSTGRES_IMAGE:-postgres:([0-9]+)-",
        "deploy/compose.backup.yml": "image: \\${POSTGRES_IMAGE:-postgres:([0-9]+)-",
        "tests/compose/images.sh": "postgresql-([0-9]+)",
        "README.md": "[Ww]e deploy PostgreSQL ([0-9]+)",
        "deploy/kubernetes/README.md": "PostgreSQL ([0-9]+) is the version",
    }
    versions = {path: set(re.findall(pattern, pathlib.Path(path).read_text())) for path, pattern in named.items()}
    for one in rendered.of("Cluster"):
        versions["CloudNativePG"] = set(re.findall(":([0-9]+)[.-]", one["spec"].get("imageName", "")))
        if len(set.union(*versions.values())) != 1 or not all(versions.values()):
            yield one, f"these name different versions of PostgreSQL: {versions}"
