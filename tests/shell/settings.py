#!/usr/bin/env python3
"""tests/shell/settings.py [--write]: the settings are few, and docs/settings.md lists them all.

A setting is an environment variable that a program reads by an attribute `env = "NAME"` of clap. One
name is one setting, whichever programs read it. Each costs an operator a thought, so there are at most
MOST of them: what nobody needs to set is a constant with its reason (docs/decisions/0035). Each provider has
the same settings of our account there, such as <PROVIDER>_URL, so each of these forms counts once.

--write writes the list into docs/settings.md.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

from house import without_tests, without_text

MOST = 83
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/settings.md"
MARK = "<!-- tests/shell/settings.py --write writes what follows -->\n"
ATTRIBUTE = re.compile(r"#\[arg\((?P<inner>(?:[^\[\]]|\[[^\]]*\])*?)\)\]\s*(?:pub(?:\([^)]*\))? )?(?P<field>\w+):")
SHARED = {"runtime": "all", "pg": "all with a database", "pipeline": "all with NATS", "webhooks": "ingress, notifier"}
FORM = re.compile(r"_(URL|(?:ACCESS|SECRET)_KEY|CALLBACK_TOKEN)$")
ORDER = ["ingress", "provisioner", "notifier", "console", "sandbox", "esimctl"]


def accounts():
    """The settings of the accounts at providers, which the adapters list."""
    sources = (ROOT / "services/provisioner/src/providers").rglob("*.rs")
    found = set()
    for file in sources:
        text = file.read_text()
        found.update(re.findall(r'variable: "([A-Z_]+)"', text))
        found.update(re.findall(r'callback_token\(\s*"([A-Z_]+)"', text))
    return found


def rank(program):
    """The place of a program in the list. Its help counts before that of a later one."""
    return ORDER.index(program) if program in ORDER else -1


def found():
    """Of each setting its programs, its first default and the first line of its help."""
    settings = defaultdict(lambda: {"programs": set(), "default": "", "help": "", "secret": False})
    files = [*ROOT.glob("libs/*/src/**/*.rs"), *ROOT.glob("services/*/src/**/*.rs")]
    for file in sorted(files, key=lambda file: (rank(file.relative_to(ROOT).parts[1]), file)):
        source = file.read_text()
        if 'env = "' not in source:
            continue
        # The code without tests has the same lines, so it says which of the attributes are real.
        kept = without_tests(without_text(source)).split("\n")
        lines = source.split("\n")
        crate = file.relative_to(ROOT).parts[1]
        for match in ATTRIBUTE.finditer(source):
            name = re.search(r'\benv = "(\w+)"', match["inner"])
            line = source.count("\n", 0, match.start())
            if not name or "arg" not in kept[line]:
                continue
            default = re.search(r'default_value(?:_t)? = ("[^"]*"|[^,)]+)', match["inner"])
            text, above = [], line - 1
            while above >= 0 and lines[above].lstrip().startswith("///"):
                text, above = [lines[above].lstrip()[3:].strip(), *text], above - 1
            text = " ".join(text[: text.index("")] if "" in text else text)
            one = settings[name[1]]
            one["secret"] |= "hide_env_values = true" in match["inner"]
            one["programs"].add(SHARED.get(crate, crate))
            one["help"] = one["help"] or re.sub(r"\s*\[default: [^\]]*\]", "", text)
            one["default"] = one["default"] or (default[1].strip('"') if default else "")
    return settings


def row(name, one):
    programs = sorted(one["programs"], key=lambda each: (rank(each), each))
    # A default that is a name in the code, or an expression, stands in the help.
    default = f"`{one['default']}`" if re.fullmatch(r"[\w./*,: \[\]-]+", one["default"]) and "::" not in one["default"] else "–"
    default = "–" if one["default"].isupper() else default
    default = "secret" if one["secret"] else default
    return f"| `{name}` | {', '.join(programs)} | {default} | {one['help']} |\n"


def main():
    of_accounts = accounts()
    forms = {FORM.search(name)[0] for name in of_accounts}
    settings = {name: one for name, one in found().items() if name not in of_accounts}
    table = "\n| setting | of | default | what |\n|---|---|---|---|\n"
    table += "".join(row(name, settings[name]) for name in sorted(settings))
    head = PAGE.read_text().split(MARK)[0]
    page = head + MARK + table
    if "--write" in sys.argv:
        PAGE.write_text(page)
    wrong = []
    if PAGE.read_text() != page:
        wrong.append("docs/settings.md does not list the settings of the code: run tests/shell/settings.py --write")
    count = len(settings) + len(forms)
    if count > MOST:
        wrong.append(f"there are {count} settings, more than {MOST}: what nobody needs to set is a constant with its reason")
    print("\n".join(wrong) if wrong else f"{count} settings: {len(settings)} in docs/settings.md, and {len(forms)} forms for the account at a provider ({len(of_accounts)} names)")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
