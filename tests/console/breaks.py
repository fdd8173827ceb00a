"""breaks.py ESIMCTL [--all [WORD…]]: breaks a running system in one way after the other, while a live partner orders all the time. Each
break has to be named within 15 s by all who are asked: the first page of the console, which is open and not touched, `esimctl
attention`, `status` and `doctor`. They have to say the same, with one severity, and nothing else but what follows from it. Once it
is mended, all have to say so within 15 s, and the history has to keep from when until when it was. tests/console/run calls it.

Every run of stage console tries those of the list BREAKS that are marked, stage `breaks` of `tests/run nightly` all of them:

  each stage killed, and stopped (SIGSTOP)   here; tests/e2e, health::a_stage_that_dies…, with the orders that wait
  NATS killed; one permission missing        here
  PostgreSQL killed                          here; stopped, so that commits hang: tests/e2e, pulse::a_stage_is_not_ready…
  PostgreSQL's disk full                     tests/e2e, pulse::a_full_disk…, with all four views
  a provider failing; slow; denying us       here
  one endpoint dead                          here
  one of two ingresses dead                  here
  a clock that steps                         here, that of one of two ingresses
  all orders refused                         here; tests/e2e, health::orders_and_requests_that_all_fail…
  six pairs of these at once                 here

What ends only after a test, such as that of a provider, is waited for until the test is due.
"""

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import playwright.sync_api

from crawl import Walk
from rows import psql
from shop import PROVIDER, Endpoint, Shop
from states import ROOT, RUN, kill, send, up
from walk import esimctl, set_up

# Within this time all have named it, or its end. What takes longer is told with what was said until then; a machine that
# does other things, too, gets some more time until that is a failure.
WITHIN = 15.0
SLACK = 45.0
# Two looks later than an outage is one.
OUTAGE = 20.0
# The longest time between two tests of a provider, and between the first two of an endpoint.
NEXT_TEST = 35.0
# What a finding that may follow from another one begins with: work that waits is late, and orders fail.
FOLLOWS = ("purchases_late", "webhooks_late", "slow", "orders_fail", "lanes_held_back", "parked")
# How the server was set up is judged by the doctor alone.
OF_DOCTOR = ("not_archived", "not_durable")
# The states of a line of the doctor, and how the page colours the severities.
STATES = ["fine", "mends", "warning", "fault"]
CLASSES = {"mends": "", "warning": "warn", "fault": "bad"}
PAGE = """() => ({
    h1: document.querySelector("main h1")?.textContent ?? "",
    text: (document.querySelector("main .verdict") ?? document.querySelector("main"))?.textContent ?? "",
    lines: [...document.querySelectorAll("main .verdict li.finding")].map(one =>
        [[...one.classList].filter(name => name !== "finding").join(" "), one.querySelector("h2")?.textContent ?? ""]),
})"""
AWAY = "cannot read its database"


# --- breaks: each yields what has to be found ------------------------------------------------------


@contextlib.contextmanager
def killed(name, *found):
    kill(name)
    yield found
    up(name)


@contextlib.contextmanager
def stopped(name):
    send(name, signal.SIGSTOP)
    yield (f"stage_dead:{name}",)
    send(name, signal.SIGCONT)


def dead(stage):
    return killed(stage, f"stage_dead:{stage}")


@contextlib.contextmanager
def unpermitted():
    """NATS takes no orders of ingress, so provisioners find them later."""
    config = RUN.parent / "nats/nats.conf"
    whole = config.read_text()
    without, changed = re.subn(r'"topup\.job\.\*", ', "", whole)
    assert changed == 1, whole
    config.write_text(without)
    send("nats-server", signal.SIGHUP)
    yield ("nats_refuses:ingress",)
    config.write_text(whole)
    send("nats-server", signal.SIGHUP)


def provider(**faults):
    sent = urllib.request.Request(os.environ["SANDBOX_URL"] + "/faults", json.dumps(faults).encode(), method="PUT")
    urllib.request.urlopen(sent, timeout=10).close()


@contextlib.contextmanager
def failing():
    provider(error_rate=1)
    yield (f"breaker_open:{PROVIDER}",)
    provider()


@contextlib.contextmanager
def slow():
    """What is usual has to be known: hours of a process that is gone."""
    psql(f"""INSERT INTO minutely (span, at, measure, subject, instance, n, failed, histogram)
             SELECT 'hour', date_trunc('hour', now()) - hour * interval '1 hour', measure, '{PROVIDER}',
                    '00000000-0000-4000-8000-000000000044', 60, 0, ARRAY(SELECT CASE nth WHEN 3 THEN 60 ELSE 0 END FROM generate_series(1, 16) nth)
             FROM generate_series(2, 20) hour, unnest(ARRAY['call']) measure ON CONFLICT DO NOTHING""")
    provider(latency_ms=8000)
    yield (f"slow:call:{PROVIDER}",)
    provider()


def set_key(key):
    """Secrets are what the file of the settings remembers."""
    settings = RUN.parent / "env"
    text, changed = re.subn(r"(?m)^SANDBOX_SECRET_KEY=.*$", lambda _: f"SANDBOX_SECRET_KEY='{key}'", settings.read_text())
    assert changed == 1, text
    settings.write_text(text)
    up("provisioner")


@contextlib.contextmanager
def denying():
    """The provisioner has another key for the provider."""
    key = os.environ["SANDBOX_SECRET_KEY"]
    set_key(base64.b64encode(os.urandom(32)).decode())
    yield (f"breaker_open:{PROVIDER}",)
    set_key(key)


@contextlib.contextmanager
def denied_and_dead():
    """A dead provisioner tests no provider, so it has to be said that nothing ends the denial before it runs."""
    with denying() as denied:
        while psql(f"SELECT open_until IS NULL FROM providers WHERE name = '{PROVIDER}'") == "t":
            time.sleep(0.2)
        with dead("provisioner") as died:
            yield (*denied, *died)


@contextlib.contextmanager
def endpoint(shop):
    Endpoint.is_dead = True
    yield (f"blocked:{shop.partner_id}",)
    Endpoint.is_dead = False


@contextlib.contextmanager
def refused(shop):
    before, shop.ordered = shop.ordered, ("refused",)
    yield ("orders_fail:refused",)
    shop.ordered = before


class Second:
    """A second ingress, whose clock can be set."""

    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        self.library = folder / "preload.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", self.library, ROOT / "tests/faults/preload.c"], check=True)
        self.process = None

    def start(self):
        pid = int((RUN / "ingress.pid").read_text())
        first = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        settings = dict(one.split("=", 1) for one in first if one)
        for name in ("LISTEN", "ADMIN_LISTEN"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                settings[name] = f"127.0.0.1:{free.getsockname()[1]}"
        settings |= {"LD_PRELOAD": str(self.library), "PRELOAD_FOLDER": str(self.folder)}
        log = (RUN.parent / "log/ingress-2.log").open("ab")
        self.process = subprocess.Popen([self.program], env=settings, stdout=log, stderr=log)
        url = f"http://{settings['ADMIN_LISTEN']}/readyz"
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url, timeout=2).close()
                # A process that began after the other one's last pulse would be taken for its successor.
                time.sleep(3)
                return
            time.sleep(0.1)
        raise AssertionError("the second ingress is not ready")

    def end(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    @contextlib.contextmanager
    def killed(self):
        self.start()
        self.process.kill()
        self.process.wait()
        yield ("processes_missing:ingress",)
        self.start()

    @contextlib.contextmanager
    def ahead(self):
        """Its clock steps by ten minutes. The library reads the first number of this file."""
        self.start()
        file = self.folder / str(self.process.pid)

        def step(seconds):
            with file.open("r+b") as spoiled:
                spoiled.write(seconds.to_bytes(8, sys.byteorder, signed=True))

        step(600)
        yield ("clock_off:ingress",)
        step(0)


@contextlib.contextmanager
def both(one, other):
    """Two at once."""
    with one as first, other as second:
        yield (*first, *second)


# --- what is said ----------------------------------------------------------------------------------


class Views:
    def __init__(self, program, page):
        self.program, self.page = program, page

    def ask(self):
        """What each view says now: the verdict, and each finding's severity, words and remedy by its key. None if a view could not
        read the database and says so."""
        commands = {
            "attention": ["attention"],
            "status": ["status", "--over", "0s"],
            "doctor": ["doctor", "--without", "backup,names,openid,keys"],
        }
        running = {
            name: subprocess.Popen([self.program, *command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name, command in commands.items()
        }
        said, away = {}, set()
        for name, process in running.items():
            output, errors = process.communicate()
            if name != "doctor" and process.returncode == 1:
                away.add(name)
                continue
            seen = json.loads(output)
            if name == "doctor":
                lines = seen["lines"]
                worst = max(STATES.index(one["state"]) for one in lines)
                assert process.returncode == max(worst - 1, 0), (process.returncode, seen)
                if any(one["check"] == "connection" and one["state"] == "fault" for one in lines):
                    away.add(name)
                found = {key_of(one["finding"]): one["state"] for one in lines if "finding" in one}
                said[name] = {key: state for key, state in found.items() if not key.startswith(OF_DOCTOR)}
            else:
                both = seen["needs_person"] + seen["ends_by_itself"]
                said[name] = {one["key"]: one["told"]["severity"] for one in both}
            if name == "attention":
                self.told = {one["key"]: one["told"] for one in both}
                self.verdict = seen["verdict"]
                assert process.returncode == (3 if seen["needs_person"] else 0), seen
        return said, away

    def page_says(self):
        """The verdict of the page that nobody touches, its text, and its findings."""
        try:
            return self.page.evaluate(PAGE)
        except playwright.sync_api.Error as error:
            # It is just being replaced.
            return {"h1": str(error), "text": "", "lines": []}

    def differ(self, found, is_over=False):
        """Why the views do not all say what they should; None if they do."""
        said, away = self.ask()
        page = self.page_says()
        is_away = AWAY in found and not is_over
        if is_away or away or AWAY in page["h1"]:
            all_away = len(away) == 3 and AWAY in page["h1"]
            return None if all_away and is_away else f"away are {away}, the page says {page['h1']}"
        attention = said["attention"]
        for name, findings in said.items():
            other = {key: one for key, one in findings.items() if key not in found and not key.startswith(FOLLOWS)}
            if other:
                return f"{name} finds something else, too: {other}"
            if is_over and findings:
                return f"{name} still says {findings}"
            lacks = set() if is_over else set(found) - set(findings)
            if lacks:
                return f"{name} lacks {lacks}: it says {findings}"
            if any(findings[key] != attention[key] for key in set(findings) & set(attention)):
                return f"{name} says {findings}, and attention {attention}"
        if page["h1"].split(":")[0].strip(".") != self.verdict.split(":")[0].strip("."):
            return f"the page says {page['h1']}, and attention {self.verdict}"
        for key in () if is_over else found:
            words = re.split(r"\d", self.told[key]["what"])[0].lower()
            lines = [one for one in page["lines"] if one[1].lower().startswith(words)]
            if [one[0] for one in lines] != [CLASSES[self.told[key]["severity"]]]:
                return f"the page shows {key} as {lines}: {page['lines']}"
            remedy = re.split(r"\d", self.told[key]["do"])[0].lower()
            if remedy not in page["text"].lower():
                return f"the page does not say “{remedy}”: {page['text'][:600]}"
        return None

    def until(self, found, limit, is_over=False):
        """How long it took until all said it, if they did, and what the last one to say it said before."""
        began, last = time.monotonic(), ""
        while problem := self.differ(found, is_over):
            last = problem
            if time.monotonic() - began > limit:
                return None, last
            self.page.wait_for_timeout(200)
        return time.monotonic() - began, last


def key_of(finding):
    """The key of a finding of the doctor, which says only the parts of it."""
    of = finding.get("stage") or finding.get("provider") or finding.get("breaker", {}).get("name")
    of = of or finding.get("endpoint", {}).get("endpoint_id") or finding.get("environment")
    if finding["kind"] == "clock_off":
        of = finding["of"]["stage"] if isinstance(finding["of"], dict) else finding["of"]
    if finding["kind"] in ("orders_fail", "slow"):
        of = ":".join(one for one in (finding.get("how") or finding.get("measure"), finding.get("partner") or finding.get("subject")) if one)
    if finding["kind"] == "parked":
        of = None
    return ":".join(one for one in (finding["kind"], of) if one)


# --- one after the other ---------------------------------------------------------------------------


class Break:
    """A break, how long it may take until it is named, and until its end is."""

    def __init__(self, name, make, always=False, within=WITHIN, over=WITHIN):
        self.name, self.make, self.always, self.within, self.over = name, make, always, within, over


def breaks(shop, second):
    """The order keeps apart what is found under one name, because what comes back within a minute was never mended."""
    return [
        Break("PostgreSQL, killed", lambda: killed("postgres", AWAY), always=True),
        Break("one of two ingresses, killed", second.killed, always=True),
        Break("NATS, killed", lambda: killed("nats-server", "nats_down"), always=True),
        Break("the notifier, stopped", lambda: stopped("notifier"), always=True),
        Break("a provider that denies our account, and a dead provisioner", denied_and_dead, always=True, over=NEXT_TEST),
        Break("the ingress, killed", lambda: dead("ingress")),
        Break("a permission at NATS that is missing", unpermitted),
        Break("the notifier, killed", lambda: dead("notifier")),
        # Orders are counted in ticks of ten seconds, and the one in which it ends says nothing of the end.
        Break("all orders refused", lambda: refused(shop), over=WITHIN + 10),
        Break("the provisioner, stopped", lambda: stopped("provisioner")),
        Break("a clock that steps", second.ahead),
        Break("a provider that fails", failing, over=NEXT_TEST),
        Break("the ingress, stopped", lambda: stopped("ingress")),
        Break("one endpoint, dead", lambda: endpoint(shop), over=2 * NEXT_TEST),
        Break("a provider that denies our account", denying, over=NEXT_TEST),
        Break("the provisioner, killed", lambda: dead("provisioner")),
        Break("a dead notifier, and a provider that fails", lambda: both(dead("notifier"), failing()), over=NEXT_TEST),
        Break("a dead ingress, and NATS", lambda: both(dead("ingress"), killed("nats-server", "nats_down"))),
        Break("a provider that denies our account, and a clock", lambda: both(denying(), second.ahead()), over=NEXT_TEST),
        Break("a dead endpoint, and a permission at NATS", lambda: both(endpoint(shop), unpermitted()), over=2 * NEXT_TEST),
        Break("PostgreSQL and NATS, killed", lambda: both(killed("postgres", AWAY), killed("nats-server", AWAY))),
        Break("a provider that is slow by 8 s", slow, within=60, over=60),
    ]


class Record:
    """What was broken from when until when, in seconds since 1970."""

    def __init__(self, one, found, named_at):
        self.name, self.over, self.named_at, self.mended_at = one.name, one.over, named_at, time.time()
        self.keys = {"database_down" if key == AWAY else key for key in found}

    def not_kept(self):
        """The findings of which the history does not say that they were, and when they ended."""
        rows = psql(f"""SELECT reason FROM history CROSS JOIN LATERAL (SELECT coalesce(after, before)) AS span (of)
                        WHERE provider = '' AND kind = 'finding_mended'
                          AND (of ->> 'since')::timestamptz <= to_timestamp({self.named_at})
                          AND extract(epoch FROM (of ->> 'until')::timestamptz) - {self.mended_at} BETWEEN -10 AND {self.over + SLACK}""")
        return self.keys - set(rows.split())


def opened(found, lasted):
    """Whether it will be kept: a console looks every 5 s, and an outage of PostgreSQL is one from 15 s on."""
    if AWAY in found:
        return lasted > OUTAGE
    rows = psql("""SELECT reason FROM (SELECT DISTINCT ON (reason) reason, kind FROM history
                                       WHERE provider = '' AND kind IN ('finding_opened', 'finding_mended') ORDER BY reason, at DESC) newest
                   WHERE kind = 'finding_opened'""")
    return set(found) <= set(rows.split())


def tell(one, what, took, within, problem):
    late = f", later than {within:.0f} s: until then {problem}" if took > within else ""
    print(f"{one.name}: {what} after {took:.1f} s{late}", flush=True)


def attempt(views, one):
    """Breaks something, waits until it is named, mends it, and waits until that is said."""
    problems = []
    with one.make() as found:
        began = time.monotonic()
        took, problem = views.until(found, one.within + SLACK)
        named_at = time.time()
        if took is None:
            problems.append(f"{one.name}: not named as it should be: {problem}")
        else:
            tell(one, "named by all", took, one.within, problem)
            while (lasted := time.monotonic() - began) < took + OUTAGE and not opened(found, lasted):
                views.page.wait_for_timeout(500)
            # It is still said, so that no moment decides.
            again, problem = views.until(found, 5)
            if again is None:
                problems.append(f"{one.name}: named, and then not any more: {problem}")
    record = Record(one, found, named_at)
    took, problem = views.until(found, one.over + SLACK, is_over=True)
    if took is None:
        problems.append(f"{one.name}: its end is not said: {problem}")
        views.until(found, 90, is_over=True)
    else:
        tell(one, "its end is said", took, one.over, problem)
    return problems, record


def main(program, *options):
    made = esimctl(program, "operator", "create", f"breaker-{os.getpid()}", "--role", "operator")
    folder = RUN.parent / "data/second"
    folder.mkdir(exist_ok=True)
    second = Second(folder, pathlib.Path(program).with_name("ingress"))
    problems, records = [], []
    with playwright.sync_api.sync_playwright() as driver, Shop(program) as shop:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context().new_page()
        set_up(Walk(None, browser), page, made["link"])
        views = Views(program, page)
        try:
            took, problem = views.until((), 60, is_over=True)
            assert took is not None, problem
            for one in breaks(shop, second):
                is_named = not options[1:] or any(word in one.name for word in options[1:])
                if not (one.always or options) or not is_named:
                    continue
                found, record = attempt(views, one)
                second.end()
                problems += found
                records.append(record)
                for problem in found:
                    print(f"FAILED: {problem}", flush=True)
            if options:
                # An end is noted a minute later.
                page.wait_for_timeout(70_000)
            for record in records:
                if time.time() - record.mended_at > record.over + 65 and (lost := record.not_kept()):
                    problems.append(f"{record.name}: the history does not have {lost} with its end")
        finally:
            second.end()
        browser.close()
    if problems:
        sys.exit("\n".join(problems))
    print(f"console: {len(records)} breaks, each named by all, mended and kept")


if __name__ == "__main__":
    main(*sys.argv[1:])
