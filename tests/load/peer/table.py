"""tests/load/peer/table.py FOLDER SYSTEM…: the comparison of tests/load/peer/run as a table in Markdown.

FOLDER has the reports of the load generator, SYSTEM-TURN-KIND.json. A figure is the median of the turns; in brackets
are the least and the most. The exit status is 1 if an accepted order was not delivered.
"""

import json
import statistics
import sys
from pathlib import Path

NAMES = {"ours": "ours", "river": "`riverqueue` 0.5.0", "awa": "`awa` 0.6.9"}
SCENARIOS = [
    ("idle_in_tx_saturation", "a transaction held open"),
    ("active_readers", "four sessions that count the queue's rows in one snapshot"),
    ("sustained_high_load", "1.5 times as many orders as it delivers"),
    ("event_delivery_burst", "orders as fast as they are accepted, and their drain"),
    ("chaos_pool_exhaustion", "150 idle sessions"),
]
# What does not belong to a system. The peers do not use nats-server.
OTHERS = {"generator", "sandbox"}
LEFT_OUT = {"ours": OTHERS, "river": OTHERS | {"nats-server"}, "awa": OTHERS | {"nats-server"}}
# What a user of each gets. The code says so, and no run shows it.
PROMISES = [
    (
        "a crash between a purchase and its record",
        {
            "ours": "looked up, bought once",
            "river": "bought again, unless the provider refuses a known order id",
            "awa": "bought again, unless the provider refuses a known order id",
        },
    ),
    ("activation codes and keys at rest", {"ours": "encrypted", "river": "plain", "awa": "plain"}),
]


def read(folder, system, kind):
    """The reports of a kind of run, one for each turn."""
    paths = sorted(Path(folder).glob(f"{system}-*-{kind}.json"), key=lambda path: int(path.name.split("-")[1]))
    return [json.loads(path.read_text())["runs"][0] for path in paths]


def figure(values, digits=0):
    """The median, and the least and the most if there are several."""
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    texts = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return texts[0] if len(values) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"


def processor(run, system):
    """Microseconds per order of the processes of the system."""
    return sum(one["cpu_us_per_order"] for name, one in run["processes"].items() if name not in LEFT_OUT[system])


def database(run, _):
    return run["processes"].get("postgres", {}).get("cpu_us_per_order")


def memory(run, system):
    left_out = LEFT_OUT[system] | {"postgres"}
    return sum(one["peak_memory_mib"] for name, one in run["processes"].items() if name not in left_out)


def idle(run, system):
    """Milliseconds of processor time in an idle second."""
    watched = run["idle"]
    return watched and sum(ms for name, ms in watched["processor_ms"].items() if name not in LEFT_OUT[system])


def idle_commits(run, _):
    return run["idle"] and run["idle"]["counts"].get("commits")


def sustained(run):
    """Webhooks per second until the last one. In a burst the drain of what has queued counts, too."""
    if run["mode"] == "deliver" or run["rate"]:
        return run["webhooks_per_second"]
    return run["webhooks"] / (run["seconds"] + run["drain_seconds"])


def count(name):
    return lambda run, _: (run["counts"] or {}).get(name)


def latency(kind, quantile):
    return lambda run, _: (run[kind] or {}).get(quantile)


def row(label, systems, cell):
    return f"| {label} | " + " | ".join(cell(system) for system in systems) + " |"


def main():
    folder, systems = sys.argv[1], sys.argv[2:]
    runs = {(system, kind): read(folder, system, kind) for system in systems for kind in ["deliver", "open"]}

    def figures(kind, of, digits=0):
        return lambda system: figure([of(run, system) for run in runs[system, kind]], digits)

    rate = next((run["rate"] for run in runs[systems[0], "open"]), 0)
    rows = [
        ("order → webhook/s", figures("deliver", lambda run, _: run["webhooks_per_second"])),
        ("… ÷ pgbench", figures("deliver", lambda run, _: run["pgbench"] and run["webhooks_per_second"] / run["pgbench"], 3)),
        ("… processor time per order, µs", figures("deliver", processor)),
        ("… peak memory without PostgreSQL, MiB", figures("deliver", memory)),
        (f"at {rate}/s: answer p50, ms", figures("open", latency("answer", "p50_ms"), 1)),
        ("… answer p99, ms", figures("open", latency("answer", "p99_ms"), 1)),
        ("… order → webhook p50, ms", figures("open", latency("order_to_webhook", "p50_ms"), 1)),
        ("… order → webhook p99, ms", figures("open", latency("order_to_webhook", "p99_ms"), 1)),
        ("… processor time per order, µs", figures("open", processor)),
        ("… of which PostgreSQL", figures("open", database)),
        ("… bytes of the log per order", figures("open", count("wal_bytes"))),
        ("… whole pages in them", figures("open", count("full_pages"), 2)),
        ("… commits per order", figures("open", count("commits"), 1)),
        ("… flushes per order", figures("open", count("flushes"), 1)),
        ("… dead rows per order", figures("open", count("dead_rows"), 1)),
        ("without orders: processor time per second, ms", figures("open", idle)),
        ("… commits per second", figures("open", idle_commits)),
    ]
    print("| | " + " | ".join(NAMES[system] for system in systems) + " |")
    print("|---" * (len(systems) + 1) + "|")
    for label, cell in rows:
        print(row(label, systems, cell))

    for scenario, what in SCENARIOS:

        def kept(system):
            pressed = read(folder, system, scenario)
            shares = [
                100 * sustained(run) / clean["webhooks_per_second"]
                for run, clean in zip(pressed, runs[system, "deliver"])
                if clean["webhooks_per_second"]
            ]
            return figure(shares)

        print(row(f"`{scenario}`, {what}: % of the rate kept", systems, kept))

    everything = {
        system: [json.loads(path.read_text())["runs"][0] for path in Path(folder).glob(f"{system}-*.json")]
        for system in systems
    }

    def total(name):
        return lambda system: f"{sum(run[name] for run in everything[system]):,}"

    print(row("accepted topups, all runs", systems, total("accepted_topups")))
    print(row("… without webhook", systems, total("missing_webhooks")))
    print(row("… webhooks sent twice", systems, total("duplicate_webhooks")))
    errors = {system: sum(one["count"] for run in everything[system] for one in run["errors"].values()) for system in systems}
    print(row("… orders without 201", systems, lambda system: f"{errors[system]:,}"))
    for label, promised in PROMISES:
        print(row(label, systems, lambda system, promised=promised: promised[system]))
    missing = sum(run["missing_webhooks"] for one in everything.values() for run in one)
    none = [system for system in systems if not sum(run["accepted_topups"] for run in everything[system])]
    sys.exit(1 if missing or none else 0)


if __name__ == "__main__":
    main()
