"""start.py README BIN RENDERED…: starts each program as its pod would; see tests/kubernetes/run.

The secrets are what the commands of README.md make, with a stand-in for kubectl that writes each
key to a file. Each volume has the layout and the rights that kubelet gives it, because a program
may refuse a file for its mode alone. PostgreSQL and nats-server are real, with certificates of a
private CA. Only addresses are replaced, and what needs more than one server.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import yaml

# The user and group of the pods (runAsUser, fsGroup).
POD = 65532
READY_SECONDS = 60
# PostgreSQL's address in the cluster.
DATABASE = "esim-db-rw:5432"
KUBECTL = """#!/bin/sh
# A stand-in: `create secret generic NAME` writes each key to a file.
set -eu
[ "$1 $2" = "-n esim" ]
case $3 in
  get) exec test -d "$CLUSTER/$5" ;;
  label) exit ;;
esac
[ "$3 $4 $5" = "create secret generic" ]
secret=$CLUSTER/$6
shift 6
mkdir "$secret"
for argument; do
  rest=${argument#*=}
  case $argument in
    --from-literal=*) printf '%s' "${rest#*=}" >"$secret/${rest%%=*}" ;;
    --from-file=*) cp "${rest#*=}" "$secret/${rest%%=*}" ;;
  esac
done
"""


class Wrong(Exception):
    pass


def run(*command, **options):
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, text=True, timeout=120, check=False, **output, **options)
    if done.returncode != 0:
        raise Wrong(f"{command[0]} ended with exit status {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def own(*paths):
    """The group of the pods reads it; nothing else does, except root."""
    for path in paths:
        if os.geteuid() == 0:
            os.chown(path, 0, POD)
        path.chmod(0o2750 if path.is_dir() else 0o440)


def as_pod():
    # Without root the process owns the files; their mode is the same.
    return {"user": POD, "group": POD, "extra_groups": []} if os.geteuid() == 0 else {}


class Cluster:
    """What every pod finds: secrets, PostgreSQL and NATS."""

    def __init__(self, folder, readme, binaries):
        self.folder, self.binaries = folder, binaries
        self.secrets = folder / "cluster"
        self.postgres = f"127.0.0.1:{os.environ['POSTGRES_PORT']}"
        self.certificates()
        self.commands_of(readme)
        self.made_by_others()
        self.database()

    def certificates(self):
        new = ["openssl", "req", "-x509", "-nodes", "-days", "2"]
        new += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        at = self.folder
        run(*new, "-subj", "/CN=a private CA", "-keyout", at / "ca.key", "-out", at / "ca.crt")
        run(
            *new,
            "-CA",
            at / "ca.crt",
            "-CAkey",
            at / "ca.key",
            "-subj",
            "/CN=a server",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:false",
            "-keyout",
            at / "tls.key",
            "-out",
            at / "tls.crt",
        )

    def commands_of(self, readme):
        """Runs what README.md says under Secrets; only folder and database's address are others."""
        if "\n./secrets ~/esim-secrets\n" not in readme.read_text():
            raise Wrong(f"{readme}: does not say how to create the secrets")
        script = readme.parent / "secrets"
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "kubectl").write_text(KUBECTL)
        (tools / "kubectl").chmod(0o755)
        self.secrets.mkdir()
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "CLUSTER": str(self.secrets),
            "DATABASE_AT": f"{self.postgres}/esim",
        }
        # Without a program, and in a work tree, it creates nothing.
        for folder in (self.folder / "made", pathlib.Path(os.environ["LOCAL_DIR"], "made")):
            with contextlib.suppress(Wrong):
                run(script, folder, env=environment)
                raise SystemExit(f"{script} went on in {folder}")
            if any(self.secrets.iterdir()):
                raise Wrong(f"{script} has created secrets although it failed")
            environment["PATH"] = f"{tools}:{self.binaries}:{os.environ['PATH']}"
        run(script, self.folder / "made", env=environment)
        if list(pathlib.Path(os.environ["LOCAL_DIR"]).glob("made/all/*")):
            raise Wrong(f"{script} has left keys in a work tree")
        # It may be repeated, and then changes nothing.
        before = {file: file.read_bytes() for file in self.secrets.rglob("*") if file.is_file()}
        run(script, self.folder / "made", env=environment)
        if before != {file: file.read_bytes() for file in self.secrets.rglob("*") if file.is_file()}:
            raise Wrong(f"{script} changes secrets that exist")
        if any(not value.strip() for value in before.values()):
            raise Wrong(f"{script} has created an empty secret")

    def made_by_others(self):
        """The operator's secrets, cert-manager's, and a provider's account."""
        ca = (self.folder / "ca.crt").read_text()
        for secret, keys in {
            "esim-db-app": {"uri": os.environ["DATABASE_URL"]},
            "esim-db-ca": {"ca.crt": ca},
            "esim-nats-tls": {"ca.crt": ca},
            "esim-providers": {
                "USIMSA_URL": "http://127.0.0.1:1",
                "USIMSA_ACCESS_KEY": "key",
                "USIMSA_SECRET_KEY": "c2VjcmV0",
                "USIMSA_CALLBACK_TOKEN": "0123456789abcdef",
            },
        }.items():
            (self.secrets / secret).mkdir()
            for key, value in keys.items():
                (self.secrets / secret / key).write_text(value)

    def database(self):
        """Gives PostgreSQL a certificate, and the roles their secrets' passwords, as the operator."""
        data = pathlib.Path(os.environ["POSTGRES_HOME"], "pgdata")
        for name in ("tls.crt", "tls.key"):
            shutil.copy(self.folder / name, data / name)
            (data / name).chmod(0o600)
            os.chown(data / name, data.stat().st_uid, data.stat().st_gid)
        settings = {"ssl_cert_file": "'tls.crt'", "ssl_key_file": "'tls.key'", "ssl": "on"}
        statements = [f"ALTER SYSTEM SET {name} = {value}" for name, value in settings.items()]
        for secret in self.secrets.glob("esim-db-*/username"):
            password = secret.with_name("password").read_text()
            statements.append(f"ALTER ROLE {secret.read_text()} PASSWORD '{password}'")
        psql = [pathlib.Path(os.environ["PG_BIN"], "psql"), "-Xqv", "ON_ERROR_STOP=1"]
        admin = os.environ["DATABASE_ADMIN_URL"]
        for one in [*statements, "SELECT pg_reload_conf()"]:
            run(*psql, admin, "-c", one)
        for _ in range(100):
            with contextlib.suppress(Wrong):
                run(*psql, f"{admin}?sslmode=require", "-c", "SELECT 1")
                return
            time.sleep(0.1)
        raise Wrong("PostgreSQL did not begin to use TLS")

    @contextlib.contextmanager
    def nats(self, tls):
        folder = self.folder / "nats"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "made/shares/nats", folder / "secrets")
        conf = pathlib.Path("deploy/nats/nats.conf").read_text()
        if tls:
            conf += f'\ntls {{ cert_file: "{self.folder}/tls.crt", key_file: "{self.folder}/tls.key" }}\n'
        (folder / "nats.conf").write_text(conf)
        server, port = os.environ["NATS_SERVER_BIN"], os.environ["NATS_PORT"]
        command = [server, "-c", folder / "nats.conf", "-a", "127.0.0.1", "-p", port]
        with process([*command, "-sd", folder / "data"], folder / "log"):
            yield f"{'tls' if tls else 'nats'}://127.0.0.1:{port}"


@contextlib.contextmanager
def process(command, log, **options):
    with log.open("w") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(40)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Pod:
    """A pod of a rendered overlay: its program, its environment, and its volumes on this machine."""

    def __init__(self, cluster, folder, maps, one):
        self.name, self.cluster, self.folder = one["metadata"]["name"], cluster, folder
        spec = one["spec"]["template"]["spec"]
        container = spec["containers"][0]
        program = container["image"].split(":")[0].rsplit("/", 1)[1]
        self.command = [cluster.binaries / program, *container.get("args", [])]
        self.environment = {}
        for source in container.get("envFrom", []):
            self.environment.update(maps[source["configMapRef"]["name"]])
        self.environment.update(
            {variable["name"]: variable["value"] for variable in container.get("env", [])}
        )
        for name, value in self.environment.items():
            self.environment[name] = value.replace(DATABASE, cluster.postgres)
        folder.mkdir()
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for number, mount in enumerate(container.get("volumeMounts", [])):
            path = folder / f"volume-{number}"
            path.mkdir()
            self.mount(volumes[mount["name"]], path)
            for name, value in self.environment.items():
                if value == mount["mountPath"] or value.startswith(mount["mountPath"] + "/"):
                    self.environment[name] = value.replace(mount["mountPath"], str(path), 1)

    def mount(self, volume, path):
        if "persistentVolumeClaim" in volume:
            if os.geteuid() == 0:
                os.chown(path, 0, POD)
            path.chmod(0o2770)
            return
        whole = volume.get("secret") or volume["projected"]
        mode = whole.get("defaultMode", 0o644)
        if mode != 0o440:
            raise Wrong(f"{self.name}: volume {volume['name']} has mode {mode:04o}, not 0440")
        # The names lead through ..data, which is replaced at once when the secret changes.
        version = path / "..2026_01_02_03_04_05.1"
        version.mkdir()
        (path / "..data").symlink_to(version.name)
        for source in whole.get("sources", [volume]):
            secret = source["secret"]
            name = secret.get("secretName") or secret["name"]
            there = {file.name: file for file in (self.cluster.secrets / name).glob("*")}
            if secret.get("optional") and not there:
                continue
            for item in secret.get("items") or [{"key": key, "path": key} for key in there]:
                if item["key"] not in there:
                    raise Wrong(
                        f"{self.name}: secret {name} has no key {item['key']}; it has {sorted(there)}"
                    )
                shutil.copy(there[item["key"]], version / item["path"])
                own(version / item["path"])
                (path / item["path"]).symlink_to(f"..data/{item['path']}")
        own(version, path)

    def said(self):
        return (self.folder / "log").read_text().strip()[-2000:]

    @contextlib.contextmanager
    def started(self):
        options = {"env": self.environment, "cwd": "/", **as_pod()}
        with process(self.command, self.folder / "log", **options) as child:
            yield child

    def completes(self):
        with self.started() as child:
            if child.wait(READY_SECONDS) != 0:
                raise Wrong(f"{self.name}: exit status {child.returncode}: {self.said()}")

    def becomes_ready(self, child):
        deadline, answer = time.monotonic() + READY_SECONDS, "no answer"
        while time.monotonic() < deadline:
            if child.poll() is not None:
                raise Wrong(
                    f"{self.name}: stopped with exit status {child.returncode}: {self.said()}"
                )
            try:
                with urllib.request.urlopen(
                    f"http://{self.environment['ADMIN_LISTEN']}/readyz", timeout=2
                ):
                    return
            except urllib.error.HTTPError as error:
                answer = error.read().decode().strip()
            except OSError as error:
                answer = str(error)
            time.sleep(0.1)
        raise Wrong(f"{self.name}: not ready after {READY_SECONDS} s ({answer}): {self.said()}")


def start(cluster, folder, rendered):
    every = [one for one in yaml.safe_load_all(rendered.read_text()) if one]
    maps = {one["metadata"]["name"]: one["data"] for one in every if one["kind"] == "ConfigMap"}
    programs = {
        # The Job is named by the version.
        re.sub("^migrate-.*", "migrate", one["metadata"]["name"]): one
        for one in every
        if one["kind"] in ("Deployment", "Job")
    }
    pods = {name: Pod(cluster, folder / name, maps, one) for name, one in programs.items()}

    def port(name):
        return f"127.0.0.1:{os.environ[name]}"

    tls = pods["ingress"].environment["NATS_URL"].startswith("tls:")
    with contextlib.ExitStack() as running:
        nats = running.enter_context(cluster.nats(tls))
        replaced = {
            "NATS_URL": nats,
            "STREAM_REPLICAS": "1",  # there is one server
            "SANDBOX_URL": f"http://{port('SANDBOX_PORT')}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        }
        for name in ("migrate", "sandbox", "provisioner", "notifier", "ingress", "console"):
            pod = pods.pop(name)
            pod.environment.update(
                {key: value for key, value in replaced.items() if key in pod.environment}
            )
            for setting, suffix in (("LISTEN", "PORT"), ("ADMIN_LISTEN", "ADMIN_PORT")):
                if setting in pod.environment:
                    pod.environment[setting] = port(f"{name.upper()}_{suffix}")
            if name == "migrate":
                pod.completes()
            else:
                pod.becomes_ready(running.enter_context(pod.started()))
    if pods:
        raise Wrong(f"{rendered.stem}: not started: {sorted(pods)}")


def main():
    readme, binaries = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    # Another user must reach it.
    with tempfile.TemporaryDirectory(prefix="esim-pods-") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        try:
            cluster = Cluster(folder, readme, binaries)
            for rendered in map(pathlib.Path, sys.argv[3:]):
                pods = folder / rendered.stem
                pods.mkdir()
                start(cluster, pods, rendered)
                print(
                    f"well: {rendered.stem}: each program starts with its mounted secrets, and is ready"
                )
        except Wrong as wrong:
            raise SystemExit(str(wrong)) from None


main()
