"""printed.py CHECKOUT PROGRAMS: runs the commands that README.md, docs/partner-guide.md and docs/running.md print.

CHECKOUT is a fresh clone, in which nothing is built. Where a command builds a program, that one is linked from the folder
PROGRAMS, so a command that needs a program which nothing has built fails here, as it would for the reader. Words in
capitals and example ports are replaced, as the reader has to do it; the rest is run as it is printed. Each printed command
has to be run here, or be in NOT_RUN with the reason, so a new one makes this test fail until it is added.
"""

import os
import pathlib
import pty
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import documents

CHECKOUT, PROGRAMS = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
DOCUMENTS = ["README.md", "docs/partner-guide.md", "docs/running.md"]
NAMED = ("deploy/local/up", "deploy/local/down", "deploy/local/demo", "tests/run", "esim-partner", "pip", "npm", "LOCAL_PORTS=23000")
READY = "424b7b26-96e7-5c95-8df9-6654a3998070"
WAIT = 60

COMPOSE = "stage compose runs docker-compose.yml, where a container engine is"
NOT_RUN = {
    "tests/run": "it is what runs this",
    "deploy/local/demo --provider airalo": "stage demo runs the demo with each provider",
    "deploy/try --images registry.example.com/esim": "stage compose runs it with images that it has made",
    "GIT_COMMIT=$(git rev-parse HEAD) docker compose up --wait --build": COMPOSE,
    "docker compose up --wait --scale ingress=2 --scale provisioner=2 --scale notifier=3": COMPOSE,
    "OTEL_EXPORTER_OTLP_ENDPOINT=http://otel-collector:4318 docker compose --profile observability up --wait": COMPOSE,
    "esim-partner balance --set 0": "it needs an account with prices; tests/e2e rehearses an empty balance",
    "esim-partner mcp": "an agent starts it; tests/e2e speaks the protocol to it",
}


def _printed() -> set[str]:
    found = set()
    for name in DOCUMENTS:
        path = CHECKOUT / name
        found.update(command for block in documents.blocks(path) for command in block)
        found.update(documents.inline(path, NAMED))
    return found


PRINTED = _printed()
taken: set[str] = set()
#: How a command is printed, with what it became. A log shows the first, which has no keys.
as_printed: dict[str, str] = {}


def take(command: str, *replaced: tuple[str, str]) -> str:
    """A printed command, with what the reader has to replace."""
    assert command in PRINTED, f"no document prints {command!r} any more"
    taken.add(command)
    given = command
    for word, value in replaced:
        assert word in given, (command, word)
        given = given.replace(word, value)
    as_printed[given] = command
    return given


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def await_listener(port: str) -> None:
    end = time.monotonic() + WAIT
    while True:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", int(port))) == 0:
                return
        assert time.monotonic() < end, f"nobody listens at port {port} within {WAIT} s"
        time.sleep(0.05)


# What the reader has in a terminal, and no settings of this test stage but the ports.
home = CHECKOUT.parent / "home"
home.mkdir(exist_ok=True)
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR", "NATS_SERVER_BIN", "PG_BIN")
}
ENVIRONMENT.update(
    HOME=str(home),
    USER=os.environ.get("USER") or "reader",
    PATH=os.environ["PATH"],
    CARGO=str(CHECKOUT.parent / "cargo"),
    NO_PROXY="*",
)
(CHECKOUT.parent / "cargo").write_text(
    f"""#!/usr/bin/env bash
# Stands for cargo: it "builds" the programs that it is told to build, and no other.
mkdir -p {CHECKOUT}/target/debug
while (($#)); do
  [[ $1 != --bin ]] || ln -sfn {PROGRAMS}/"$2" {CHECKOUT}/target/debug/"$2"
  shift
done
"""
)
(CHECKOUT.parent / "cargo").chmod(0o755)


class Terminal:
    """A shell in the checkout."""

    def __init__(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=CHECKOUT, env={**ENVIRONMENT, **environment}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        self.output = ""
        threading.Thread(target=self._read, daemon=True).start()
        terminals.append(self)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)

    def _type(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def _next(self, what: str) -> str:
        try:
            line = self.lines.get(timeout=WAIT)
        except queue.Empty:
            raise AssertionError(f"{what}: not within {WAIT} s; the terminal shows {self.output[-2000:]}") from None
        self.output += line
        return line

    def run(self, command: str) -> str:
        """What the command prints. It succeeds."""
        print("$", as_printed.get(command, command).splitlines()[0], flush=True)
        self.begin(f"{command}\necho ended-with-$?", quiet=True)
        printed = ""
        while not (ended := re.search(r"^ended-with-(\d+)$", line := self._next(command), re.MULTILINE)):
            printed += line
        assert ended[1] == "0", f"{command} ended with {ended[1]}: {printed[-2000:]}"
        return printed

    def begin(self, command: str, *, quiet: bool = False) -> None:
        """A command that goes on until the terminal is closed."""
        if not quiet:
            print("$", as_printed.get(command, command), flush=True)
        self._type(command + "\n")

    def shows(self, pattern: str) -> re.Match[str]:
        """Waits for a line."""
        while True:
            if found := re.search(pattern, self.output, re.MULTILINE):
                return found
            self._next(f"a line {pattern}")

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.kill()
        except ProcessLookupError:
            pass
        self.process.wait()


terminals: list[Terminal] = []


def log_in(command: str, keys: dict[str, str]) -> None:
    """`login` asks in a terminal."""
    print("$", command, flush=True)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(CHECKOUT)
        os.execvpe("bash", ["bash", "-c", command], {**ENVIRONMENT, "PATH": f"{CHECKOUT}/target/debug:{ENVIRONMENT['PATH']}"})
    shown = b""
    for question, name in [(b"Base URL", "BASE_URL"), (b"Access key", "ACCESS_KEY"), (b"Secret key", "SECRET_KEY"), (b"Webhook secret", "WEBHOOK_SECRET")]:
        while question not in shown:
            assert select.select([terminal], [], [], WAIT)[0], f"login does not ask for {name}: {shown!r}"
            shown += os.read(terminal, 4096)
        os.write(terminal, keys[name].encode() + b"\n")
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:
        pass  # the end of a terminal
    _, status = os.waitpid(child, 0)
    assert status == 0, shown
    assert keys["SECRET_KEY"].encode() not in shown, "the secret key was shown"


def keys_of(printed: str) -> dict[str, str]:
    """The keys that `partner create` shows."""
    names = {"ACCESS_KEY": "access[ _]key", "SECRET_KEY": "secret[ _]key", "WEBHOOK_SECRET": "webhook[ _]secret"}
    found = {name: re.search(rf"{text}[\s\":=]+(\S+)", printed, re.IGNORECASE) for name, text in names.items()}
    return {name: match[1].strip('",') for name, match in found.items() if match}


def running() -> None:
    """docs/running.md, and README.md."""
    hook = free_port()
    terminal = Terminal()
    ports = os.environ["LOCAL_PORTS"]
    terminal.run(take("LOCAL_PORTS=23000 deploy/local/up", ("23000", ports)))
    terminal.run(take("deploy/local/up --help"))
    terminal.run(take("deploy/local/up"))
    terminal.run(take("set -a; . .local/env; set +a"))
    receiver = next(command for command in PRINTED if command.startswith("python3 -u - <<'END' &"))
    terminal.run(take(receiver, ("9000", hook)))
    await_listener(hook)
    create = "$BIN_DIR/esimctl partner create --name Acme --environment sandbox --webhook-url http://127.0.0.1:9000/hook"
    keys = keys_of(terminal.run(take(create, ("9000", hook))))
    assert READY in terminal.run(take("$BIN_DIR/esimctl option list"))
    order = 'tests/shell/order.sh "$BASE_URL" ACCESS_KEY SECRET_KEY OPTION_ID 2'
    answered = terminal.run(
        take(order, ("ACCESS_KEY", keys["ACCESS_KEY"]), ("SECRET_KEY", f"'{keys['SECRET_KEY']}'"), ("OPTION_ID", READY))
    )
    topups = re.findall(r'"topup_id":"(\d{26})"', answered)
    assert len(topups) == 2, answered
    terminal.shows(topups[0])
    shown = terminal.run(take("$BIN_DIR/esimctl order show ORDER_OR_TOPUP_OR_EXTERNAL_ID", ("ORDER_OR_TOPUP_OR_EXTERNAL_ID", topups[0])))
    assert topups[0] in shown
    terminal.run(take("kill %1"))
    assert "3 of 3 webhooks arrived" in terminal.run(take("deploy/local/demo"))


def guide() -> None:
    """docs/partner-guide.md, from its part for a checkout, because it makes the account."""
    port = free_port()
    own = Terminal()
    own.run(take('deploy/local/up; set -a; . .local/env; set +a; PATH=$(cd "$BIN_DIR" && pwd):$PATH'))
    own.run(
        take('esimctl partner create --name Me --environment sandbox --json | esim-partner login --from - --base-url "$BASE_URL"')
    )
    stored = (home / ".config/esim-partner/default.env").read_text()
    keys = dict(line.split("=", 1) for line in stored.splitlines() if "=" in line)
    keys = {name: value.strip("'\"") for name, value in keys.items()}
    log_in(take("esim-partner login"), keys)

    path = f"{CHECKOUT}/target/debug:{ENVIRONMENT['PATH']}"
    endpoint = Terminal(PATH=path)
    endpoint.run(take("set -a; . ~/.config/esim-partner/default.env; set +a"))
    endpoint.begin(take("docs/examples/esim.py receive 3000", ("3000", port)))
    await_listener(port)
    listen = Terminal(PATH=path)
    forward = "esim-partner listen --forward-to http://localhost:3000/hook"
    listen.begin(take(forward, ("localhost:3000", f"localhost:{port}")))
    listen.shows(".")
    tail = Terminal(PATH=path)
    tail.begin(take("esim-partner logs tail"))
    third = Terminal(PATH=path)
    third.run(take("esim-partner trigger ready"))
    listen.shows(r'"trigger-ready-[^"]*".*: 200 after \d+ ms')
    topup_id = endpoint.shows(r"^ready trigger-ready-\S+ (\d{26})$")[1]
    tail.shows(topup_id)

    third.run(take("set -a; . ~/.config/esim-partner/default.env; set +a"))
    order, show = take(f"docs/examples/esim.py order A-1 {READY} 1"), take("docs/examples/esim.py show A-1")
    ordered = re.search(r"\d{26}", third.run(order))[0]
    assert ordered in third.run(show)
    endpoint.shows(rf"^ready A-1 {ordered}$")
    # A repeat shows the order that is stored.
    assert ordered in third.run(order)
    third.run(take("docs/examples/esim.py webhook http://127.0.0.1:3000/", ("3000", port)))
    listed = third.run("esim-partner endpoints list")
    first = re.search(r'"endpoint_id": ?"([^"]+)"', listed)[1]
    # The example returns the challenge of a test, so its host proves itself.
    assert re.search(r'"proven": ?false', listed), listed
    third.run(f"esim-partner endpoints test {first}")
    listed = third.run("esim-partner endpoints list")
    assert re.search(r'"proven": ?true', listed), listed
    third.run(take("esim-partner webhooks redeliver --since 2h"))
    third.run(take("esim-partner certify https://shop.example.com/webhooks", ("https://shop.example.com/webhooks", f"http://127.0.0.1:{port}/")))
    third.run(take("esim-partner install-page set --help"))


try:
    running()
    guide()
    Terminal().run(take("deploy/local/down"))
finally:
    for one in terminals:
        one.close()
    subprocess.run(["deploy/local/down"], cwd=CHECKOUT, env=ENVIRONMENT, stderr=subprocess.DEVNULL, check=False)

twice = taken & set(NOT_RUN)
assert not twice, f"these are run, so they need no reason: {twice}"
stale = set(NOT_RUN) - PRINTED
assert not stale, f"no document prints these any more: {stale}"
missing = PRINTED - taken - set(NOT_RUN)
assert not missing, f"these commands are printed, but this test does not run them: {missing}"
print(f"{len(taken)} printed commands work as they are printed; {len(NOT_RUN)} are run elsewhere")
