#!/usr/bin/env python3
"""tests/shell/house.py [ROOT]: the arrows of the house run down, and no program decides by prose.

It reads the sources of all crates and draws an arrow from each file to the files whose items it names,
whether by `use` or by a path in the code. It fails, with one line for each fault, if

- files name each other in a circle;
- a module is a folder's mod.rs, where all others are a file beside their folder;
- an arrow runs up, or sideways into another room, in the floors that house.toml declares: those of the
  crates, and those within a crate;
- code compares or takes apart a text that is meant for people: a field or column named reason, message,
  command, detail or text. A state that a program reads is a code (decision 35);
- a file of desk reads orders, placements or units, and gives out what it has read without `Unflushed`
  (store::Unflushed), so that it may be told before it is on disk;
- a file of a lib or a service begins a transaction elsewhere than at the door, pg::transaction;
- a field named state holds a text instead of an enum, so that any text could stand there;
- two files declare a type of the same name that other files can name (`pub`, `pub(crate)`, `pub(super)`): whoever
  reads or searches the name would find several meanings. Types that are private to a file need no such name, and
  house.toml lists the few names that each program has;
- a comment is wider than 100 columns, but for tables, drawings in code blocks, and what a published document repeats
  with its line ends (docs/*.json);
- docs/architecture.md or CONTRIBUTING.md names a file that is not there, or, beside it in a table, a function or
  another name that the file has not; or CONTRIBUTING.md names a test that is not there;
- a fault that house.toml lists as known is gone. So that list can only shrink.

A re-export (`pub use`) is no arrow: whoever names the item through it has an arrow to the file that
defines the item, and to the file that passes it on, unless that is a module above its own. Test code does
not count. tests/shell/test_house.py shows that each rule can fail.
"""

import json
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

PROSE = "reason|message|command|detail|text"
ACCESS = rf"\.(?:{PROSE})\b(?:\(\))?"
ADAPTERS = r"(?:\s*\.(?:as_deref|as_str|as_ref|trim|to_lowercase|unwrap_or_default|clone)\(\))*"
TAKES_APART = r"(?:contains|starts_with|ends_with|strip_prefix|strip_suffix|split_once|is_some_and)"
# A name of an enum or of one of its variants is a code.
CODE = r"(?!\s*&?(?:Some\(|(?!Some\())(?:\w+::)*[A-Z][a-z])"
DECISIONS = [
    re.compile(rf"{ACCESS}{ADAPTERS}\s*(?:==|!=){CODE}"),
    re.compile(rf"{ACCESS}{ADAPTERS}\s*\.{TAKES_APART}\("),
    re.compile(rf"(?:==|!=)\s*&?\*?\w+{ACCESS}"),
    re.compile(rf"match\s+[\w.]+{ACCESS}\s*\.as_(?:str|deref)\(\)\s*\{{"),
    re.compile(rf"(?<![.\w])(?:reason|command|detail){ADAPTERS}\s*\.(?:contains|starts_with|ends_with|strip_prefix|strip_suffix|split_once)\("),
    re.compile(rf"(?<![.\w])(?:reason|command|detail)(?:\.as_deref\(\)|\.as_str\(\))?\s*(?:==|!=){CODE}"),
]
# A field of a struct, or a parameter, that is a state as text.
STATE = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))?\s+)?(?:\w+_)?state\s*:\s*(?:Option<\s*)?&?(?:String|str)\b", re.M)
# A type that other files can name.
PUBLIC = re.compile(r"^[ \t]*pub(?:\([^)]*\))?\s+(?:unsafe\s+)?(?:struct|enum|union|trait|type)\s+(\w+)", re.M)
# Tables whose rows may be read before they are flushed.
ORDERS = re.compile(r"\b(?:FROM|JOIN) (?:orders|placements|topups|partner_units)\b")
# What begins a transaction.
BEGINS = re.compile(r"\.begin\(\)|\.begin_with\(|\bConnection::begin\(")
# Columns in SQL, which stand in strings. What `SET` writes is no decision.
SQL = re.compile(
    r"\b(?:WHERE|AND|OR|NOT|WHEN|ON|\()\s*(?:\w+\.)?(?:reason|message|command|detail)"
    r"\s*(?:=|<>|~\*?|(?:NOT\s+)?I?LIKE|(?:NOT\s+)?IN\s*\()\s*'"
)
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hash>\#*)".*?"(?P=hash)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""",
    re.S,
)
PATH = re.compile(r"(?<![\w:.])(?:r#)?([A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)+)")


def without_text(source):
    """The code without comments and strings; line ends stay."""

    def blank(match):
        text = match.group()
        lines = "\n" * text.count("\n")
        return lines if text.startswith("/") else f'""{lines}'

    return TOKEN.sub(blank, source)


def block_end(code, start):
    """The end of the item that begins at start: after its block, or its semicolon."""
    depth = 0
    for at in range(start, len(code)):
        if code[at] == "{":
            depth += 1
        elif code[at] == "}":
            depth -= 1
            if depth == 0:
                return at + 1
        elif code[at] == ";" and depth == 0:
            return at + 1
    return len(code)


def without_tests(code, also=None):
    """The code without what is compiled for tests only. `also` is a text of the same shape to cut alike."""
    attribute = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]|#\[(?:tokio::)?test\b[^\]]*\]")
    at = 0
    while match := attribute.search(code, at):
        end = block_end(code, match.end())
        blank = "\n" * code.count("\n", match.start(), end)
        code = code[: match.start()] + blank + code[end:]
        at = match.start()
    return code


def use_paths(tree, prefix=()):
    """The paths of a use tree as (segments, name), where name is what the item is called here."""
    tree = tree.strip()
    if tree.startswith("{") and tree.endswith("}"):
        depth, part, parts = 0, "", []
        for letter in tree[1:-1]:
            depth += letter == "{"
            depth -= letter == "}"
            if letter == "," and depth == 0:
                parts.append(part)
                part = ""
            else:
                part += letter
        for part in parts + [part]:
            if part.strip():
                yield from use_paths(part, prefix)
        return
    head, sep, rest = tree.partition("::")
    if sep:
        yield from use_paths(rest, prefix + (head.strip(),))
        return
    name = tree.split(" as ")
    item = name[0].strip()
    segments = prefix if item == "self" else prefix + (item,)
    yield segments, name[-1].strip() if len(name) > 1 else (segments[-1] if segments else item)


class Module:
    def __init__(self, path, file):
        self.path, self.file = path, file
        self.children, self.names, self.code, self.uses = {}, {}, "", []


class Crate:
    """The modules of one crate, and the arrows between its files."""

    def __init__(self, root):
        self.modules = {}
        entry = [root / "src/lib.rs", root / "src/main.rs"]
        self.entry = next((file for file in entry if file.exists()), None)
        if self.entry:
            self.load((), self.entry, root / "src")

    def load(self, path, file, folder):
        module = Module(path, file)
        self.modules[path] = module
        self.read(module, without_tests(without_text(file.read_text())), folder)

    def read(self, module, code, folder):
        for match in list(re.finditer(r"(#\[path[^\]]*\]\s*)?\bmod\s+(\w+)\s*(;|\{)", code)):
            name = match.group(2)
            if match.group(3) == ";":
                file = folder / f"{name}.rs"
                if file.exists():
                    module.children[name] = module.path + (name,)
                    self.load(module.path + (name,), file, folder / name)
            else:
                end = block_end(code, match.start())
                inner = Module(module.path + (name,), module.file)
                module.children[name] = inner.path
                self.modules[inner.path] = inner
                body = code[match.end() : end - 1]
                code = code[: match.start()] + " " * (end - match.start()) + code[end:]
                self.read(inner, body, folder / name)
        for match in re.finditer(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);", code):
            for segments, name in use_paths(match.group(2)):
                module.uses.append((segments, name, bool(match.group(1))))
                module.names[name] = segments
        module.code = re.sub(r"\buse\s+[^;]+;", "", code)

    def resolve(self, at, segments, depth=0, through=None):
        """The module that defines the item which the path names, or None if it is of another crate. The
        modules that only pass the item on, by `pub use`, are added to `through`."""
        if depth > 12 or not segments:
            return None
        module, rest = self.modules[at], list(segments)
        head = rest[0]
        if head == "crate":
            module, rest = self.modules[()], rest[1:]
        elif head in ("self", "super"):
            while rest and rest[0] in ("self", "super"):
                if rest[0] == "super":
                    if not module.path:
                        return None
                    module = self.modules[module.path[:-1]]
                rest = rest[1:]
        elif head in module.children:
            pass
        elif head in module.names and tuple(module.names[head]) != tuple(segments[:1]):
            return self.resolve(at, list(module.names[head]) + rest[1:], depth + 1, through)
        else:
            return None
        while rest:
            head = rest[0]
            if head in module.children:
                module, rest = self.modules[module.children[head]], rest[1:]
            elif head in module.names:
                found = self.resolve(module.path, list(module.names[head]) + rest[1:], depth + 1, through)
                if through is not None:
                    through.append(module)
                return found
            else:
                break
        return module

    def arrows(self):
        found = defaultdict(set)
        for at, module in self.modules.items():
            paths = [segments for segments, _, public in module.uses if not public]
            paths += [re.split(r"\s*::\s*", match.group(1)) for match in PATH.finditer(module.code)]
            for segments in paths:
                through = []
                target = self.resolve(at, segments, through=through)
                for named in [target, *(one for one in through if one.path != at[: len(one.path)])]:
                    if named and named.file != module.file:
                        found[module.file].add(named.file)
        return found


def circles(arrows):
    """The strongly connected sets of more than one file (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []
    sys.setrecursionlimit(10_000)

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for after in sorted(arrows.get(node, ())):
            if after not in index:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in on:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            members = set()
            while True:
                member = stack.pop()
                on.discard(member)
                members.add(member)
                if member == node:
                    break
            if len(members) > 1:
                found.append(members)

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def place(floors, name):
    """The floor and the room of a file or a crate: those of the longest entry that it begins with."""
    best = None
    for number, rooms in enumerate(floors):
        for room, entries in enumerate(rooms):
            for entry in entries:
                inside = name in (entry, f"{entry}.rs") or name.startswith(entry + "/")
                if inside and (best is None or len(entry) > best[2]):
                    best = (number, room, len(entry))
    return best and best[:2]


def runs_down(mine, theirs):
    """Whether an arrow from one place to another stays in its room or leads to a lower floor."""
    return mine == theirs or theirs[0] < mine[0]


def path_in_the_code(root):
    """What docs/architecture.md names and the code does not have."""
    page = root / "docs/architecture.md"
    for line in page.read_text().splitlines() if page.exists() else []:
        named = re.findall(r"`([\w./-]+)`", line)
        files = [name for name in named if name.endswith(".rs")]
        missing = [name for name in files if not (root / name).exists()]
        yield from (f"docs/architecture.md names a file that is not there: {name}" for name in missing)
        if files and not missing and line.startswith("|"):
            # Each function stands behind its file.
            file = files[0]
            for name in named:
                if name in files:
                    file = name
                elif not re.search(rf"\bfn {re.escape(name)}\b", (root / file).read_text()):
                    yield f"docs/architecture.md names the function {name}, which {file} has not"


# Files that each crate has, so that a recipe may name them without their folder.
EACH_CRATE = {"main.rs", "lib.rs", "metrics.rs"}


def recipes(root):
    """What CONTRIBUTING.md names and the code does not have: a file, or what a row of a table names beside its files."""
    page = root / "CONTRIBUTING.md"
    tests = None
    for line in page.read_text().splitlines() if page.exists() else []:
        spans = [span for span in re.findall(r"`([^`\s]+)`", line) if "NAME" not in span and not span.startswith(".local")]
        files = [name for name in spans if re.fullmatch(r"[\w.-]+(/[\w.-]+)+|[\w-]+\.(rs|md)|\.sqlx", name)]
        missing = [name for name in files if not (root / name).exists() and name not in EACH_CRATE]
        yield from (f"CONTRIBUTING.md names a file that is not there: {name}" for name in missing)
        if not line.startswith("|") or missing:
            continue
        sources = [file for name in files for file in inside(root / name)]
        for name in spans:
            if re.fullmatch(r"[a-z]\w*(_\w+){3,}", name):
                tests = tests or "".join(file.read_text() for part in ("libs", "services", "tests") for file in (root / part).rglob("*.rs"))
                if not re.search(rf"\bfn {name}\b", tests):
                    yield f"CONTRIBUTING.md names the test {name}, which is not there"
            elif sources and re.fullmatch(r"[A-Za-z][\w-]*(::\w+)*", name):
                last = re.escape(name.split("::")[-1])
                if not any(re.search(rf"\b{last}\b", file.read_text()) for file in sources):
                    yield f"CONTRIBUTING.md names {name}, which {' and '.join(files)} has not"


def wide_comments(root):
    """The lines of comments over 100 columns."""
    published = "".join(file.read_text() for file in sorted((root / "docs").glob("*.json")))
    for part in ("libs", "services", "tests"):
        for file in sorted((root / part).rglob("*.rs")):
            if file.is_symlink() or "target" in file.relative_to(root).parts:
                continue
            in_block = False
            for number, line in enumerate(file.read_text().split("\n"), 1):
                text = re.match(r"\s*//[/!]? ?(.*)", line)
                if text is None:
                    in_block = False
                elif text.group(1).startswith("```"):
                    in_block = not in_block
                elif len(line) > 100 and not in_block and not text.group(1).startswith("|"):
                    if json.dumps(text.group(1), ensure_ascii=False)[1:-1] not in published:
                        yield f"a comment has {len(line)} columns instead of 100: {file.relative_to(root)} (line {number})"


def inside(path):
    """The file, or the text files of the folder."""
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.suffix in (".rs", ".sql", ".md", ".py", ".ts")] if path.is_dir() else []


def check(root):
    """The faults, as lines."""
    root = Path(root)
    house = tomllib.loads((root / "tests/shell/house.toml").read_text())
    known = house.get("known", {})
    manifests = [
        file
        for pattern in tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["members"]
        for file in sorted(root.glob(f"{pattern}/Cargo.toml"))
    ]
    faults, arrows_between_files, steps, decisions = [], {}, set(), set()
    states, unflushed, doors = set(), set(), set()
    declared = defaultdict(set)

    crates = {}
    for manifest in manifests:
        text = tomllib.loads(manifest.read_text())
        crates[text["package"]["name"]] = (manifest.parent, text)
    for name, (folder, manifest) in crates.items():
        mine = place(house["crates"]["floors"], name)
        if mine is None:
            faults.append(f"crate {name} has no floor in house.toml")
            continue
        for other in manifest.get("dependencies", {}):
            theirs = place(house["crates"]["floors"], other) if other in crates else None
            if theirs and (mine == theirs or not runs_down(mine, theirs)):
                steps.add(f"crate {name} -> crate {other}")

        def short(file):
            return str(file.relative_to(root))

        for file in sorted((folder / "src").rglob("mod.rs")):
            faults.append(f"a module is a file beside its folder: {short(file)} has to be {short(file.parent)}.rs")
        drawn = Crate(folder).arrows()
        arrows = {short(file): {short(to) for to in targets} for file, targets in drawn.items()}
        arrows_between_files.update(arrows)
        floors = house.get("floors", {}).get(str(folder.relative_to(root)))
        if floors:
            source = f"{folder.relative_to(root)}/src/"
            for file in sorted((folder / "src").rglob("*.rs")):
                inner = short(file).removeprefix(source)
                if place(floors, inner) is None and "tests" not in inner:
                    faults.append(f"{short(file)} has no floor in house.toml")
            for file, targets in arrows.items():
                mine = place(floors, file.removeprefix(source))
                for target in targets:
                    theirs = place(floors, target.removeprefix(source))
                    if mine and theirs and not runs_down(mine, theirs):
                        steps.add(f"{file} -> {target}")

        for file in sorted((folder / "src").rglob("*.rs")):
            if file.name == "tests.rs" or short(file).startswith("tests/"):
                continue
            raw = file.read_text()
            if short(file).startswith("libs/desk/") and ORDERS.search(raw) and "Unflushed" not in raw:
                unflushed.add(short(file))
            code = without_tests(without_text(raw))
            if short(file).startswith(("libs/", "services/")) and BEGINS.search(code):
                doors.add(short(file))
            if short(file).startswith(("libs/", "services/")):
                for match in PUBLIC.finditer(code):
                    declared[match.group(1)].add(short(file))
            for match in STATE.finditer(code):
                states.add(f"{short(file)}: {' '.join(match.group().split())}")
            for rule in DECISIONS:
                for match in rule.finditer(code):
                    line = code.count("\n", 0, match.start()) + 1
                    what = " ".join(match.group().split())
                    decisions.add((f"{short(file)}: {what}", line))
            for number, line in enumerate(raw.split("\n"), 1):
                # Comments may quote anything.
                if not line.lstrip().startswith(("//", "--")):
                    for match in SQL.finditer(line.split(" -- ")[0]):
                        decisions.add((f"{short(file)}: {' '.join(match.group().split())}", number))

    shared = {name: files for name, files in declared.items() if len(files) > 1}
    common = house.get("shared_names", {})
    for name in sorted(shared.keys() - common.keys()):
        faults.append(f"several files declare a public type {name}: {', '.join(sorted(shared[name]))}")
    faults.extend(f"house.toml lists what is gone: {name}" for name in sorted(common.keys() - shared.keys()))
    # The known circles are listed as the arrows that have to go.
    to_go = {tuple(arrow.split(" -> ")) for arrow in known.get("circles", [])}
    left = {file: {to for to in targets if (file, to) not in to_go} for file, targets in arrows_between_files.items()}
    for loop in circles(left):
        inside = sorted(f"{a} -> {b}" for a in loop for b in left.get(a, ()) if b in loop)
        faults.append("these files name each other in a circle: " + "; ".join(inside))
    loops = circles(arrows_between_files)
    for file, to in sorted(to_go):
        if to not in arrows_between_files.get(file, ()) or not any(file in loop and to in loop for loop in loops):
            faults.append(f"house.toml lists what is gone: {file} -> {to} in a circle")
    for kind, found, listed in (
        ("an arrow runs up or into another room", steps, set(known.get("arrows", []))),
        ("what is read of orders is told after its flush, as store::Unflushed", unflushed, set(house.get("covered", {}))),
        ("a transaction begins at the door, pg::transaction, which names it", doors, set(house.get("doors", {}))),
        ("a state is an enum, so that a match on it is exhaustive", states, set(known.get("states", []))),
        (
            "code decides by a text that is meant for people; keep a code beside it",
            {what for what, _ in decisions},
            set(known.get("decisions", [])) | set(house.get("exceptions", {})),
        ),
    ):
        lines = dict(decisions)
        for one in sorted(found - listed):
            line = f" (line {lines[one]})" if one in lines else ""
            faults.append(f"{kind}: {one}{line}")
        for one in sorted(listed - found):
            faults.append(f"house.toml lists what is gone: {one}")
    return faults + list(wide_comments(root)) + list(path_in_the_code(root)) + list(recipes(root))


if __name__ == "__main__":
    wrong = check(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
    print("\n".join(wrong) if wrong else "no circle, no arrow that runs up, no decision by prose")
    sys.exit(bool(wrong))
