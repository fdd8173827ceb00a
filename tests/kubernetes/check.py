"""check.py VERSIONS README BINARIES PROMTOOL 'API…' RENDERED…: of the files API only against the API: see tests/kubernetes/run."""

import ipaddress
import pathlib
import re
import subprocess
import sys

import jsonschema
import kubernetes_validate
import yaml

import nats_chart
import practice
import scaling
import strict

# --- resources that are no part of Kubernetes -----
# Their fields are checked by their operators' definitions (strict.py). These rules are for what the definitions leave open.


def text(pattern):
    return {"type": "string", "pattern": pattern}


def fields(required="", **properties):
    """An object that has the required fields and may have others."""
    return {"type": "object", "properties": properties, "required": required.split()}


BARMAN = {"const": "barman-cloud.cloudnative-pg.io"}
CUSTOM = {
    # To KEDA, what a trigger needs is any text.
    ("keda.sh/v1alpha1", "ScaledObject"): fields(
        "minReplicaCount maxReplicaCount fallback",
        triggers={"type": "array", "minItems": 1, "items": fields(
            type={"const": "prometheus"},
            metadata={
                **fields(
                    "serverAddress query threshold ignoreNullValues",
                    serverAddress=text("^https?://[^/]+$"),
                    query=text("."),
                    threshold=text("^[0-9]+$"),
                    ignoreNullValues={"enum": ["true", "false"]},
                ),
                "additionalProperties": False,
            },
        )},
    ),
    ("postgresql.cnpg.io/v1", "Cluster"): fields(
        "imageName bootstrap storage",
        storage=fields("size"),
        plugins={"items": fields("isWALArchiver parameters", name=BARMAN, parameters=fields("barmanObjectName"))},
    ),
    ("postgresql.cnpg.io/v1", "ScheduledBackup"): fields(
        "method pluginConfiguration",
        # Six fields: seconds come first.
        schedule=text(r"^(\S+ ){5}\S+$"),
        method={"const": "plugin"},
        pluginConfiguration=fields(name=BARMAN),
    ),
    ("barmancloud.cnpg.io/v1", "ObjectStore"): fields(
        "retentionPolicy",
        retentionPolicy=text("^[1-9][0-9]*[dwm]$"),
        configuration=fields("s3Credentials", destinationPath=text("^s3://")),
    ),
}

# What the charts and operators label their pods with.
FOREIGN_PODS = [{"app.kubernetes.io/name": "nats"}, {"cnpg.io/cluster": "esim-db"}]


class Rendered:
    def __init__(self, path):
        self.name = pathlib.Path(path).stem
        self.all = [one for one in yaml.safe_load_all(pathlib.Path(path).read_text()) if one]
        self.problems = []

    def of(self, *kinds):
        return [one for one in self.all if one["kind"] in kinds]

    def names(self, kind):
        return {one["metadata"]["name"] for one in self.of(kind)}

    def wrong(self, one, what):
        self.problems.append(f"{self.name}: {one['kind']} {one['metadata']['name']}: {what}")

    # --- against the API ---

    def check_api(self, versions):
        for one in self.all:
            if strict.of_an_operator(one["apiVersion"]):
                rules = CUSTOM.get((one["apiVersion"], one["kind"]), {})
                for error in jsonschema.Draft7Validator(rules).iter_errors(one.get("spec")):
                    self.wrong(one, f"spec.{'.'.join(map(str, error.path))}: {error.message}")
                continue
            for version in versions:
                try:
                    kubernetes_validate.validate(one, version, strict=True)
                except kubernetes_validate.SchemaNotFoundError:
                    self.wrong(one, f"Kubernetes {version} has no {one['apiVersion']} of this kind")
                except kubernetes_validate.ValidationError as error:
                    self.wrong(one, f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")

    # --- that names fit together ---

    def templates(self):
        for one in self.of("Deployment", "Job"):
            yield one, one["spec"]["template"]

    def pods(self):
        return [template["metadata"]["labels"] for _, template in self.templates()]

    @staticmethod
    def selects(selector, labels):
        for key, value in selector.get("matchLabels", {}).items():
            if labels.get(key) != value:
                return False
        for rule in selector.get("matchExpressions", []):
            if rule["operator"] != "In" or labels.get(rule["key"]) not in rule["values"]:
                return False
        return True

    def ports(self, labels):
        for _, template in self.templates():
            if template["metadata"]["labels"] == labels:
                for container in template["spec"]["containers"]:
                    yield from container.get("ports", [])

    def check_names(self, readme):
        for one in self.all:
            if one["kind"] != "Namespace" and one["metadata"].get("namespace") != "esim":
                self.wrong(one, "is not in namespace esim")
        for one in self.of("Service"):
            chosen = [pod for pod in self.pods() if self.selects({"matchLabels": one["spec"]["selector"]}, pod)]
            if len(chosen) != 1:
                self.wrong(one, f"selects {len(chosen)} kinds of pods")
                continue
            there = {port["name"] for port in self.ports(chosen[0])}
            for port in one["spec"]["ports"]:
                if port["targetPort"] not in there:
                    self.wrong(one, f"no port {port['targetPort']} in its pods")
        services = {one["metadata"]["name"]: {p["name"] for p in one["spec"]["ports"]} for one in self.of("Service")}
        for one in self.of("Ingress"):
            for rule in one["spec"]["rules"]:
                for path in rule["http"]["paths"]:
                    to = path["backend"]["service"]
                    if to["port"]["name"] not in services.get(to["name"], ()):
                        self.wrong(one, f"no service {to['name']} with port {to['port']['name']}")
        for one in self.of("PodDisruptionBudget"):
            if not any(self.selects(one["spec"]["selector"], pod) for pod in self.pods()):
                self.wrong(one, "selects nothing")
        for one in self.of("HorizontalPodAutoscaler", "ScaledObject"):
            if one["spec"]["scaleTargetRef"]["name"] not in self.names("Deployment"):
                self.wrong(one, "its target is not there")
        pods = [dict(pod) for pod in self.pods()] + FOREIGN_PODS
        for one in self.of("NetworkPolicy"):
            peers = [peer for way, key in (("ingress", "from"), ("egress", "to"))
                     for rule in one["spec"].get(way, []) for peer in rule.get(key, [])]
            selectors = [peer["podSelector"] for peer in peers if "podSelector" in peer and "namespaceSelector" not in peer]
            for selector in [one["spec"]["podSelector"], *selectors]:
                if not any(self.selects(selector, pod) for pod in pods):
                    self.wrong(one, f"selects nothing: {selector}")
        for stage in ("ingress", "provisioner", "notifier"):
            for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"):
                if stage not in self.names(kind):
                    self.problems.append(f"{self.name}: {stage} has no {kind}")
        self.check_references(readme)
        self.check_providers()

    def check_references(self, readme):
        for one, template in self.templates():
            spec = template["spec"]
            if spec["serviceAccountName"] not in self.names("ServiceAccount"):
                self.wrong(one, f"there is no service account {spec['serviceAccountName']}")
            secrets = {(name, item["key"]) for name, item in self.items(spec)}
            for container in spec["containers"]:
                for source in container.get("envFrom", []):
                    if source["configMapRef"]["name"] not in self.names("ConfigMap"):
                        self.wrong(one, f"there is no config map {source['configMapRef']['name']}")
                for variable in container.get("env", []):
                    if "valueFrom" in variable:
                        key = variable["valueFrom"]["secretKeyRef"]
                        secrets.add((key["name"], key["key"]))
                        if not variable["name"].endswith("_URL"):
                            self.wrong(one, f"{variable['name']} is a variable: mount the secret as a file")
            for name, key in secrets:
                if not any(line.startswith(f"| `{name}` |") and f"`{key}`" in line for line in readme.splitlines()):
                    self.wrong(one, f"README.md does not name the secret {name}, key {key}")
            for volume in spec.get("volumes", []):
                claim = volume.get("persistentVolumeClaim", {}).get("claimName")
                if claim and claim not in self.names("PersistentVolumeClaim"):
                    self.wrong(one, f"there is no claim {claim}")
        if self.of("Secret"):
            self.problems.append(f"{self.name}: a secret is rendered; they are referred to only")

    def check_providers(self):
        if self.settings("ingress")["PROVIDERS"] != self.settings("provisioner")["PROVIDERS"]:
            self.problems.append(f"{self.name}: ingress and provisioner have different PROVIDERS")

    def check_backups(self):
        stores = self.names("ObjectStore")
        archived = {
            one["metadata"]["name"]: plugin["parameters"]["barmanObjectName"]
            for one in self.of("Cluster")
            for plugin in one["spec"].get("plugins", [])
            if plugin["isWALArchiver"]
        }
        for cluster, store in archived.items():
            if store not in stores:
                self.problems.append(f"{self.name}: cluster {cluster} archives to {store}, which is not defined")
        backed_up = {one["spec"]["cluster"]["name"] for one in self.of("ScheduledBackup")}
        if backed_up != set(archived):
            self.problems.append(f"{self.name}: archived are {set(archived)}, base backups are taken of {backed_up}")
        if self.name.endswith("production") and not archived:
            self.problems.append(f"{self.name}: the database has no backup")

    def check_gauges(self, promtool):
        for one in self.of("Cluster"):
            initdb = one["spec"]["bootstrap"]["initdb"]
            if f"GRANT pg_read_all_stats TO {initdb['owner']}" not in initdb.get("postInitApplicationSQL", []):
                self.wrong(one, "the owner of its database lacks pg_read_all_stats: gauges would miss standbys")
        for stage in sorted(set(scaling.STAGES) - self.names("ScaledObject")):
            self.problems.append(f"{self.name}: {stage} has no ScaledObject")
        for one, problem in scaling.check(self, promtool):
            self.wrong(one, problem)

    # --- settings ---

    def settings(self, deployment):
        """What the environment of a deployment's container says; of secrets only that they are there."""
        maps = {one["metadata"]["name"]: one["data"] for one in self.of("ConfigMap")}
        for one, template in self.templates():
            if one["metadata"]["name"] == deployment:
                container, found = template["spec"]["containers"][0], {}
                for source in container.get("envFrom", []):
                    found.update(maps.get(source["configMapRef"]["name"], {}))
                for variable in container.get("env", []):
                    found[variable["name"]] = variable.get("value", "")
                return found
        return {}

    @staticmethod
    def items(spec):
        """What a pod mounts of secrets: the secret's name, and key and path in the pod."""
        mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0].get("volumeMounts", [])}
        for volume in spec.get("volumes", []):
            secrets = [volume["secret"]] if "secret" in volume else [one["secret"] for one in volume.get("projected", {}).get("sources", [])]
            for secret in secrets:
                # Without items all keys are mounted, each as a file.
                for item in secret.get("items", []):
                    path = f"{mounts.get(volume['name'])}/{item['path']}"
                    yield secret.get("secretName") or secret["name"], {"key": item["key"], "path": path}

    def check_networks(self):
        """Clusters with IPv6 only, and with NodeLocal DNSCache."""
        for one in self.of("NetworkPolicy"):
            for rule in one["spec"].get("egress", []):
                blocks = {ipaddress.ip_network(peer["ipBlock"]["cidr"]): peer["ipBlock"] for peer in rule.get("to", []) if "ipBlock" in peer}
                if any(port.get("port") == 53 for port in rule.get("ports", [])):
                    if not {ipaddress.ip_network(one) for one in ("169.254.20.10/32", "fd00::/8")} <= set(blocks):
                        self.wrong(one, "allows no DNS on the node (NodeLocal DNSCache)")
                everywhere, nat64 = blocks.get(ipaddress.ip_network("0.0.0.0/0")), blocks.get(ipaddress.ip_network("64:ff9b::/96"))
                if not everywhere:
                    continue
                if not nat64 or ipaddress.ip_network("2000::/3") not in blocks:
                    self.wrong(one, "allows the internet by IPv4 only")
                    continue
                base = int(ipaddress.ip_address("64:ff9b::"))
                embedded = {
                    ipaddress.ip_network((base + int(range.network_address), 96 + range.prefixlen))
                    for range in map(ipaddress.ip_network, everywhere["except"])
                }
                if embedded != set(map(ipaddress.ip_network, nat64["except"])):
                    self.wrong(one, "leaves out other ranges behind NAT64 than of IPv4")

    def check_files(self):
        """Each file that a setting names is mounted."""
        for one, template in self.templates():
            mounts = {mount["mountPath"] for mount in template["spec"]["containers"][0].get("volumeMounts", [])}
            files = mounts | {item["path"] for _, item in self.items(template["spec"])}
            for name, value in self.settings(one["metadata"]["name"]).items():
                if value.startswith("/run/secrets/") and value not in files:
                    self.wrong(one, f"{name} names {value}, which is not mounted")
            # fsGroup opens the mounted files to the pod's group, so the programs refuse this one.
            if "PGPASSFILE" in self.settings(one["metadata"]["name"]):
                self.wrong(one, "PGPASSFILE is refused with a mounted secret's mode: set DATABASE_URL_FILE")
            # On a cluster with IPv6 only, a socket of 0.0.0.0 is out of reach.
            for name in ("LISTEN", "ADMIN_LISTEN"):
                listen = self.settings(one["metadata"]["name"]).get(name)
                if one["kind"] == "Deployment" and listen and not listen.startswith("[::]:"):
                    self.wrong(one, f"{name}={listen} does not listen on IPv6")
            if one["metadata"]["name"] != "sandbox" and self.settings(one["metadata"]["name"]).get("PGSSLMODE") != "verify-full":
                self.wrong(one, "does not check PostgreSQL's certificate")
        if self.settings("ingress").get("QR_KEYS_FILE") != self.settings("notifier").get("QR_KEYS_FILE"):
            self.problems.append(f"{self.name}: ingress and notifier have different QR_KEYS_FILE")

    def check_settings(self, binaries):
        for one, template in self.templates():
            program = template["spec"]["containers"][0]["image"].split(":")[0].rsplit("/", 1)[1]
            binary = binaries / program
            if not binary.exists():
                continue
            known = set()
            # Also the help of the command that the pod runs, if it names one.
            for command in ([], template["spec"]["containers"][0].get("args", [])):
                done = subprocess.run([binary, *command, "--help"], capture_output=True, text=True, check=True, timeout=30)
                known |= set(re.findall(r"\[env: ([A-Z_]+)", done.stdout))
            settings = self.settings(one["metadata"]["name"])
            known |= {f"{name}_FILE" for name in known} | {"SETTINGS_DIR"}
            for name in settings:
                if name not in known and not name.startswith(("OTEL_", "PG")):
                    self.wrong(one, f"{program} has no setting {name}")

    # --- pods ---

    def check_pods(self):
        for one, template in self.templates():
            spec = template["spec"]
            pod = spec.get("securityContext", {})
            if not (pod.get("runAsNonRoot") and pod.get("seccompProfile", {}).get("type") == "RuntimeDefault"):
                self.wrong(one, "its pods are not restricted (runAsNonRoot, seccomp)")
            if spec.get("automountServiceAccountToken") is not False:
                self.wrong(one, "its pods get a service account's token")
            for container in spec["containers"]:
                security = container.get("securityContext", {})
                restricted = (
                    security.get("allowPrivilegeEscalation") is False
                    and security.get("readOnlyRootFilesystem") is True
                    and security.get("capabilities", {}).get("drop") == ["ALL"]
                )
                if not restricted:
                    self.wrong(one, "its container is not restricted")
                resources = container.get("resources", {})
                if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get("limits", {}):
                    self.wrong(one, "requests of cpu and memory and a limit of memory are needed")
                if one["kind"] != "Deployment":
                    continue
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    port = container.get(probe, {}).get("httpGet", {}).get("port")
                    if port not in {port["name"] for port in container["ports"]}:
                        self.wrong(one, f"no {probe} on one of its ports")
                before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
                stop = self.settings(one["metadata"]["name"]).get("SHUTDOWN_TIMEOUT", "25s")
                if spec["terminationGracePeriodSeconds"] < before + int(stop.removesuffix("s")) + 5:
                    self.wrong(one, "terminationGracePeriodSeconds is shorter than preStop, SHUTDOWN_TIMEOUT and 5 s")
                if one["metadata"]["name"] != "sandbox" and not spec.get("topologySpreadConstraints"):
                    self.wrong(one, "its pods are not spread")


def nats_users(conf):
    """Of deploy/nats/nats.conf: user, and what it may publish and subscribe."""
    for block in re.split(r"\buser: ", conf)[1:]:
        lists = {key: re.findall('"([^"]+)"', text) for key, text in re.findall(r"(publish|subscribe): \[(.*?)\]", block, re.DOTALL)}
        yield re.match(r"\w+", block)[0], lists


def check_nats(conf, values):
    """The chart's users have the permissions and limits of deploy/nats/nats.conf."""
    merge = yaml.safe_load(values)["config"]["merge"]
    in_chart = {one["user"]: one.get("permissions", {}) for one in merge["authorization"]["users"]}
    if in_chart != dict(nats_users(conf)):
        yield "nats-production.yaml: users or permissions differ from deploy/nats/nats.conf"
    if str(merge.get("max_payload")) != re.search(r"^max_payload: (\S+)$", conf, re.MULTILINE)[1]:
        yield "nats-production.yaml: max_payload differs from deploy/nats/nats.conf"


def main():
    versions, readme, binaries = sys.argv[1].split(), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    promtool, problems, count = sys.argv[4], [], 0
    for path in sys.argv[5].split():
        rendered = Rendered(path)
        rendered.check_api(versions)
        problems += rendered.problems
    for path in sys.argv[6:]:
        rendered = Rendered(path)
        rendered.check_api(versions)
        rendered.check_names(readme.read_text() if readme.exists() else "")
        rendered.check_settings(binaries)
        rendered.check_files()
        rendered.check_networks()
        rendered.check_pods()
        rendered.check_gauges(promtool)
        rendered.check_backups()
        for one, problem in practice.check(rendered):
            rendered.wrong(one, problem)
        problems += rendered.problems
        count += len(rendered.all)
    deploy = readme.parent.parent
    values = {name: (readme.parent / f"values/nats-{name}.yaml").read_text() for name in ("production", "local")}
    problems += check_nats((deploy / "nats/nats.conf").read_text(), values["production"])
    problems += nats_chart.check_values(jsonschema.Draft7Validator, *map(yaml.safe_load, values.values()))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise SystemExit(f"{len(problems)} problems")
    print(f"well: {count} resources, against Kubernetes {' and '.join(versions)}; those of operators follow")


main()
