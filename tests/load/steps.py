"""tests/load/steps.py LOAD LOCAL_DIR RATE SECONDS [LATENCY]: records one run of the load generator, for tests/load/steps.

Each write to a socket is an edge from one process to another. A step is the time from one edge of an order to the next
one in EDGES, so the table follows the way of one order through the system. The writes of other work, such as pulses, fall
between some orders' edges; the medians do not see them.
"""

import collections
import pathlib
import re
import statistics
import subprocess
import sys
import time

# What an order does: a name, the edge, and the step after which it is looked for. An edge "A flush" is a process of
# PostgreSQL that serves A and waits until the log is on the disk.
EDGES = [
    ("the partner sends the order", "load>ingress", None),
    ("ingress checks it and sends the insert", "ingress>postgres", 0),
    ("PostgreSQL stores it, without a flush if a verdict is awaited", "postgres>ingress", 1),
    ("ingress sends the job", "ingress>nats-server", 2),
    ("NATS stores the job and delivers it", "nats-server>provisioner", 3),
    ("the provisioner sends the claim", "provisioner>postgres", 4),
    ("PostgreSQL claims; its log begins to be flushed", "provisioner flush", 5),
    ("the flush on which the purchase rests", "postgres>provisioner", 6),
    ("the provisioner sends the purchase", "provisioner>sandbox", 7),
    ("the provider sells", "sandbox>provisioner", 8),
    ("the provisioner sends the verdict", "provisioner>nats-server", 9),
    ("NATS delivers the verdict", "nats-server>ingress", 10),
    ("ingress answers", "ingress>load", 11),
    ("beside the verdict, the provisioner asks for the profile", "provisioner>sandbox", 9),
    ("the provider returns the profile", "sandbox>provisioner", 13),
    ("the provisioner sends the settlement", "provisioner>postgres", 14),
    ("PostgreSQL settles", "postgres>provisioner", 15),
    ("the provisioner reports it", "provisioner>nats-server", 16),
    ("NATS delivers the report", "nats-server>ingress", 17),
    ("ingress sends the readiness event", "ingress>nats-server", 18),
    ("NATS stores the event and delivers it", "nats-server>notifier", 19),
    ("the notifier reads the webhook", "notifier>postgres", 20),
    ("PostgreSQL returns it", "postgres>notifier", 21),
    ("the notifier signs and sends the webhook", "notifier>load", 22),
]
WEBHOOK = len(EDGES) - 1
CALLS = ["write", "writev", "sendto", "sendmsg"]
# perf reports the writes of all processes; what is no socket of the system is left out below.
EVENTS = [f"syscalls:sys_enter_{call}" for call in CALLS] + ["syscalls:sys_enter_fdatasync"]
LINE = re.compile(r"^\s*(\d+)/(\d+)\s+([0-9.]+):\s+syscalls:sys_enter_(\w+):\s*(?:.*?fd: 0x([0-9a-f]+))?")


class Sockets:
    """Which process a socket of another one leads to. Connections come and go, so this is looked up again and again."""

    def __init__(self, run_dir):
        self.run_dir = run_dir
        self.peers = {}
        self.clients = {}

    def processes(self, load):
        """The processes of the system: pid and name."""
        found = {load: "load"}
        for file in self.run_dir.glob("*.pid"):
            pid = int(file.read_text().split()[0])
            found[pid] = file.stem
            if file.stem == "postgres":
                children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                found.update((int(child), "postgres") for child in children)
        return found

    def look(self, load):
        inodes = {}
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            local, remote = (int(fields[k].rsplit(":", 1)[1], 16) for k in (1, 2))
            inodes[fields[9]] = (local, remote)
        owners, ends = {}, {}
        for pid, name in self.processes(load).items():
            try:
                for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                    inode = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
                    if inode and inode[1] in inodes:
                        ends[pid, int(link.name)] = (name, inodes[inode[1]])
                        owners[inodes[inode[1]]] = name
            except FileNotFoundError:
                continue  # It ended, or closed this file, meanwhile.
        for (pid, fd), (name, (local, remote)) in ends.items():
            peer = owners.get((remote, local))
            if peer:
                self.peers[pid, fd] = f"{name}>{peer}"
                if name == "postgres":
                    self.clients[pid] = peer


def record(load, local, rate, seconds, latency):
    data = local / "steps.data"
    events = [part for event in EVENTS for part in ("-e", event)]
    run = [load, "--rate", rate, "--seconds", seconds, "--pgbench-seconds", "0"]
    run += [part for one in latency for part in ("--provider-latency", one)]
    perf = ["perf", "record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-o", str(data), *events, "--", *run]
    sockets = Sockets(local / "run")
    with open(local / "steps.log", "w") as log:
        running = subprocess.Popen(perf, stdout=log, stderr=subprocess.STDOUT)
        while running.poll() is None:
            children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            if children:
                sockets.look(int(children[0]))
            time.sleep(0.3)
    if running.returncode:
        sys.exit(f"the run failed; see {local}/steps.log")
    return data, sockets


def edges(data, sockets):
    """Each edge with its time in seconds, in order."""
    script = ["perf", "script", "-i", str(data), "--ns", "-F", "pid,tid,time,event,trace"]
    # It complains of each kind of event that has no field "trace".
    read = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    for line in read.stdout.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        pid, at, call = int(match[1]), float(match[3]), match[4]
        if call == "fdatasync":
            if pid in sockets.clients:
                yield at, f"{sockets.clients[pid]} flush"
        elif (pid, int(match[5], 16)) in sockets.peers:
            yield at, sockets.peers[pid, int(match[5], 16)]


def orders(found):
    """The edges of each order, up to the beginning of the next one."""
    order = []
    for at, edge in found:
        if edge == EDGES[0][1]:
            if order:
                yield order
            order = []
        elif not order:
            continue
        order.append((at, edge))


def times(order):
    """The time of each step of an order, or nothing for one that was not found."""
    at = [order[0][0]]
    for _, edge, after in EDGES[1:]:
        begin = at[after]
        at.append(None if begin is None else next((t for t, e in order if t > begin and e == edge), None))
    return at


def main():
    load, local, rate, seconds, *latency = sys.argv[1:]
    data, sockets = record(load, pathlib.Path(local), rate, seconds, latency)
    steps, totals, count, whole = collections.defaultdict(list), collections.defaultdict(list), 0, 0
    for order in orders(edges(data, sockets)):
        count += 1
        at = times(order)
        whole += at[WEBHOOK] is not None
        for k, (_, _, after) in enumerate(EDGES):
            if after is not None and at[k] is not None:
                steps[k].append((at[k] - at[after]) * 1e6)
                totals[k].append((at[k] - at[0]) * 1e6)
    if not whole:
        sys.exit(f"no order of {count} was followed to its webhook; see {local}/steps.log")
    print(f"{whole} of {count} orders were followed from the request to the webhook. Microseconds, medians:\n")
    print("| step | takes | since the order | found in |\n|---|---|---|---|")
    for k, (name, _, _) in enumerate(EDGES[1:], 1):
        if steps[k]:
            print(f"| {name} | {statistics.median(steps[k]):,.0f} | {statistics.median(totals[k]):,.0f} | {len(steps[k])} |")


main()
