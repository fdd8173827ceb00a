"""measure.py [--cycles N] [--seconds N] [--rate N] [--latency MS] [--only NAME]… [--report FILE]: see tests/attacks/run."""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from attack import ATTACKS
from hostile import LOUD, SLOW

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
STAGES = ["ingress", "provisioner", "notifier", "nats-server"]
# Other partners' p99 may rise by less than this part.
MOST_RISE = 0.5
# After an attack: its connections end.
PAUSE = 1
# The last webhooks may take this long.
PATIENCE = 60
LIVE_OPTION = "0c6f6c53-5d0b-4a8e-9d5e-2f4b4b8f5f10"


def limits():
    """The memory that a stage's container may use, in MiB: the smaller one of Compose and Kubernetes."""
    compose = (ROOT / "docker-compose.yml").read_text()
    in_compose = {"M": 1, "G": 1024}
    found = {}
    for stage in STAGES:
        variable = "NATS_MEMORY" if stage == "nats-server" else "PROGRAM_MEMORY"
        number, unit = re.search(rf"{variable}:-(\d+)([MG])", compose).groups()
        found[stage] = int(number) * in_compose[unit]
        manifest = ROOT / f"deploy/kubernetes/base/{stage}.yaml"
        if manifest.exists():
            found[stage] = min(found[stage], int(re.search(r"limits:\s+memory: (\d+)Mi", manifest.read_text())[1]))
    return found


class System:
    """The running system, by its settings in the environment."""

    def __init__(self):
        self.env = os.environ
        run = pathlib.Path(self.env["LOCAL_DIR"]) / "run"
        self.pids = {stage: int((run / f"{stage}.pid").read_text()) for stage in STAGES}

    def esimctl(self, *arguments, text=None):
        program = pathlib.Path(self.env["BIN"]) / "esimctl"
        done = subprocess.run([program, "--json", *arguments], input=text, capture_output=True, text=True, timeout=60)
        if done.returncode:
            sys.exit(f"esimctl {' '.join(arguments)}: {done.stderr}")
        return json.loads(done.stdout)

    def partner(self, name, environment="sandbox", url=None):
        limits = ("--orders-per-second", "default", "--units-per-second", "default")
        return self.esimctl("partner", "create", "--name", name, "--environment", environment, *limits, *(["--webhook-url", url] if url else []))

    def reset_peaks(self):
        for pid in self.pids.values():
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peaks(self):
        """In MiB, since the reset."""
        status = {stage: pathlib.Path(f"/proc/{pid}/status").read_text() for stage, pid in self.pids.items()}
        return {stage: int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024 for stage, text in status.items()}

    def slow_provider(self, milliseconds):
        """From now on each call to the sandbox provider takes so long."""
        faults = json.dumps({"latency_ms": milliseconds}).encode()
        request = urllib.request.Request(f"{self.env['SANDBOX_URL']}/faults", faults, method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def bought_times(self):
        """How often the sandbox provider sold each placement."""
        with urllib.request.urlopen(f"{self.env['SANDBOX_URL']}/ledger", timeout=60) as answer:
            orders = json.load(answer)["orders"]
        return {one["order_id"]: one["purchased_times"] for one in orders}

    def placements(self, partner_id):
        """Of all orders of a partner that are not refused: external id and placement."""
        query = (
            "SELECT external_order_id, placement_id FROM orders JOIN placements USING (order_id)"
            f" WHERE orders.partner_id = '{partner_id}' AND refused_at IS NULL"
        )
        psql = pathlib.Path(self.env["PG_BIN"]) / "psql"
        done = subprocess.run([psql, self.env["DATABASE_URL"], "-AtF,", "-c", query], capture_output=True, text=True, check=True, timeout=60)
        return [line.split(",") for line in done.stdout.splitlines()]


class Good:
    """The good partner's process, and what it reports."""

    def __init__(self, settings):
        self.orders, self.webhooks, self.picture = [], {}, None
        self.answered, self.ended = threading.Event(), threading.Event()
        self.process = start("partner.py", [], settings)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            kind, *rest = line.split()
            if kind == "o":
                self.orders.append((float(rest[0]), float(rest[1]), rest[2], rest[3]))
            elif kind == "w":
                self.webhooks.setdefault(rest[1], float(rest[0]))
                self.picture = rest[2]
            elif kind == "end":
                self.answered.set()
        self.ended.set()

    def stop(self):
        """Ends the orders and waits for the webhooks of all that were accepted."""
        self.process.stdin.close()
        # Until then an order may be under way whose webhook nobody misses yet.
        self.answered.wait(PATIENCE)
        await_(lambda: not self.missing(), PATIENCE)
        self.process.terminate()
        self.ended.wait(10)

    def missing(self):
        return [topup for _, _, status, topup in list(self.orders) if status == "201" and topup not in self.webhooks]

    def window(self, first, last):
        """Seconds from an order to its answer and to its webhook, and the orders without a 201."""
        orders = [one for one in list(self.orders) if first <= one[0] < last]
        answers = [seconds for _, seconds, _, _ in orders]
        hooks = [self.webhooks.get(topup, float("inf")) - at for at, _, status, topup in orders if status == "201"]
        return answers, hooks, [status for _, _, status, _ in orders if status != "201"]


def start(program, arguments, settings):
    command = [sys.executable, "-B", str(HERE / program), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()
    return process


def await_(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else float("inf")


class Window:
    """Some seconds of the good partner, with peaks of memory. Read once all webhooks have had time to arrive."""

    def __init__(self, system, good, seconds):
        system.reset_peaks()
        self.first = time.monotonic()
        time.sleep(seconds)
        self.last = time.monotonic()
        self.peaks = system.peaks()
        self.good = good
        self.seen = {}

    def read(self):
        self.answers, self.webhooks, self.failed = self.good.window(self.first, self.last)


def attack(system, good, name, settings, seconds):
    process = start("attack.py", [name], settings | {"picture": good.picture})
    window = Window(system, good, seconds)
    if process.poll() is not None:
        sys.exit(f"the attack {name} ended: exit status {process.returncode}")
    # A busy attacker reads the end of its input late.
    out, _ = process.communicate(timeout=60)
    window.seen = json.loads(out)
    return window


def judged(name, calm, during, allowed):
    """A row of the table, and what is wrong. `calm` and `during` are windows, by turns."""
    # A starved attacker proves nothing.
    wrong, noisy = [], not all(one.seen for one in during)
    seen = sum(sum(one.seen.values()) for one in during) / sum(one.last - one.first for one in during)
    row = [name.replace("_", " "), f"{seen:.0f}"]
    for title in ("answers", "webhooks"):
        quiet = [percentile(getattr(one, title), 0.99) for one in calm]
        before, attacked = ([value for one in windows for value in getattr(one, title)] for windows in (calm, during))
        rise, noise = percentile(attacked, 0.99) / percentile(before, 0.99) - 1, max(quiet) / min(quiet) - 1
        row += [" / ".join(f"{percentile(values, part) * 1e3:.1f}" for part in (0.5, 0.99)) for values in (before, attacked)]
        row.append(f"{rise * 100:+.0f} % ({noise * 100:.0f} %)")
        if rise >= MOST_RISE > noise:
            wrong.append(f"p99 of the {title} rises by {rise * 100:.0f} %")
        noisy |= rise >= MOST_RISE
    for stage in STAGES:
        peak = max(one.peaks[stage] for one in during)
        row.append(f"{peak:.0f}")
        if peak >= allowed[stage]:
            wrong.append(f"{stage} uses {peak:.0f} MiB of {allowed[stage]}")
    failed = [status for one in during for status in one.failed]
    if failed:
        wrong.append(f"{len(failed)} orders failed: {sorted(set(failed))}")
    row.append("; ".join(wrong) or ("latency not judged: the machine is busy" if noisy else "pass"))
    return row, wrong


def table(rows, allowed):
    head = ["attack", "seen per second", "answer p50 / p99, ms", "attacked", "rise (noise)", "webhook p50 / p99, ms", "attacked", "rise (noise)"]
    head += [f"{stage} (of {allowed[stage]})" for stage in STAGES] + ["result"]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bought_once(system, partner_id, good):
    """Each order of the good partner that was accepted was bought once; no other one was."""
    stored, times = [], {}

    def all_bought():
        """An order whose answer was lost may be bought later."""
        nonlocal stored, times
        stored, times = system.placements(partner_id), system.bought_times()
        return all(one in times for _, one in stored)

    await_(all_bought, PATIENCE)
    accepted = sum(status == "201" for _, _, status, _ in good.orders)
    problems = [f"placement {one} of {order} was bought {times.get(one, 0)} times" for order, one in stored if times.get(one) != 1]
    if len(stored) < accepted:
        problems.append(f"{accepted} orders were accepted, {len(stored)} are stored")
    return problems[:10]


def main():
    parser = argparse.ArgumentParser()
    # One calm window shows no noise.
    parser.add_argument("--cycles", type=int, default=3, choices=range(2, 100), metavar="N")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--latency", type=int, default=0, metavar="MS")
    parser.add_argument("--only", action="append", choices=ATTACKS)
    parser.add_argument("--report", type=pathlib.Path)
    arguments = parser.parse_args()
    system, env = System(), os.environ
    hostile_port, provider_port = int(env["HOSTILE_PORT"]), int(env["PROVIDER_PORT"])
    live = {"option_id": LIVE_OPTION, "name": "live", "provider": "usimsa", "provider_option_id": "x", "environment": "live"}
    system.esimctl("option", "apply", "-f", "-", text=json.dumps({"options": [live]}))
    option = next(one["option_id"] for one in system.esimctl("option", "list") if one["name"] == "ready")
    sink = int(env["SINK_PORT"])
    keys = {
        "good": system.partner("good", url=f"http://127.0.0.1:{sink}/"),
        "attacker": system.partner("attacker"),
        "live": system.partner("live attacker", "live"),
        "endpoints": {name: system.partner(name, url=f"http://127.0.0.66:{hostile_port}/{name}") for name in SLOW | LOUD},
    }
    ports = {"ingress_port": int(env["INGRESS_PORT"]), "sink_port": sink, "hostile_port": hostile_port, "provider_port": provider_port}
    settings = keys | ports | {
        "provisioner_port": int(env["PROVISIONER_PORT"]),
        "nats_port": int(env["NATS_PORT"]),
        "monitor_port": int(env["NATS_MONITOR_PORT"]),
        "nats_urls": {user: env[f"{user.upper()}_NATS_URL"] for user in ("ingress", "provisioner", "notifier")},
        "callback_token": env["SANDBOX_CALLBACK_TOKEN"],
        "option": option,
        "live_option": LIVE_OPTION,
    }
    system.slow_provider(arguments.latency)
    good = Good(ports | {"rate": arguments.rate, "keys": keys["good"], "option": option})
    if not await_(lambda: len(good.webhooks) > arguments.rate, 30):
        sys.exit("no webhook arrives")
    time.sleep(PAUSE)
    names, windows = arguments.only or ATTACKS, {}
    for name in names:
        calm, during = windows[name] = [], []
        for _ in range(arguments.cycles):
            calm.append(Window(system, good, arguments.seconds))
            during.append(attack(system, good, name, settings, arguments.seconds))
            time.sleep(PAUSE)
        print(f"{name}: {[one.seen for one in during]}", file=sys.stderr, flush=True)
    good.stop()
    allowed, problems, rows = limits(), [], []
    for name, (calm, during) in windows.items():
        for window in calm + during:
            window.read()
        row, wrong = judged(name, calm, during, allowed)
        rows.append(row)
        problems += [f"{name}: {one}" for one in wrong]
    problems += [f"no webhook of topup {topup}" for topup in good.missing()[:10]]
    problems += bought_once(system, keys["good"]["partner_id"], good)
    text = table(rows, allowed)
    print(text)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    quiet = statistics.median(percentile(one.answers, 0.99) for calm, _ in windows.values() for one in calm) * 1e3
    print(f"{len(good.orders)} orders of the good partner; p99 of the calm windows: {quiet:.1f} ms (median)", file=sys.stderr)
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
