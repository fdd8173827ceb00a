#!/usr/bin/env python3
"""tests/shell/pages.py [ROOT]: the documents are as long as their readers' patience, and their links lead somewhere.

It reads every Markdown file that Git knows. It fails, with one line for each fault, if

- a page has more words than its reader has patience for (PAGES; a decision fits on a page);
- all pages together have more than ALL words;
- PAGES names a page that is not there;
- a link leads to a file, or to a heading of a file, that is not there.

A word is what stands between two spaces, as `wc -w` counts it. A page that is too long is not split into two: leave out
what its reader does not need. tests/shell/test_pages.py shows that each rule can fail.
"""

import re
import subprocess
import sys
from pathlib import Path

ALL = 70_000
DECISION = 700
PAGES = {
    "README.md": 700,
    "CONTRIBUTING.md": 3000,
    "CHANGELOG.md": 3000,
    "docs/architecture.md": 4500,
    "docs/console.md": 2500,
    "docs/operations.md": 6000,
    "docs/partner-guide.md": 2500,
    "docs/performance.md": 2000,
    "docs/reference.md": 5000,
    "docs/reliability.md": 4000,
    "docs/scale.md": 600,
    "docs/security.md": 4000,
    "docs/why.md": 1000,
}
# Parts of a page, by their heading.
PARTS = {("CHANGELOG.md", "## [Unreleased]"): 1500}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.M | re.S)


def words(text):
    return len(text.split())


def anchors(text):
    """The anchors of a page: those of its headings, as GitHub makes them, and those that it sets itself."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.*)$", CODE.sub("", text), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(name if name not in found else f"{name}-1")
    return found


def too_long(pages):
    for name, most in PAGES.items():
        if name not in pages:
            yield f"tests/shell/pages.py names {name}, which is not there"
        elif words(pages[name]) > most:
            yield f"{name} has {words(pages[name])} words; its reader has patience for {most}"
    for (name, heading), most in PARTS.items():
        part = re.search(rf"^{re.escape(heading)}.*?(?=^## |\Z)", pages.get(name, ""), re.M | re.S)
        if part and words(part[0]) > most:
            yield f"{name}, {heading[3:]}, has {words(part[0])} words; its reader has patience for {most}"
    for name, text in pages.items():
        if re.fullmatch(r"docs/decisions/\d+-.*\.md", name) and words(text) > DECISION:
            yield f"{name} has {words(text)} words; a decision fits on a page of {DECISION}"
    total = sum(words(text) for text in pages.values())
    if total > ALL:
        yield f"all pages together have {total} words; nobody keeps more than {ALL} true"


def broken(root, pages):
    for name, text in pages.items():
        for target in LINK.findall(re.sub(r"`[^`\n]*`", "", CODE.sub("", text))):
            if re.match(r"[a-z]+:", target) or target.startswith("/"):
                continue
            path, _, anchor = target.partition("#")
            file = (root / name).parent / path if path else root / name
            if not file.exists():
                yield f"{name} links to {path}, which is not there"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                yield f"{name} links to {target}, which is no heading there"


def check(root):
    """The faults, as lines."""
    root = Path(root)
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=True).stdout
    pages = {name: (root / name).read_text() for name in listed.split("\n") if name and (root / name).exists()}
    return list(too_long(pages)) + list(broken(root, pages)), sum(words(text) for text in pages.values())


if __name__ == "__main__":
    wrong, total = check(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
    print("\n".join(wrong) if wrong else f"{total} words in all pages, each within its reader's patience; every link leads somewhere")
    sys.exit(bool(wrong))
