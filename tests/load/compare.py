"""tests/load/compare.py RUNS KEY…: the table of tests/load/compare.

RUNS/WORK/KEY/TURN.json is the report of one run. The first KEY is what the others are compared with.
"""

import json
import statistics
import sys
from pathlib import Path

SERVICES = ["ingress", "provisioner", "notifier"]


def of_services(run, field):
    return sum(run["processes"][name][field] for name in SERVICES if name in run["processes"])


def of_all(run, field):
    return sum(process[field] for name, process in run["processes"].items() if name not in ("generator", "sandbox"))


OPEN = [
    ("answer p50, ms", lambda run: run["answer"]["p50_ms"]),
    ("answer p99, ms", lambda run: run["answer"]["p99_ms"]),
    ("order → webhook p50, ms", lambda run: run["order_to_webhook"]["p50_ms"]),
    ("order → webhook p99, ms", lambda run: run["order_to_webhook"]["p99_ms"]),
    ("processor time of the services per order, µs", lambda run: of_services(run, "cpu_us_per_order")),
    ("… with PostgreSQL and NATS, µs", lambda run: of_all(run, "cpu_us_per_order")),
]
CLOSED = [
    ("order → webhook, 1/s", lambda run: run["webhooks_per_second"]),
    ("processor time of the services per order, µs", lambda run: of_services(run, "cpu_us_per_order")),
    ("… with PostgreSQL and NATS, µs", lambda run: of_all(run, "cpu_us_per_order")),
    ("peak memory of the services, MiB", lambda run: of_services(run, "peak_memory_mib")),
]
IDLE = [
    (
        "processor time of an idle second, ms",
        lambda run: sum(time for name, time in run["idle"]["processor_ms"].items() if name != "sandbox"),
    ),
    (
        "… of the services, ms",
        lambda run: sum(run["idle"]["processor_ms"].get(name, 0) for name in SERVICES),
    ),
    ("peak memory of the services, MiB", lambda run: of_services(run, "peak_memory_mib")),
]
WORKS = {"rate": OPEN, "at-once": OPEN, "64": CLOSED, "256": CLOSED, "idle": IDLE}


def spread(values):
    """How far the values lie apart, as a share of their median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def verdict(base, values):
    """Whether two sets of turns differ: only if no turn of the one lies among those of the other."""
    if len(base) < 2 or len(values) < 2:
        return "one turn says nothing"
    if max(values) < min(base):
        return "lower"
    if min(values) > max(base):
        return "higher"
    return "noise"


def row(name, base, values):
    ratio = statistics.median(values) / statistics.median(base) if statistics.median(base) else float("nan")
    apart = max(spread(base), spread(values))
    figures = f"{statistics.median(base):.1f} | {statistics.median(values):.1f} | {ratio:.2f}"
    return f"| {name} | {figures} | {apart:.0%} | {verdict(base, values)} |"


def read(folder, figure):
    return [figure(run) for path in sorted(folder.glob("*.json")) for run in json.loads(path.read_text())["runs"]]


def tables(runs, keys):
    for key in keys[1:]:
        for work, figures in WORKS.items():
            if not (runs / work / key).is_dir():
                continue
            yield f"\n{work}\n"
            yield f"| | {keys[0]} | {key} | ratio | turns apart | difference |"
            yield "|---|---|---|---|---|---|"
            for name, figure in figures:
                yield row(name, read(runs / work / keys[0], figure), read(runs / work / key, figure))


if __name__ == "__main__":
    print("\n".join(tables(Path(sys.argv[1]), sys.argv[2:])))
