"""printed.py BIN KUSTOMIZE…: runs what deploy/helm/README.md prints for an installation; see tests/kubernetes/run.

Everything is real except the cluster: the stand-ins for kubectl and helm look at what they are given as both programs do. A file
that no step has made, a manifest that cannot be read, or values that the chart refuses end this as they would end the reader's
work. Words in capitals and … are what the reader has to replace; no step may need that to work.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import helm_python
import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "contract"))
import documents  # noqa: E402

CHART = pathlib.Path("deploy/helm")


def read_all(path):
    """The objects of a file."""
    objects = [one for one in yaml.safe_load_all(pathlib.Path(path).read_text()) if one]
    assert objects, f"{path} has no object"
    return objects


def options(arguments, *names):
    """The values of options, `--name value` or `--name=value`."""
    found = []
    for number, argument in enumerate(arguments):
        for name in names:
            if argument == name:
                found.append(arguments[number + 1])
            elif argument.startswith(f"{name}="):
                found.append(argument.partition("=")[2])
    return found


def kubectl(arguments, cluster):
    """What kubectl reads before it asks a cluster. A secret becomes a folder in `cluster`."""
    rest = arguments[2:] if arguments[:2] == ["-n", "esim"] else arguments
    match rest:
        case ["get", "secret", name, *_]:
            raise SystemExit(0 if (cluster / name).is_dir() else 1)
        case ["label", "secret", name, *_]:
            assert (cluster / name).is_dir(), f"there is no secret {name}"
        case ["create", "secret", "generic", name, *given]:
            secret = cluster / name
            secret.mkdir()
            for one in options(given, "--from-literal"):
                key, _, value = one.partition("=")
                (secret / key).write_text(value)
            for one in options(given, "--from-file"):
                key, equals, path = one.partition("=")
                path = pathlib.Path(path if equals else key)
                # A folder makes a key of each of its files.
                for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                    content = file.read_bytes()
                    assert content, f"{file} is empty"
                    (secret / (key if equals else file.name)).write_bytes(content)
            assert any(secret.iterdir()), f"secret {name} would be empty"
        case ["kustomize", folder]:
            subprocess.run([*KUSTOMIZE, folder], check=True)
        case ["apply", "--server-side", "-k", folder]:
            subprocess.run([*KUSTOMIZE, folder], stdout=subprocess.DEVNULL, check=True)
        case ["apply", "--server-side", "--filename", path]:
            read_all(path)
        case ["exec", "deployment/sandbox", "--", *command]:
            subprocess.run(command, check=True)
        case ["wait" | "rollout" | "get", *_]:
            pass
        case _:
            raise SystemExit(f"kubectl {arguments}: this stand-in does not know it")


def helm(arguments):
    """What helm makes of a chart before it asks a cluster."""
    match arguments:
        case ["install", "nats", "nats", *given]:
            assert options(given, "--repo") and options(given, "--version"), given
            for path in options(given, "--values"):
                read_all(path)
        case ["install", "esim", chart, *given]:
            assert options(given, "--namespace") == ["esim"], given
            values = {}
            for path in options(given, "--values"):
                (more,) = read_all(path)
                values.update(more)
            with helm_python.Chart.load(chart) as loaded:
                loaded.validate_schema(loaded.merge_values(values))
                files = loaded.render(values, name="esim", namespace="esim")
            made = [one for path, text in files.items() if path.endswith(".yaml") for one in yaml.safe_load_all(text) if one]
            print(f"{len(made)} objects")
        case _:
            raise SystemExit(f"helm {arguments}: this stand-in does not know it")


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    install, waiting, test, *_ = documents.blocks(CHART / "README.md")
    # Keys may not be made in a work tree, so this is no folder of ours.
    with tempfile.TemporaryDirectory() as made:
        home, tools, cluster = (pathlib.Path(made, name) for name in ("home", "tools", "cluster"))
        for folder in (home, tools, cluster):
            folder.mkdir()
        for name in ("kubectl", "helm"):
            (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -B "{HERE}/printed.py" as-{name} "$@"\n')
            (tools / name).chmod(0o755)
        environment = {
            "PATH": f"{tools}:{binaries}:{os.environ['PATH']}",
            "HOME": str(home),
            "CLUSTER": str(cluster),
            "KUSTOMIZE": " ".join([shutil.which(sys.argv[2]) or sys.argv[2], *sys.argv[3:]]),
        }
        # A shell that a reader types into, and that stops at the first failure.
        commands = ["set -eu", *install, *waiting, *(one for one in test if one.startswith("printf"))]
        ran = subprocess.run(["bash", "-c", "\n".join(commands)], cwd=CHART, env=environment, text=True, capture_output=True, check=False)
        if ran.returncode != 0:
            raise SystemExit(f"deploy/helm/README.md: what it prints does not work: {ran.stdout}{ran.stderr}")
        # Every secret that a pod of the chart mounts has been made, but for the certificates of cert-manager.
        secrets = {one.name for one in cluster.iterdir()}
        with helm_python.Chart.load(CHART) as chart:
            files = chart.render({}, name="esim", namespace="esim")
        needed = set()
        for text in files.values():
            for one in yaml.safe_load_all(text) if "kind:" in text else []:
                template = (one or {}).get("spec", {}).get("template", {}) if (one or {}).get("kind") in ("Deployment", "Job") else {}
                for volume in template.get("spec", {}).get("volumes", []):
                    sources = [volume, *(volume.get("projected", {}).get("sources", []))]
                    mounted = [source["secret"] for source in sources if not source.get("secret", {"optional": True}).get("optional")]
                    needed |= {secret.get("secretName") or secret.get("name") for secret in mounted}
        by_operators = {"esim-nats-tls", "esim-db-ca", "esim-db-app"}
        missing = needed - secrets - by_operators
        if missing:
            raise SystemExit(f"deploy/helm/README.md: no step makes the secrets {sorted(missing)}")
        print(f"well: the installation that deploy/helm/README.md prints works as printed, and makes {len(secrets)} secrets")


if sys.argv[1] == "as-kubectl":
    KUSTOMIZE = os.environ["KUSTOMIZE"].split()
    kubectl(sys.argv[2:], pathlib.Path(os.environ["CLUSTER"]))
elif sys.argv[1] == "as-helm":
    helm(sys.argv[2:])
else:
    main()
