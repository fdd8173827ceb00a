#!/usr/bin/env python3
"""tests/load/queues.py [--out FILE.svg] [--today N]: a model of the queues, from the measured processor times.

Orders arrive at random (Poisson) and pass ingress, PostgreSQL, the provisioner, the notifier. Each station has a number
of cores and one queue; a service takes the measured time, exponentially distributed. PostgreSQL has a serial part (the
log), so its cores add less and less. Provider and endpoints are left out: they add a delay, not a queue of ours.

It prints utilisation, p50 and p99 at 1, 10, 100 and 1,000 times today's load, and where each set-up bends.
"""

import argparse
import heapq
import math
import random

# docs/performance.md, "Where the time goes": processor time per one-unit order, in seconds.
INGRESS, DATABASE, PROVISIONER, NOTIFIER, NATS = 137e-6, 242e-6, 237e-6, 96e-6, 43e-6
# The share of PostgreSQL's time that one order after the other needs (log insertion, commit order). Assumed.
SERIAL = 0.03
ORDERS = 8_000


def database_cores(cores):
    """The cores that are left of PostgreSQL's by Amdahl's law."""
    return cores / (1 + SERIAL * (cores - 1))


# name: cores of the stages (ingress, provisioner, notifier, NATS), cores of one primary, shards
SETUPS = {
    "2 cores for everything": ((0.35, 0.6, 0.25, 0.15), 0.65, 1),
    "one primary with 16 cores": ((16, 24, 10, 4), 16, 1),
    "4 shards of it": ((64, 96, 40, 16), 16, 4),
    "16 shards of it": ((256, 384, 160, 64), 16, 16),
}


def stations(setup):
    (ingress, provisioner, notifier, nats), primary, shards = SETUPS[setup]
    database = shards * (database_cores(primary) if primary > 1 else primary)
    # An order passes the database three times: stored, settled, delivered.
    third = DATABASE / 3
    return [
        ("ingress", INGRESS, ingress),
        ("database", third, database / 3),
        ("nats", NATS, nats),
        ("provisioner", PROVISIONER, provisioner),
        ("database", third, database / 3),
        ("notifier", NOTIFIER, notifier),
        ("database", third, database / 3),
    ]


def capacity(setup):
    """Orders per second, and the station that ends first."""
    return min((cores / time, name) for name, time, cores in stations(setup))


def simulate(setup, rate, seed=1):
    """The sorted times of orders in the system, without the first quarter."""
    chance = random.Random(seed)
    steps = stations(setup)
    # A station with a part of a core has one that is slower; whole cores serve at full speed.
    servers = [max(1, math.floor(cores)) for _, _, cores in steps]
    times = [time * count / cores for (_, time, cores), count in zip(steps, servers)]
    free = [[0.0] * count for count in servers]
    clock, events, taken, began = 0.0, [], [], {}
    for number in range(ORDERS):
        clock += chance.expovariate(rate)
        began[number] = clock
        events.append((clock, number, 0))
    heapq.heapify(events)
    while events:
        now, number, step = heapq.heappop(events)
        if step == len(steps):
            if number > ORDERS // 4:
                taken.append(now - began[number])
            continue
        at = max(now, free[step][0])
        end = at + chance.expovariate(1 / times[step])
        heapq.heapreplace(free[step], end)
        heapq.heappush(events, (end, number, step + 1))
    return sorted(taken)


def svg(lines, today):
    width, height, left, bottom = 760, 420, 70, 50
    low, high, fast, slow = math.log10(today), math.log10(today * 1000), -3.5, 1.0

    def at(rate, p99):
        x = left + (math.log10(rate) - low) / (high - low) * (width - left - 20)
        y = height - bottom - (max(fast, min(slow, math.log10(p99))) - fast) / (slow - fast) * (height - bottom - 20)
        return x, y

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for times in (1, 10, 100, 1000):
        x, _ = at(today * times, 1)
        parts.append(f'<line x1="{x:.0f}" y1="20" x2="{x:.0f}" y2="{height - bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - 30}" text-anchor="middle">{today * times:,}/s ({times}×)</text>')
    for power in (-3, -2, -1, 0, 1):
        _, y = at(today, 10**power)
        parts.append(f'<line x1="{left}" y1="{y:.0f}" x2="{width - 20}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{1000 * 10**power:g} ms</text>')
    colours = ("#c0392b", "#2980b9", "#27ae60", "#8e44ad")
    for index, (name, points) in enumerate(lines.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[index]}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 12}" y="{36 + 16 * index}" fill="{colours[index]}">{name}</text>')
    parts.append(f'<text x="{width // 2}" y="{height - 8}" text-anchor="middle">orders per second; p99 in our processes (model)</text>')
    return "\n".join(parts + ["</svg>", ""])


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", help="write the plot to this file")
    asked.add_argument("--today", type=int, default=20, help="orders per second today [20]")
    asked = asked.parse_args()
    lines = {}
    for setup in SETUPS:
        most, name = capacity(setup)
        print(f"\n{setup}: ends at {most:,.0f} orders/s, by {name}")
        for times in (1, 10, 100, 1000):
            rate = asked.today * times
            if rate >= most:
                print(f"  {times:>5}×  {rate:>7,}/s  beyond its end: the queue grows by {rate - most:,.0f} orders/s")
                continue
            taken = simulate(setup, rate)
            middle, late = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
            print(f"  {times:>5}×  {rate:>7,}/s  used {rate / most:4.0%}  p50 {middle * 1e3:7.2f} ms  p99 {late * 1e3:7.2f} ms")
        points = []
        for step in range(37):
            rate = asked.today * 10 ** (step / 12)
            if rate > most * 1.5:
                break
            taken = simulate(setup, rate)
            points.append((rate, taken[len(taken) * 99 // 100]))
        lines[setup] = points
    if asked.out:
        with open(asked.out, "w", encoding="utf-8") as file:
            file.write(svg(lines, asked.today))


if __name__ == "__main__":
    main()
