#!/usr/bin/env python3
"""tests/load/queues.py [--out FILE.svg] [--today N]: a model of the queues, from the measured processor times.

An order costs F / b + v: F is the fixed cost of one trip of a batch through a process (wake-ups, round trips, flushes,
messages), v the order's own cost, b the number of orders that travel together. b is no input: a station takes everything
that waits for it, up to its limit, and what arrives meanwhile travels together next. So b grows with the load.

It prints what two cores do at several rates, beside what was measured, and then p50 and p99 of order -> webhook at 1, 10,
100 and 1,000 times today's load for each set-up. Fsync, network, provider and endpoints are left out.
"""

import argparse
import collections
import heapq
import math
import random

# Measured (docs/performance.md, "Light at every rate"): processor time per one-unit order, in microseconds, at 200
# orders/s, where an order travels alone, and in a closed loop of 256 connections. Release build with LTO.
MEASURED = {
    "database": (1540, 125),
    "provisioner": (730, 140),
    "nats": (715, 27),
    "ingress": (580, 92),
    "notifier": (430, 72),
    "sandbox": (300, 75),
    "generator": (190, 43),
}
# The orders that travelled together in that closed loop. Assumed; F and v follow from it.
TOGETHER = 30


def costs(measured, together=TOGETHER):
    """F and v of each process in seconds, from low = F + v and high = F / together + v."""
    fixed = {name: (low - high) / (1 - 1 / together) * 1e-6 for name, (low, high) in measured.items()}
    return {name: (fixed[name], low * 1e-6 - fixed[name]) for name, (low, _) in measured.items()}


def scaled(parts, fixed, own):
    """The same processes with other sums of F and v, for an older build of which only the sums are known."""
    sums = [sum(part) for part in zip(*parts.values())]
    return {name: (f * fixed / sums[0], v * own / sums[1]) for name, (f, v) in parts.items()}


# The way of an order: station, process that pays. A process is one loop, so all its visits wait in one queue. A
# statement is a loop of its own, because each waits only for the one before it; PostgreSQL runs them side by side. Each
# visit pays an equal part of its process' F and v (assumed). The record of a delivered webhook lingers and holds nothing
# up, so it is not a station: its cost is spread over the other statements.
BUY = [
    ("generator", "generator"),
    ("ingress", "ingress"),
    ("insert", "database"),
    ("nats", "nats"),
    ("claim", "database"),
    ("provisioner", "provisioner"),
    ("sandbox", "sandbox"),
    ("provisioner", "provisioner"),
]
# Once the provider has taken the order, the verdict goes back, ...
ANSWER = [("nats", "nats"), ("ingress", "ingress"), ("generator", "generator")]
# ... and meanwhile the profile is fetched and the webhook sent.
DELIVER = [
    ("sandbox", "sandbox"),
    ("provisioner", "provisioner"),
    ("settle", "database"),
    ("nats", "nats"),
    ("read", "database"),
    ("notifier", "notifier"),
    ("generator", "generator"),
]
# The most orders of one trip: BATCH in services/ingress/src/orders/accept.rs, the permits PROVIDER_CONCURRENCY of the
# provisioner, BATCH in services/provisioner/src/purchases/settle.rs, the permits DELIVERY_CONCURRENCY of the notifier, and
# BATCH in libs/pipeline/src/publish.rs. An event loop handles whatever is ready, so the others have none.
LIMITS = {"insert": 256, "claim": 256, "settle": 256, "read": 512, "nats": 1024}
# The process whose replicas each run such a statement.
CALLER = {"insert": "ingress", "claim": "provisioner", "settle": "provisioner", "read": "notifier"}
# PostgreSQL's share of work that one transaction after the other does (log insertion, commit order). Assumed.
SERIAL = 0.03
# The orders of one simulation. The first quarter is not counted: queues are still empty then.
ORDERS = 6_000


def primary(cores):
    """The cores that are left of a primary's by Amdahl's law."""
    return cores / (1 + SERIAL * (cores - 1))


# name: the cores that all share, or None if each process has a core of its own and only the database shares its cores;
# the replicas of each process; the cores of one primary; the shards. A process is one thread, so a trip never uses more
# than one core, and "16 cores for ingress" means 16 replicas. The sandbox and the generator are ours only in the first.
LARGE = {"ingress": 16, "provisioner": 24, "notifier": 10, "nats": 4}
SETUPS = {
    "2 cores for everything": (2, {}, None, 1),
    "one primary with 16 cores": (None, LARGE, 16, 1),
    "4 cells of it": (None, LARGE, 16, 4),
    "16 cells of it": (None, LARGE, 16, 16),
}


def capacity(setup, parts, together):
    """The rate that fills the set-up's cores if every trip carries so many orders, and what is full then."""
    shared, replicas, cores, shards = SETUPS[setup]
    cost = {name: fixed / together + own for name, (fixed, own) in parts.items()}
    if shared:
        return shared / sum(cost.values()), "processors"
    ends = [(primary(cores) / cost["database"], "database")]
    ends += [(count / cost[name], name) for name, count in replicas.items()]
    rate, name = min(ends)
    return rate * shards, name


class Cores:
    """Cores that are shared: all trips on them progress equally fast (processor sharing), and none uses more than one
    core. `clock` is the work that a trip would have got if it had been there from the start. So a trip that begins now
    with some work ends when `clock` has grown by that work; `trips` is a heap of these ends."""

    def __init__(self, count):
        self.count, self.trips, self.clock, self.updated, self.used = count, [], 0.0, 0.0, 0.0

    def speed(self):
        return min(1, self.count / len(self.trips)) if self.trips else 0

    def advance(self, now):
        done = (now - self.updated) * self.speed()
        self.clock += done
        self.used += done * len(self.trips)
        self.updated = now

    def next_end(self):
        return self.updated + (self.trips[0][0] - self.clock) / self.speed() if self.trips else math.inf


class Simulation:
    """Orders that arrive at random (`rate`), or as soon as one of `connections` has got its answer."""

    def __init__(self, setup, parts, rate=None, connections=0, orders=ORDERS, seed=1):
        self.chance = random.Random(seed)
        shared, self.replicas, cores, self.shards = SETUPS[setup]
        # Partners are divided among shards and nothing crosses them, so one shard with its part of the rate will do.
        self.rate, self.connections, self.orders = rate and rate / self.shards, connections, orders
        if shared:
            self.pools = [Cores(shared)]
            pool = dict.fromkeys(parts, self.pools[0])
        else:
            self.pools = [Cores(primary(cores)), Cores(sum(self.replicas.values()))]
            pool = {name: self.pools[name != "database"] for name in parts}
        # Without their cost the sandbox and the generator are no stations: orders skip them.
        paid = [step for step in BUY + ANSWER + DELIVER if shared or step[1] not in ("sandbox", "generator")]
        self.paths = [[step for step in path if step in paid] for path in (BUY, ANSWER, DELIVER)]
        visits = collections.Counter(process for _, process in paid)
        self.cost = {station: tuple(part / visits[name] for part in parts[name]) for station, name in paid}
        self.pool = {station: pool[name] for station, name in paid}
        self.waiting = collections.defaultdict(collections.deque)
        self.busy, self.began, self.home, self.answered, self.delivered = set(), [], [], {}, {}
        self.trips = self.carried = 0

    def arrive(self, now):
        if len(self.began) < self.orders:
            # An order stays with the replicas that it met.
            self.home.append({name: self.chance.randrange(count) for name, count in self.replicas.items()})
            self.began.append(now)
            self.visit(now, len(self.began) - 1, 0, 0)

    def visit(self, now, order, path, step):
        """Queues an order at its next station, or ends its path."""
        if step < len(self.paths[path]):
            station = self.paths[path][step][0]
            place = station, self.home[order].get(CALLER.get(station, station), 0)
            self.waiting[place].append((order, path, step))
            if place not in self.busy:
                self.start(place)
        elif path == 0:
            self.visit(now, order, 1, 0)
            self.visit(now, order, 2, 0)
        elif path == 1:
            self.answered[order] = now - self.began[order]
            if self.connections:
                self.arrive(now)
        else:
            self.delivered[order] = now - self.began[order]

    def start(self, place):
        """Starts a trip with everything that waits. Its orders go on together, because a statement answers when it
        commits, and a process sends what it has made of a batch as a batch. If each order of a process' trip went on
        alone, batches would fall apart at the next station, and two cores would end at 2,000 orders/s, which is less
        than measured."""
        queue, (fixed, own) = self.waiting[place], self.cost[place[0]]
        batch = [queue.popleft() for _ in range(min(len(queue), LIMITS.get(place[0], len(queue))))]
        if not batch:
            self.busy.discard(place)
            return
        self.busy.add(place)
        # How the times scatter is assumed: exponentially, around their means.
        work = self.chance.expovariate(1 / fixed) + sum(self.chance.expovariate(1 / own) for _ in batch)
        pool = self.pool[place[0]]
        self.trips += 1
        self.carried += len(batch)
        heapq.heappush(pool.trips, (pool.clock + work, self.trips, place, batch))

    def figures(self, now):
        return now, sum(pool.used for pool in self.pools), len(self.delivered), self.carried, self.trips

    def run(self):
        """Rate, processor time per order, busy cores, b, and the sorted times to the answer and to the webhook."""
        began = ended = None
        for _ in range(self.connections):
            self.arrive(0.0)
        arrival = self.chance.expovariate(self.rate) if self.rate else math.inf
        while True:
            pool = min(self.pools, key=Cores.next_end)
            now = min(pool.next_end(), arrival)
            if now == math.inf:
                break
            for each in self.pools:
                each.advance(now)
            # Figures are taken while orders arrive: between the first quarter's last webhook and the last arrival.
            if began is None and len(self.delivered) >= self.orders // 4:
                began = self.figures(now)
            if ended is None and len(self.began) == self.orders:
                ended = self.figures(now)
            if now == arrival:
                self.arrive(now)
                arrival = now + self.chance.expovariate(self.rate) if len(self.began) < self.orders else math.inf
            else:
                _, _, place, batch = heapq.heappop(pool.trips)
                self.start(place)
                for order, path, step in batch:
                    self.visit(now, order, path, step + 1)
        if began is None or ended is None or ended[2] <= began[2]:
            raise SystemExit("queues.py: too few orders for this rate; raise ORDERS")
        time, used, done, carried, trips = (end - start for start, end in zip(began, ended))
        answers, webhooks = (
            sorted(took[order] for order in took if order > self.orders // 4) for took in (self.answered, self.delivered)
        )
        return done / time * self.shards, used / done, used / time, carried / trips, answers, webhooks


def quantile(times, part):
    return times[int(len(times) * part)] * 1e3


# Measured on two cores, beside which the model is printed: the sums of F and v in ms if they are those of another build,
# orders/s (None: 256 connections), and the measured values (docs/performance.md). The older build is that of "From idle
# past saturation", commit dc50f8d; its F and v were estimated from the processor time at 200/s and with 256 connections.
CHECKS = [
    (None, 200, "4.4 to 4.5 ms, answer 3.5 to 4.2 / 6.4 to 9.5, webhook 5.0 to 5.7 / 9.7 to 14.5"),
    (None, None, "3,237 and 3,394/s, 0.54 and 0.59 ms, answer 73 to 78 / 114 to 125, webhook 126 to 134 / 197 to 213"),
    ((5.9, 0.4), None, "3,069 and 2,341/s, 0.60 and 0.74 ms, answer 80 / 148 and 108 / 181"),
    ((5.9, 0.4), 205, "6.5 ms, 1.34 cores, answer 7 / 24"),
    ((5.9, 0.4), 512, "3.1 ms, 1.61 cores, answer 15 / 298"),
    ((5.9, 0.4), 1024, "1.7 ms, 1.77 cores, answer 29 / 82"),
    ((5.9, 0.4), 2047, "0.9 ms, answer 81 / 416"),
]


def check(parts):
    setup = next(iter(SETUPS))
    print(f"{setup}: the model beside measurements (latencies: p50 / p99 in ms)")
    for older, rate, measured in CHECKS:
        used = scaled(parts, older[0] * 1e-3, older[1] * 1e-3) if older else parts
        simulation = Simulation(setup, used, rate, connections=0 if rate else 256)
        real, cost, busy, together, answer, webhook = simulation.run()
        build = f"F {older[0]}, v {older[1]} ms" if older else "now"
        load = f"{rate:,}/s" if rate else "256 connections"
        print(
            f"  {build}, {load}: {real:,.0f}/s, {cost * 1e3:.2f} ms, {busy:.2f} cores, b {together:.1f}, "
            f"answer {quantile(answer, 0.5):.1f} / {quantile(answer, 0.99):.1f}, "
            f"webhook {quantile(webhook, 0.5):.1f} / {quantile(webhook, 0.99):.1f}\n      measured: {measured}"
        )


def svg(lines, today):
    """The p99 of each set-up over the rate, both logarithmic."""
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
    parts.append(
        f'<text x="{width // 2}" y="{height - 8}" text-anchor="middle">'
        "orders per second; p99 of order → webhook, processor time and queueing only (model)</text>"
    )
    return "\n".join(parts + ["</svg>", ""])


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", help="write the plot to this file; takes two minutes")
    asked.add_argument("--today", type=int, default=20, help="orders per second today [20]")
    asked = asked.parse_args()
    parts = costs(MEASURED)
    fixed, own = (sum(part) * 1e3 for part in zip(*parts.values()))
    database = parts["database"]
    print(f"F = {fixed:.2f} ms and v = {own:.2f} ms; PostgreSQL's: {database[0] * 1e3:.2f} and {database[1] * 1e3:.2f} ms\n")
    check(parts)
    lines = {}
    for setup in SETUPS:
        # Batches larger than the measured ones are extrapolation, so a set-up counts as saturated at their size.
        alone, saturated = capacity(setup, parts, 1), capacity(setup, parts, TOGETHER)
        print(
            f"\n{setup}: full at b = 1 from {alone[0]:,.0f}/s ({alone[1]}), "
            f"saturated (b = {TOGETHER}) at {saturated[0]:,.0f}/s ({saturated[1]})"
        )
        for times in (1, 10, 100, 1000):
            rate = asked.today * times
            if rate >= saturated[0]:
                print(f"  {times:>5}×  {rate:>7,}/s  beyond saturation")
                continue
            _, cost, busy, together, _, webhook = Simulation(setup, parts, rate).run()
            print(
                f"  {times:>5}×  {rate:>7,}/s  {rate / saturated[0]:3.0%} of saturation  b {together:.1f}  "
                f"{cost * 1e3:.2f} ms per order  {busy:.2f} busy cores per shard  p50 {quantile(webhook, 0.5):.1f} ms  p99 {quantile(webhook, 0.99):.1f} ms"
            )
        points = []
        for step in range(19) if asked.out else ():
            rate = asked.today * 10 ** (step / 6)
            if rate < saturated[0]:
                real, *_, webhook = Simulation(setup, parts, rate).run()
                # Where the queues grow for ever, the latency only tells how long was simulated.
                if real > 0.95 * rate:
                    points.append((rate, quantile(webhook, 0.99) / 1e3))
        lines[setup] = points
    if asked.out:
        with open(asked.out, "w", encoding="utf-8") as file:
            file.write(svg(lines, asked.today))


if __name__ == "__main__":
    main()
