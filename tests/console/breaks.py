"""breaks.py ESIMCTL DEMO: breaks a running system in five ways, one after the other, and looks whether the first page of the
console names each within 15 s with what to do, and says that it is over once it is. tests/console/run calls it after the walk.

A process is killed as a crash does it; PostgreSQL and NATS, too. The key of the provider is replaced by another one.
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import time

from playwright.sync_api import sync_playwright

from crawl import Walk
from states import RUN, kill, up
from walk import esimctl, set_up

# Within this time the page that is open has named it. A machine that does other things, too, gets some more.
WITHIN = 15.0
SLACK = 10.0
# What is broken, the words by which the page names it, and those of what to do.
BREAKS = [
    ("provisioner", "provisioner", "start it again"),
    ("notifier", "notifier", "start it again"),
    ("nats-server", "NATS is down", "start it"),
    ("postgres", "cannot read its database", "esimctl doctor"),
]


def replace_key():
    """Gives the provisioner another key for the provider; secrets are what the file of the settings remembers."""
    settings = RUN.parent / "env"
    # The file outlives a run, so the key is another one each time.
    other = base64.b64encode(os.urandom(32)).decode()
    text, changed = re.subn(r"(?m)^SANDBOX_SECRET_KEY=.*$", f"SANDBOX_SECRET_KEY='{other}'", settings.read_text())
    assert changed == 1, text
    settings.write_text(text)
    up("provisioner")


def verdict(page):
    """What the page says above the way of an order, also in what is folded, and whether that way is there."""
    part = page.locator("main")
    above, way, _ = (part.text_content() if part.count() else "").partition("Take orders")
    return above, bool(way)


def until(page, holds, limit):
    """How long it took until the page that nobody touches says it."""
    began = time.monotonic()
    while not holds(*verdict(page)):
        if time.monotonic() - began > limit:
            return None
        page.wait_for_timeout(100)
    return time.monotonic() - began


def named(problems, page, what, words, remedy):
    # The page begins a sentence with a capital.
    took = until(page, lambda said, _: words.lower() in said.lower(), WITHIN + SLACK)
    if took is None:
        problems.append(f"{what}: the first page does not say “{words}”: {verdict(page)[0][:600]}")
        return
    print(f"{what}: named after {took:.1f} s")
    if took > WITHIN:
        print(f"{what}: that is later than {WITHIN:.0f} s")
    if remedy.lower() not in verdict(page)[0].lower():
        problems.append(f"{what}: the first page does not say “{remedy}”: {verdict(page)[0][:600]}")


def main(program, demo):
    made = esimctl(program, "operator", "create", f"breaker-{os.getpid()}", "--role", "viewer")
    problems = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context().new_page()
        set_up(Walk(None, browser), page, made["link"])
        for name, words, remedy in BREAKS:
            kill(name)
            named(problems, page, name, words, remedy)
            up(name)
            if until(page, lambda said, way, words=words: way and words.lower() not in said.lower(), 60) is None:
                problems.append(f"{name}: it is still said to be broken: {verdict(page)[0][:600]}")
        replace_key()
        order = subprocess.Popen([demo], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            named(problems, page, "a provider's key", "denies our account", "set its key right")
        finally:
            order.kill()
            order.wait()
        browser.close()
    if problems:
        sys.exit("\n".join(problems))
    print("console: five breaks, each named")


if __name__ == "__main__":
    main(*sys.argv[1:])
