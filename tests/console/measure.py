"""How long each page of the console takes with many rows stored: tests/console/run --measure."""

import statistics
import sys
import time
import urllib.parse

from rows import psql, store_orders, store_partners
from crawl import BASE

# What a page may take, in milliseconds, as the median.
AT_MOST = 100


def measure(context, page, pages, number):
    """How long each page takes with many orders stored, as the browser's network sees it."""
    store_orders(number)
    store_partners(min(number // 100, 10_000), min(number // 10, 100_000))
    order, partner = pages(page)
    partners, exhausted = psql("SELECT (SELECT count(*) FROM partners) || ' ' || (SELECT count(*) FROM held WHERE state = 'exhausted')").split()
    print(f"{number} orders, {partners} partners and {exhausted} given-up webhooks stored; milliseconds to the whole page: best, median, worst of 20")
    external = page.locator("h1").inner_text()
    esim = page.locator("a[href^='/esims/']").first.get_attribute("href")
    query = urllib.parse.quote(external, safe="")
    gave_up, webhook = psql("SELECT partner_id || ' ' || id FROM held WHERE state = 'exhausted' LIMIT 1").split()
    product = psql("SELECT option_id FROM options LIMIT 1")
    mine = partner.rsplit("/", 1)[1]
    paths = [
        "/", "/?range=7d", "/needs", "/orders", "/orders?state=failed", "/orders?state=not_through", "/orders?provider=nobody", f"/orders?product={product}",
        f"/orders?partner={mine}", f"/orders?partner={mine}&state=failed", "/orders?partner=Measured+77", order, esim,
        "/webhooks", "/webhooks?state=exhausted", "/webhooks?state=pending", "/webhooks?state=untaken",
        f"/webhooks?partner={gave_up}&state=untaken", "/webhooks?provider=nobody",
        f"/webhooks?partner={gave_up}&state=exhausted", f"/webhooks/{webhook}", "/partners", "/partners?state=problem", "/partners?sort=orders",
        "/partners?partner=measured", partner, f"/partners/{gave_up}", f"{partner}/refused", f"{partner}/refused?order=refused-7", f"{partner}/access", "/providers", "/products?provider=sandbox",
        "/resends", "/resends/preview?since=7days", "/resends/preview?since=1h&state=delivered",
        f"/resends/preview?since=15min&state=exhausted&partner={mine}", "/actions",
        f"/find?q={query}", "/find?q=measured-999", "/find?q=nothing", "/hints?q=meas",
    ]
    slow = []
    for path in paths:
        took = []
        for _ in range(20):
            began = time.perf_counter()
            answer = context.request.get(BASE + path)
            answer.body()
            took.append((time.perf_counter() - began) * 1000)
            assert answer.ok, (path, answer.status)
        took.sort()
        median = statistics.median(took)
        print(f"{path[:60]:60} {took[0]:7.1f} {median:7.1f} {took[-1]:7.1f}")
        if median > AT_MOST:
            slow.append(f"{path} takes {median:.0f} ms")
    if slow:
        sys.exit("above the bound: " + ", ".join(slow))
