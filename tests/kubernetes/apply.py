"""apply.py LOCAL PRODUCTION: deploy/kubernetes/apply and deploy/helm/upgrade, with stand-ins for kubectl and helm; see
tests/kubernetes/run.

The stand-ins render by the real kustomize's output, note what they are asked for, and fail where the test says so.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

KUBECTL = """#!/bin/sh
set -eu
if [ "$1" = kustomize ]; then exec cat "$RENDERED"; fi
shift 2 # -n esim
case "$*" in
  *"apply "*)
    for file; do :; done
    { printf 'apply'; case "$*" in *--server-side*) ;; *) printf ' NOT-ON-SERVER';; esac
      awk '/^kind: /{kind=$2} /^  name: /{if (kind) {printf " %s/%s", kind, $2; kind=""}}' "$file"; echo; } >>"$CALLS" ;;
  *"get replicasets,jobs "*) printf 'used-by-a-replica-set stages-used\\n' ;;
  *"get configmaps "*) printf 'used-by-a-replica-set\\nold\\ndashboard-orders\\n' ;;
  *) echo "$*" >>"$CALLS" ;;
esac
case "$*" in *"$FAILS"*) exit 1 ;; esac
"""

HELM = """#!/bin/sh
echo "helm $*" >>"$CALLS"
case "helm $*" in *"$FAILS"*) exit 1 ;; esac
"""


def run(folder, rendered, fails="nothing", command=("deploy/kubernetes/apply", "overlays/production")):
    calls = folder / "calls"
    calls.write_text("")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "RENDERED": str(rendered), "CALLS": str(calls), "FAILS": fails}
    done = subprocess.run(
        command,
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
    )
    return done, calls.read_text().splitlines()


def check(folder, rendered):
    everything = {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(rendered.read_text()) if one}
    (job,) = (name for kind, name in everything if kind == "Job")
    done, calls = run(folder, rendered)
    if done.returncode:
        raise SystemExit(f"apply fails: {done.stdout}")
    first, rest = calls[0].split()[1:], calls[1:]
    expected = [f"wait --for=condition=complete --timeout=15m job/{job}"]
    for stage in ("notifier", "provisioner", "ingress"):
        expected += [f"apply Deployment/{stage}", f"rollout status --timeout=15m deployment/{stage}"]
    # What a replica set of an earlier version uses stays, and the dashboards, which no pod names.
    expected.append("delete configmap old")
    if rest != expected:
        raise SystemExit(f"apply asks for {rest}, not {expected}")
    before = {f"{kind}/{name}" for kind, name in everything} - {f"Deployment/{one}" for one in ("notifier", "provisioner", "ingress")}
    if set(first) != before or len(first) != len(before):
        raise SystemExit(f"before the migration apply sends {sorted(set(first) ^ before)} too many or too few")
    for fails, last in ((f"job/{job}", expected[0]), ("deployment/provisioner", expected[4])):
        done, calls = run(folder, rendered, fails)
        if done.returncode == 0 or calls[-1] != last:
            raise SystemExit(f"after a failure of {fails} apply goes on: {calls[1:]}")
    check_secrets(folder, rendered)
    print(f"well: {rendered.stem}: apply migrates, then replaces notifier, provisioner and ingress, and stops at a failure")


def check_secrets(folder, rendered):
    """A secret in a config map is refused: each one of docs/settings.md, and those of accounts at providers."""
    page = pathlib.Path("docs/settings.md").read_text()
    secrets = [*re.findall(r"^\| `(\w+)` \| [^|]+ \| secret \|", page, re.M), "USIMSA_SECRET_KEY", "AIRALO_ACCESS_KEY", "PGPASSWORD"]
    # It may hold a password; kubernetes has it without one. The other is of a command that no pod runs.
    secrets = [name for name in secrets if name not in ("NATS_URL", "POSTGRES_PASSWORD")]
    if len(secrets) < 12:
        raise SystemExit(f"docs/settings.md names few secrets: {secrets}")
    told = folder / "told.yaml"
    for name in secrets:
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ingress"}, "data": {"LOG": "info", name: "hush"}}
        told.write_text(rendered.read_text() + "---\n" + yaml.safe_dump(config))
        done, calls = run(folder, told)
        if done.returncode == 0 or calls or name not in done.stdout or "hush" in done.stdout:
            raise SystemExit(f"apply takes {name} in a config map, or does not name it: {calls} {done.stdout}")


def pause(stage, whether):
    return f'patch deployment {stage} --type merge --patch {{"spec":{{"paused":{whether}}}}}'


def check_upgrade(folder):
    """deploy/helm/upgrade keeps the sequence by pauses; helm itself would replace all stages at once."""
    upgrade = ("deploy/helm/upgrade", "deploy/helm", "--values", "mine.yaml")
    forward, back = ["notifier", "provisioner", "ingress"], ["ingress", "provisioner", "notifier"]

    def resumes(order):
        return [call for stage in order for call in (pause(stage, "false"), f"rollout status --timeout=20m deployment/{stage}")]

    cases = {
        upgrade: [pause("provisioner", "true"), pause("ingress", "true"), "helm upgrade esim --namespace esim --timeout 20m deploy/helm --values mine.yaml", *resumes(forward)],
        ("deploy/helm/upgrade", "--resume"): resumes(forward),
        ("deploy/helm/upgrade", "--rollback", "3"): [pause("provisioner", "true"), pause("notifier", "true"), "helm rollback esim 3 --namespace esim --timeout 20m", *resumes(back)],
    }
    for command, expected in cases.items():
        done, calls = run(folder, "", command=command)
        if done.returncode or calls != expected:
            raise SystemExit(f"{command} asks for {calls}, not {expected}: {done.stdout}")
    expected = cases[upgrade]
    # Where it fails, what is its last call, and what it says.
    for fails, last, says in (
        ("helm upgrade", 2, "--rollback"),
        ("deployment/notifier", 4, "upgrade --resume"),
        ("deployment/provisioner", 6, "upgrade --resume"),
    ):
        done, calls = run(folder, "", fails, upgrade)
        if done.returncode == 0 or calls != expected[: last + 1] or says not in done.stdout:
            raise SystemExit(f"after a failure of {fails} upgrade asks for {calls} and says {done.stdout}")
    for refused in ("--wait", "--atomic", "--install"):
        done, calls = run(folder, "", command=(*upgrade, refused))
        if done.returncode == 0 or calls:
            raise SystemExit(f"upgrade takes {refused}, by which helm waits for paused stages: {calls}")
    done, calls = run(folder, "", command=("deploy/helm/upgrade", "--rollback"))
    if done.returncode == 0 or calls:
        raise SystemExit(f"a rollback needs no revision, so a repeated one leads forward again: {calls}")
    print("well: deploy/helm/upgrade migrates, then replaces notifier, provisioner and ingress, goes back in the opposite sequence, and stops at a failure")


def main():
    with tempfile.TemporaryDirectory(prefix="esim-apply-") as folder:
        folder = pathlib.Path(folder)
        for name, text in (("kubectl", KUBECTL), ("helm", HELM)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        check_upgrade(folder)
        for rendered in map(pathlib.Path, sys.argv[1:]):
            check(folder, rendered)


main()
