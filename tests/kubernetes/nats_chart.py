"""The values of NATS' chart, and what the chart makes of them.

A chart ignores a value that it does not know, without a word. So check.py compares ours with the
fields that we use, and this program renders the pinned chart and looks at nats.conf:

nats_chart.py VERSION PRODUCTION LOCAL CHART        CHART: a folder or an archive
nats_chart.py VERSION --fetch REPOSITORY FOLDER     fetches the archive into the folder
"""

import copy
import json
import pathlib
import re
import sys

import yaml

# --- the fields that we use, from the documentation of chart 2.14.2 -----

FLAG, TEXT, COUNT, ANY = (
    {"type": "boolean"},
    {"type": "string"},
    {"type": "integer", "minimum": 1},
    {"type": "object"},
)


def fields(**properties):
    """An object with any of these fields and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


RESTRICTED = fields(securityContext=ANY)
VALUES = fields(
    tlsCA=fields(enabled=FLAG, secretName=TEXT, key=TEXT),
    config=fields(
        nats=fields(tls=fields(enabled=FLAG, secretName=TEXT)),
        cluster=fields(
            enabled=FLAG,
            replicas=COUNT,
            tls=fields(enabled=FLAG, secretName=TEXT, merge=fields(verify=FLAG)),
        ),
        jetstream=fields(
            enabled=FLAG,
            memoryStore=fields(enabled=FLAG, maxSize=TEXT),
            fileStore=fields(pvc=fields(size=TEXT, storageClassName=TEXT)),
        ),
        # Goes into nats.conf as it is.
        merge=fields(max_payload=COUNT, authorization=fields(users={"type": "array"})),
    ),
    container=fields(env=ANY, resources=ANY, merge=RESTRICTED),
    reloader=fields(merge=RESTRICTED),
    podTemplate=fields(topologySpreadConstraints=ANY, merge=fields(spec=RESTRICTED)),
    natsBox=fields(enabled=FLAG),
)


def merged(first, second):
    """What helm makes of two files of values."""
    both = copy.deepcopy(first)
    for key, value in second.items():
        both[key] = (
            merged(both[key], value)
            if isinstance(value, dict) and isinstance(both.get(key), dict)
            else value
        )
    return both


def at(values, path):
    for key in path.split("."):
        values = values.get(key, {}) if isinstance(values, dict) else {}
    return values


def check_values(validator, production, local):
    """Only known fields; production's servers check each other by the CA; locally nothing has TLS."""
    for name, values in (("nats-production.yaml", production), ("nats-local.yaml", local)):
        for error in validator(VALUES).iter_errors(values):
            yield f"{name}: {'.'.join(map(str, error.path)) or 'at the top'}: {error.message}"
    for path, expected in {
        "tlsCA": {"enabled": True, "secretName": "esim-nats-tls", "key": "ca.crt"},
        "config.nats.tls": {"enabled": True, "secretName": "esim-nats-tls"},
        "config.cluster.tls": {
            "enabled": True,
            "secretName": "esim-nats-tls",
            "merge": {"verify": True},
        },
    }.items():
        if at(production, path) != expected:
            yield f"nats-production.yaml: {path} is {at(production, path)}, not {expected}"
    both = merged(production, local)
    for path in ("tlsCA", "config.nats.tls", "config.cluster", "config.cluster.tls"):
        if at(both, path + ".enabled") is not False:
            yield f"nats-local.yaml does not turn {path} off"


# --- what the chart makes of them -----


def conf(manifests):
    """nats.conf of the rendered config map: JSON, except variables and numbers with a unit."""
    maps = [
        yaml.safe_load(text)
        for path, text in manifests.items()
        if path.endswith("templates/config-map.yaml")
    ]
    text = maps[0]["data"]["nats.conf"]
    return json.loads(
        re.sub(
            r'(": )(\$?[A-Za-z0-9_]*[A-Za-z_][A-Za-z0-9_]*)(?=,?$)',
            quoted,
            text,
            flags=re.MULTILINE,
        )
    )


def quoted(match):
    return match[0] if match[2] in ("true", "false", "null") else f'{match[1]}"{match[2]}"'


def mounts(manifests):
    """Of NATS' container: folder and secret."""
    sets = [
        yaml.safe_load(text)
        for path, text in manifests.items()
        if path.endswith("templates/stateful-set.yaml")
    ]
    spec = sets[0]["spec"]["template"]["spec"]
    secrets = {
        volume["name"]: volume["secret"]["secretName"]
        for volume in spec["volumes"]
        if "secret" in volume
    }
    nats = next(one for one in spec["containers"] if one["name"] == "nats")
    return {
        mount["mountPath"]: secrets[mount["name"]]
        for mount in nats["volumeMounts"]
        if mount["name"] in secrets
    }


def check_rendered(production, local):
    """Production: the secret's certificate and CA everywhere; only servers must show a certificate.

    Our stages log in with passwords and have no certificate, so `verify` would lock them out.
    """
    made, folders = conf(production), mounts(production)
    for block, verify in (("tls", None), ("cluster.tls", True)):
        tls = at(made, block)
        for setting, key in (
            ("cert_file", "tls.crt"),
            ("key_file", "tls.key"),
            ("ca_file", "ca.crt"),
        ):
            folder, _, name = tls.get(setting, "").rpartition("/")
            if name != key or folders.get(folder) != "esim-nats-tls":
                yield f"production: {block} has {setting} {tls.get(setting)}, which is not {key} of esim-nats-tls"
        if tls.get("verify") != verify:
            yield f"production: {block} has verify {tls.get('verify')}, not {verify}"
    if len(at(made, "cluster.routes")) != 3:
        yield f"production: the routes are {at(made, 'cluster.routes')}"
    made = conf(local)
    if "cluster" in made or "tls" in made or mounts(local):
        yield f"local: cluster, tls or their secrets are left: {sorted(made)}, {mounts(local)}"
    if len(at(made, "authorization.users")) != 4:
        yield "local: the users are missing"


def main():
    import helm_python

    version = sys.argv[1]
    if sys.argv[2] == "--fetch":
        helm_python.pull("nats", repo_url=sys.argv[3], version=version, destination=sys.argv[4])
        return
    production, local = (yaml.safe_load(pathlib.Path(path).read_text()) for path in sys.argv[2:4])
    chart = helm_python.Chart.load(sys.argv[4])
    if (chart.name, chart.version) != ("nats", version):
        raise SystemExit(f"{sys.argv[4]} is {chart.name()} {chart.version()}, not nats {version}")
    both = (production, merged(production, local))
    rendered = [chart.render(values, name="nats", namespace="esim") for values in both]
    problems = list(check_rendered(*rendered))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise SystemExit(f"{len(problems)} problems")
    print(
        f"well: NATS' chart {version} makes TLS with the CA and verify in production, and none locally"
    )


if __name__ == "__main__":
    main()
