"""work.py PROGRAM TARGET…: what the largest inputs cost each target, in instructions and not in time.

Each shape is built twice, one four times as long as the other. valgrind counts the instructions that the target executes for
each of them, so that neither the machine nor its load matters. Work that is linear is at most four times as much; work that
grows with the square is sixteen times as much. PROGRAM is the one that tests/fuzz/run builds."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

SHORT, LONG = 15_000, 60_000  # The largest body has 64 KiB, and http reads no longer target.
MOST_GROWTH = 6.0  # 4 is linear; sets and sorted maps cost a little more with each entry.
FUNCTION = "rust_fuzzer_test_input"

OPTION = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
ORDER = f'{{"external_order_id":"n1","products":[{{"option_id":"{OPTION}","qty":1}}],"note":%s}}'


def filled(size, make, joint=","):
    """Pieces of make(number) until they have this size."""
    pieces, length = [], 0
    while length < size:
        pieces.append(make(len(pieces)))
        length += len(pieces[-1]) + len(joint)
    return joint.join(pieces)


def nested(size, levels):
    return "[" * levels + filled(size, lambda _: "{}") + "]" * levels


JSON = {
    "empty objects": lambda size: ORDER % f"[{filled(size, lambda _: '{}')}]",
    "empty lists": lambda size: ORDER % f"[{filled(size, lambda _: '[]')}]",
    "deeply nested": lambda size: ORDER % nested(size, 120),
    "nested again and again": lambda size: ORDER % f"[{filled(size, lambda _: '[' * 100 + ']' * 100)}]",
    "distinct keys": lambda size: "{" + filled(size, lambda n: f'"k{n}":1') + "}",
    "distinct keys inside": lambda size: ORDER % ("{" + filled(size, lambda n: f'"k{n}":{{}}') + "}"),
    "a key twice at the end": lambda size: ORDER % ("{" + filled(size, lambda n: f'"k{n}":1') + ',"k0":1}'),
    "items": lambda size: '{"external_order_id":"n1","products":[' + filled(size, lambda _: '{"option_id":"x","qty":0}') + "]}",
    "a long text": lambda size: ORDER % f'"{filled(size, lambda _: chr(92) + "u0071", "")}"',
    "a long number": lambda size: ORDER % ("7" * size),
}
QUERY = {
    "distinct parameters": lambda size: filled(size, lambda n: f"p{n}", "&"),
    "a parameter again and again": lambda size: filled(size, lambda _: "limit=1", "&"),
    "escapes": lambda size: filled(size, lambda _: "%C3%A9", ""),
    "empty parameters": lambda size: "&" * size,
}
TEXT = {
    "labels": lambda size: "https://" + filled(size, lambda _: "a", ".") + "/",
    "dollars": lambda size: "LPA:1$" + "$" * size,
    "lines": lambda size: "\x06" + filled(size, lambda _: "GET /", "\n"),
    "slashes": lambda size: "LPA%3A1%24a" + filled(size, lambda _: "%2F", "/") + "/1024",
}
SHAPES = {
    "body": JSON,
    "fields": JSON,
    "callback": JSON,
    "provider": JSON,
    "airalo": JSON,
    "esim-access": JSON,
    "query": QUERY,
    "endpoint": JSON | TEXT,
    "qr": QUERY | TEXT,
    "signature": QUERY | TEXT,
    "lpa": TEXT,
    "url": QUERY | TEXT,
}


def instructions(program, target, inputs):
    """The instructions that the target executes for each of these inputs."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = []
        for number, one in enumerate(inputs):
            files.append(folder / f"input-{number:03}")
            files[-1].write_text(one)
        command = [
            "valgrind", "--tool=callgrind", f"--toggle-collect={FUNCTION}", f"--dump-after={FUNCTION}",
            f"--callgrind-out-file={folder}/counted", "--quiet", program, "-rss_limit_mb=0", *map(str, files),
        ]  # fmt: skip
        ran = subprocess.run(command, env=os.environ | {"FUZZ_TARGET": target}, cwd=folder, capture_output=True, text=True)
        if ran.returncode:
            raise SystemExit(f"{target}: {' '.join(command)}\n{ran.stderr[-2000:]}")
        counted = []
        for dump in sorted(folder.glob("counted.*"), key=lambda dump: int(dump.suffix[1:])):
            totals = [line for line in dump.read_text().splitlines() if line.startswith(("totals:", "summary:"))]
            counted.append(int(totals[-1].split()[1]))
        # libFuzzer runs the target once without input before the first one.
        return [number for number in counted if number][-len(inputs) :]


def judge(program, target):
    shapes = SHAPES[target]
    inputs = [make(size) for make in shapes.values() for size in (SHORT, LONG)]
    # The first input also pays for what is made once, such as the certificates of TLS.
    counted = instructions(program, target, [inputs[0], *inputs])[1:]
    if len(counted) != len(inputs):
        raise SystemExit(f"{target}: {len(inputs)} inputs, but {len(counted)} were counted")
    rows = []
    for index, name in enumerate(shapes):
        short, long = counted[2 * index], counted[2 * index + 1]
        rows.append((target, name, short, long, long / short))
    return rows


def main():
    program, targets = os.path.abspath(sys.argv[1]), sys.argv[2:]
    unknown = [target for target in targets if target not in SHAPES]
    if unknown:
        raise SystemExit(f"tests/fuzz/work.py, SHAPES: add the shapes of {', '.join(unknown)}")
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for rows in pool.map(lambda target: judge(program, target), targets):
            for target, name, short, long, growth in rows:
                print(f"  {target:12} {name:28} {short:12,} {long:13,} {growth:5.1f}")
            wrong += [row for row in rows if row[-1] > MOST_GROWTH]
    for target, name, _, _, growth in wrong:
        print(f"{target}: four times as much of {name!r} is {growth:.1f} times the work; at most {MOST_GROWTH} is linear")
    raise SystemExit(1 if wrong else 0)


main()
