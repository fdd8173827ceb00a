"""tests/load/turns.py TURNS LOG…: the latencies beside an archive run and without it, for tests/load/archive.

TURNS has a line for each turn: the time of its beginning, and its kind. Each LOG is one of pgbench.
"""

import statistics
import sys

# After a switch, what began before it still weighs on the server.
SETTLING = 0.5


def part(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def spread(values):
    quarters = [min(values), part(values, 0.25), statistics.median(values), part(values, 0.75), max(values)]
    return " / ".join(f"{value:.1f}" for value in quarters)


def read(turns, logs):
    """The latencies in milliseconds of each turn, by its kind. A transaction counts for the turn that all of it lies in."""
    switches = [(float(at), kind) for at, kind in (line.split() for line in open(turns))]
    times = [[] for _ in switches]
    for name in logs:
        for line in open(name):
            fields = line.split()
            if len(fields) < 6:
                continue  # pgbench was stopped while it wrote this line.
            took, end = int(fields[2]) / 1e6, int(fields[4]) + int(fields[5]) / 1e6
            index = max((i for i, (at, _) in enumerate(switches) if at <= end), default=None)
            in_turn = index is not None and index + 1 < len(switches)
            if in_turn and end - took >= switches[index][0] + SETTLING:
                times[index].append(took * 1000)
    kinds = {"beside": [], "alone": []}
    for (_, kind), values in zip(switches, times):
        if values:
            kinds[kind].append(values)
    return kinds["beside"], kinds["alone"]


def main():
    beside, alone = read(sys.argv[1], sys.argv[2:])
    # Two halves of the same kind differ by noise only.
    for name, turns in [
        ("beside the run", beside),
        ("alone", alone),
        ("  every second turn alone", alone[::2]),
        ("  the other turns alone", alone[1::2]),
    ]:
        every = [value for values in turns for value in values]
        print(f"{name}: {len(turns)} turns, {len(every)} orders, p50 {part(every, 0.5):.1f} ms, p99 {part(every, 0.99):.1f} ms")
        for share, label in [(0.5, "p50"), (0.99, "p99")]:
            of_turns = [part(values, share) for values in turns]
            print(f"    {label} of a turn, least / quarter / median / three quarters / most: {spread(of_turns)} ms")
    higher = sum(part(run, 0.99) > part(quiet, 0.99) for run, quiet in zip(beside, alone))
    print(f"p99 was higher beside the run than in the turn after it in {higher} of {min(len(beside), len(alone))} pairs")


main()
