"""apply.py LOCAL PRODUCTION: deploy/kubernetes/apply with a stand-in for kubectl; see tests/kubernetes/run.

The stand-in renders by the real kustomize's output, notes what it is asked for, and fails where the test says so.
"""

import os
import pathlib
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


def run(folder, rendered, fails="nothing"):
    calls = folder / "calls"
    calls.write_text("")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "RENDERED": str(rendered), "CALLS": str(calls), "FAILS": fails}
    done = subprocess.run(
        ["deploy/kubernetes/apply", "overlays/production"],
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
    print(f"well: {rendered.stem}: apply migrates, then replaces notifier, provisioner and ingress, and stops at a failure")


def main():
    with tempfile.TemporaryDirectory(prefix="esim-apply-") as folder:
        folder = pathlib.Path(folder)
        (folder / "kubectl").write_text(KUBECTL)
        (folder / "kubectl").chmod(0o755)
        for rendered in map(pathlib.Path, sys.argv[1:]):
            check(folder, rendered)


main()
