"""config.py < `docker compose --profile '*' config --format json`: who reaches whom, and who holds which secrets."""

import json
import re
import sys

# The networks of each service. Nothing else connects two services.
NETWORKS = {
    "postgres": {"data"},
    "nats": {"data"},
    "migrate": {"data"},
    "esimctl": {"data"},
    "maintenance": {"data"},
    "ingress": {"edge", "data", "observability"},
    "provisioner": {"edge", "data", "provider", "observability"},
    "notifier": {"outbound", "data", "observability"},
    "sandbox": {"provider", "observability"},
    "console": {"console", "data", "observability"},
    "proxy": {"edge"},
    "esim-partner": {"edge"},
    "otel-collector": {"observability"},
    "jaeger": {"observability"},
    "prometheus": {"observability"},
    "grafana": {"observability"},
    "secrets": set(),
}
# The share of secrets that a service mounts; the one-shot `secrets` mounts all.
SHARES = {name: name for name in ("postgres", "nats", "ingress", "provisioner", "notifier", "sandbox", "console", "grafana")}
SHARES |= {"migrate": "owner", "maintenance": "owner", "esimctl": "operator"}
# Only this machine reaches them, unless the operator says otherwise.
PUBLISHED = {"proxy", "console", "jaeger", "prometheus", "grafana"}
SECRET = re.compile(r"PASSWORD|SECRET_KEY|ACCESS_KEY|TOKEN|MASTER_KEY|QR_KEYS")

config = json.load(sys.stdin)
problems = []


def wrong(service, what):
    problems.append(f"{service}: {what}")


# nats-1 and nats-2 of the cluster are as nats.
services = {re.sub(r"-\d+$", "", name) for name in config["services"]}
if services != set(NETWORKS):
    problems.append(f"the services are {sorted(services)}: name their networks in tests/compose/config.py")
for replica, service in config["services"].items():
    name = re.sub(r"-\d+$", "", replica)
    networks = set(service.get("networks") or {}) if service.get("network_mode") != "none" else set()
    if networks != NETWORKS.get(name, networks):
        wrong(name, f"is in the networks {sorted(networks)}")
    mounted = {one.get("source", "") for one in service.get("volumes", [])}
    shares = {one.removeprefix("secrets-") for one in mounted if one.startswith("secrets-")}
    if name != "secrets" and shares != ({SHARES[name]} if name in SHARES else set()):
        wrong(name, f"mounts the secrets of {sorted(shares)}")
    if name != "secrets" and "secrets" in mounted:
        wrong(name, "mounts all secrets")
    for port in service.get("ports", []):
        if name not in PUBLISHED or port.get("host_ip") != "127.0.0.1":
            wrong(name, f"publishes {port}")
    for variable, value in (service.get("environment") or {}).items():
        if value and SECRET.search(variable) and not variable.endswith(("_FILE", "__FILE")):
            wrong(name, f"{variable} has a value that everybody knows")
    if service.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in service.get("security_opt", []):
        wrong(name, "keeps privileges")
for problem in problems:
    print(problem, file=sys.stderr)
sys.exit(1 if problems else 0)
