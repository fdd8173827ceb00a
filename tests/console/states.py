"""States of pages that a walk does not come to by itself: charts that are full, a provider that has become slow, a search that
finds nothing, and a database that is away. Also how a process of the system is killed and started, as tests/console/breaks.py does.
"""

import os
import pathlib
import signal
import subprocess

from crawl import BASE
from rows import psql

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = pathlib.Path(os.environ["LOCAL_DIR"]) / "run"
# How long a page may take to show a state. The figures of charts are kept for 20 s.
PATIENCE = 60_000


def up(*names):
    """Starts processes that do not run, or that got other settings."""
    subprocess.run([ROOT / "deploy/local/up", "--no-build", *names], check=True, stdout=subprocess.DEVNULL)


def send(name, what):
    os.kill(int((RUN / f"{name}.pid").read_text()), what)


def kill(name):
    send(name, signal.SIGKILL)


def store_figures(slow_for=0):
    """Figures of the last two days and of the last week, of a process that is gone. For so many minutes its provider has taken
    seconds instead of milliseconds. Some calls failed for half an hour, so that the charts have bars beyond the limit, too."""
    psql("DELETE FROM minutely WHERE instance = '00000000-0000-4000-8000-000000000043'", f"""
        INSERT INTO minutely (span, at, measure, subject, instance, n, failed, histogram)
        SELECT span, at, measure, subject, '00000000-0000-4000-8000-000000000043', n,
               CASE WHEN measure = 'call' AND back BETWEEN 200 AND 230 THEN n / 10
                    WHEN measure IN ('call', 'attempt') THEN n * (back * 31 % 7) / 200 ELSE 0 END,
               ARRAY(SELECT CASE nth WHEN half THEN n - n / 12 WHEN half + 1 THEN n / 12 ELSE 0 END FROM generate_series(1, 16) nth)
        FROM (
            SELECT 'minute' AS span, date_trunc('minute', now()) - back * interval '1 minute' AS at, back, 1 AS minutes
            FROM generate_series(0, 2879) back
            UNION ALL
            SELECT 'hour', date_trunc('hour', now()) - hour * interval '1 hour', hour * 60, 60 FROM generate_series(0, 168) hour
            UNION ALL
            SELECT 'tick', date_bin('10 seconds', now(), '2000-01-01') - nth * interval '10 seconds', 0, 1
            FROM generate_series(0, 60) nth
        ) times CROSS JOIN LATERAL (VALUES
            ('answered', '', 1.0, 3), ('refused', '', 0.05, 1), ('bought', 'sandbox', 0.9, CASE WHEN back < {slow_for} THEN 9 ELSE 4 END),
            ('call', 'sandbox', 2.0, CASE WHEN back < {slow_for} THEN 9 ELSE 3 END),
            ('ready', 'sandbox', 0.9, CASE WHEN back < {slow_for} THEN 9 ELSE 5 END), ('attempt', '', 1.0, 4), ('delivered', '', 0.9, 6)
        ) one (measure, subject, share, half) CROSS JOIN LATERAL (
            SELECT (minutes * share * (40 + 9 * sin(back / 47.0) + back * 7919 % 6))::bigint AS n
        ) many""")


def are_full(page):
    """Each time has orders, and half of them and 95 % of them have a line."""
    empty = page.locator(".chart").first.locator("rect[height='0.00']").count() + page.locator(".chart polyline[points='']").count()
    bars = [chart.locator("rect").count() for chart in page.locator(".chart").all()]
    return not empty and bars and bars[0] and page.locator(".chart polyline").count()


def charts(walk, page):
    """The overview of a system that is well and has had orders for days, in each of its ranges."""
    for span in ("6h", "1h", "24h", "7d"):
        page.goto(f"{BASE}/?range={span}")
        page.wait_for_selector(".verdict.good")
        if not are_full(page):
            # Meanwhile a minute has begun that has no figures yet.
            store_figures()
            page.reload()
            page.wait_for_selector(".verdict.good")
        if not are_full(page):
            walk.problems.append(f"the charts of {span} are not full")
        walk.check(page, f"state charts that are full, {span}")


def slow(walk, page):
    """A provider that has become slow, on the overview and on its page. Nothing of it is mended, so the walk goes on with it."""
    store_figures(slow_for=154)
    for path, name in (("/?range=6h", "the overview"), ("/providers", "the providers")):
        page.goto(BASE + path)
        # The page refreshes itself until it has the figures of now.
        page.wait_for_selector(".badge.warn:text-is('slow')", timeout=PATIENCE)
        page.wait_for_selector(".chart figcaption span:text-matches('at worst (up to|under) [0-9.]+.s')", timeout=PATIENCE)
        walk.check(page, f"state a provider that is slow, {name}")


def nothing_found(walk, page):
    """A search for what is not there, and one for what comes near the name of a host."""
    for asked, near in (("NV-99999", 0), ("easured.example", 1)):
        page.goto(f"{BASE}/find?q={asked}")
        page.wait_for_selector("h1:has-text('Nothing found')")
        if page.locator("h2:has-text('These come near it')").count() != near:
            walk.problems.append(f"the search for {asked} has other hits than it should")
        walk.check(page, f"state a search that finds nothing, {'with near hits' if near else 'at all'}")


def away(walk, context, page):
    """A database that is away: on an overview that is open, and on a page that somebody opens then."""
    page.goto(BASE + "/")
    page.wait_for_selector(".verdict h1")
    walk.refuses = True
    kill("postgres")
    try:
        page.wait_for_selector("main h1:has-text('cannot read its database')", timeout=PATIENCE)
        walk.check(page, "state cannot read its database, on an open page")
        other = context.new_page()
        asked = []

        def once(route):
            """The answer without its wish to be asked for again, which would come in the middle of a look."""
            answer = route.fetch()
            asked.append((answer.status, answer.headers.get("refresh")))
            route.fulfill(response=answer, headers={name: value for name, value in answer.headers.items() if name != "refresh"})

        other.route("**/orders", once)
        other.goto(BASE + "/orders")
        other.wait_for_selector("h1:has-text('cannot read its database')")
        if asked != [(503, "10")]:
            walk.problems.append(f"a page without its database answers {asked}")
        walk.check(other, "state cannot read its database, on a new page")
        other.close()
    finally:
        up("postgres")
    # It comes back by itself.
    page.wait_for_selector(".verdict h1", timeout=PATIENCE)
    walk.refuses = False
