"""server.py DEFINITIONS NAMESPACE RENDERED…: what is rendered, applied to a real API server; see tests/kubernetes/run.

The folder KUBEBUILDER_ASSETS holds the programs etcd and kube-apiserver, as `setup-envtest use` of controller-runtime
downloads them. There are no controllers and no nodes, so no pod starts. What this proves is what only the server decides: it
accepts each object strictly and without a warning from a member of esim-deployers, who can read no secret; a second apply
changes nothing; a second version can be applied over the first one; and the namespace admits the pods (restricted).
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import yaml

ASSETS = pathlib.Path(os.environ["KUBEBUILDER_ASSETS"])
PORTS = int(os.environ.get("LOCAL_PORTS", "18000"))
ETCD, PEERS, SERVER = (PORTS + 60 + number for number in range(3))


def kubectl(user, *arguments, text=None, fails=False):
    """The output. A warning is an error, too, because the next version of Kubernetes may refuse what this one warns of."""
    done = subprocess.run(
        ["kubectl", f"--server=https://127.0.0.1:{SERVER}", "--insecure-skip-tls-verify", f"--token={user}", *arguments],
        input=text, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "KUBECONFIG": "/dev/null"},
    )
    if (done.returncode != 0) != fails or "Warning:" in done.stderr:
        said = [line for line in (done.stdout + done.stderr).splitlines() if not line.endswith(" serverside-applied")]
        raise SystemExit("\n".join([f"kubectl {' '.join(arguments)} as {user} ends with {done.returncode}:", *said]))
    return done.stdout


def apply(user, objects, *more):
    return kubectl(user, "apply", "--server-side", "--validate=strict", *more, "--filename", "-", text=yaml.safe_dump_all(objects))


def read(path):
    return [one for one in yaml.safe_load_all(pathlib.Path(path).read_text()) if one]


def start(folder, started):
    """etcd and the API server, with two users: an administrator and one who deploys."""
    def run(program, *arguments):
        log = (folder / f"{program}.log").open("w")
        started.append(subprocess.Popen([ASSETS / program, *arguments], stdout=log, stderr=subprocess.STDOUT, cwd=folder))

    (folder / "users.csv").write_text('admin,admin,admin,"system:masters"\ndeployer,deployer,deployer,"esim-deployers"\n')
    subprocess.run(["openssl", "genrsa", "-out", folder / "key"], check=True, capture_output=True, timeout=60)
    url = f"http://127.0.0.1:{ETCD}"
    run("etcd", f"--data-dir={folder}/data", f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
        f"--listen-peer-urls=http://127.0.0.1:{PEERS}", "--unsafe-no-fsync")
    run("kube-apiserver", f"--etcd-servers={url}", "--bind-address=127.0.0.1", f"--secure-port={SERVER}", f"--cert-dir={folder}/certificates",
        "--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file=key", "--service-account-key-file=key",
        "--token-auth-file=users.csv", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
        # Without controllers nobody would ever take its finalizer from a claim.
        "--disable-admission-plugins=StorageObjectInUseProtection")
    deadline = time.monotonic() + 120
    while True:
        ready = subprocess.run(["curl", "--fail", "--silent", "--insecure", f"https://127.0.0.1:{SERVER}/readyz"], capture_output=True, check=False)
        if ready.returncode == 0:
            return
        if time.monotonic() > deadline or any(one.poll() is not None for one in started):
            raise SystemExit(f"the API server does not start: {(folder / 'kube-apiserver.log').read_text()[-2000:]}")
        time.sleep(0.2)


def prepare(definitions, namespace):
    """What an administrator does once: the operators' definitions, and the namespace."""
    objects = [one for file in sorted(pathlib.Path(definitions).glob("*.yaml")) for one in read(file)]
    for one in objects:
        # The server asks for it in groups of k8s.io, such as that of the Gateway API.
        one["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
    apply("admin", objects)
    kubectl("admin", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    # The priority class is that of the chart's options (chart.py).
    apply("admin", [*read(namespace), {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "orders"}, "value": 1000}])
    if kubectl("deployer", "auth", "can-i", "get", "secrets", "--namespace=esim", fails=True).strip() != "no":
        raise SystemExit("who deploys can read secrets")


def check(path):
    objects = read(path)
    apply("deployer", objects)
    kubectl("deployer", "diff", "--server-side", "--filename", "-", text=yaml.safe_dump_all(objects))
    for one in objects:
        # A workload that makes refused pods is itself accepted.
        if one["kind"] in ("Deployment", "Job"):
            template = one["spec"]["template"]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "namespace": "esim", "name": "try"}, "spec": template["spec"]}
            apply("admin", [pod], "--dry-run=server")
    text = pathlib.Path(path).read_text()
    version = re.search(r"app\.kubernetes\.io/version: '?([^'\n]+)", text)[1]
    later = text.replace(f"migrate-{version.replace('.', '-')}", "migrate-9-9-9").replace(f":{version}\n", ":9.9.9\n")
    apply("deployer", [one for one in yaml.safe_load_all(later) if one])
    kubectl("deployer", "delete", "--ignore-not-found", "--wait=false", "--filename", "-", text=text + "\n---\n" + later)
    return len(objects)


def main():
    definitions, namespace, *rendered = sys.argv[1:]
    started, count = [], 0
    with tempfile.TemporaryDirectory(prefix="esim-server-") as folder:
        try:
            start(pathlib.Path(folder), started)
            prepare(definitions, namespace)
            version = re.search(r'"gitVersion": "v([^"]+)"', kubectl("admin", "get", "--raw", "/version"))[1]
            for path in rendered:
                count += check(path)
        finally:
            for one in reversed(started):
                one.terminate()
                one.wait(30)
    print(f"well: an API server of Kubernetes {version} takes {count} objects strictly, twice and in a second version, from one who deploys")


main()
