"""walk.py ESIMCTL AXE [--pictures FOLDER | --measure N]: see tests/console/run.

It finds the system by the variables of .local/env (CONSOLE_URL, BASE_URL, DATABASE_URL, DATABASE_ADMIN_URL, PG_BIN),
and the OpenID provider by OIDC_ISSUER.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from playwright.sync_api import sync_playwright

BASE = os.environ["CONSOLE_URL"].rstrip("/")
ISSUER = os.environ["OIDC_ISSUER"]
PASSWORD = "correct horse battery staple"
# Serious faults of accessibility end the walk; lesser ones are printed.
GRAVE = {"serious", "critical"}
SIZES = [(360, 740), (390, 844), (1440, 900)]
SCHEMES = ["light", "dark"]
# What a page may take, in milliseconds, as the median.
AT_MOST = 100


def esimctl(program, *arguments):
    output = subprocess.run([program, *arguments, "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


class Walk:
    def __init__(self, axe, browser, name):
        self.name = name
        # Without it pages are not checked.
        self.axe = axe and pathlib.Path(axe).read_text()
        self.browser = browser
        self.problems = []
        self.checked = 0

    def context(self, **settings):
        context = self.browser.new_context(**settings)
        context.on("request", self.request)
        context.on("console", self.message)
        context.on("weberror", lambda error: self.problems.append(f"error in a page: {error.error}"))
        return context

    def request(self, request):
        # The pages of the OpenID provider are not ours.
        frame = "" if request.is_navigation_request() else request.frame.url
        if not request.url.startswith((BASE + "/", ISSUER + "/", "data:")) and not frame.startswith(ISSUER):
            self.problems.append(f"a request to another host: {request.url}")

    def message(self, message):
        where = message.page.url if message.page else ""
        # A browser reports the status of a page itself. A stranger gets a 403 on purpose.
        refused = "/sign-in/openid/callback" in where and "status of 403" in message.text
        if message.type in ("error", "warning") and not where.startswith(ISSUER) and not refused:
            self.problems.append(f"{where}: {message.type} on the console: {message.text}")

    def check(self, page, name):
        """What must hold for every page."""
        if not self.axe:
            return
        self.checked += 1
        page.evaluate(self.axe)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        for one in found["violations"]:
            where = one["nodes"][0]["html"][:120]
            line = f"{name}: axe {one['impact']}: {one['id']}: {one['help']}: {where}"
            if one["impact"] in GRAVE:
                self.problems.append(line)
            else:
                print(line)
        width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        if width[0] > width[1]:
            self.problems.append(f"{name}: {width[0]} pixels wide in a window of {width[1]}")


def sign_in(context, name):
    page = context.new_page()
    page.goto(BASE + "/")
    page.fill("input[name=name]", name)
    page.fill("input[name=password]", PASSWORD)
    page.click("main button")
    page.wait_for_selector(".verdict h1")
    return page


def set_up(walk, page, link):
    """The way of a new operator, from the link to the overview."""
    page.goto(link)
    walk.check(page, "set-up")
    page.fill("input[name=password]", PASSWORD)
    page.fill("input[name=again]", PASSWORD)
    page.click("main button")
    page.wait_for_selector(".verdict h1")


def act_page(walk, page, path, fields=()):
    """The page of an act: fills its form in, and sends it."""
    page.goto(BASE + path)
    walk.check(page, f"the act at {path.rsplit('/', 1)[1]}")
    for selector, value in fields:
        page.fill(selector, value)
    send(page, page.locator(f"form[action='{path}']"))


def send(page, form):
    """Gives a form a reason and sends it."""
    form.locator("input[name=reason]").fill("the walk of tests/console")
    form.locator("button").click()
    page.wait_for_selector("text=in the record of actions")


def opened(page, name):
    """The form of an act, by the last part of its route: what people read on it may change."""
    details = page.locator("details.action", has=page.locator(f"form[action$='/{name}']")).first
    details.locator("summary").click()
    return details.locator("form")


def act(page, name):
    send(page, opened(page, name))


def by_provider(context, name, path="/"):
    """The way of somebody whom the OpenID provider knows. The browser comes back to the page that it asked for."""
    page = context.new_page()
    page.goto(BASE + path)
    page.click("text=Sign in with")
    page.fill("input[name=login]", name)
    page.fill("input[name=password]", "any")
    page.get_by_role("button", name="Sign-in").click()
    # The provider asks whether the console may know the name.
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url(BASE + "/**")
    return page


def signed_in_by_provider(walk, order, partner):
    """Who has a group sees the pages of its role, and who has none is told so."""
    for name, role, path, offered in (
        ("guest", "viewer", order, []),
        ("on-call", "operator", partner, ["pause", "test", "show-url"]),
    ):
        context = walk.context()
        page = by_provider(context, name, path)
        if urllib.parse.urlsplit(page.url).path != path:
            walk.problems.append(f"{name} came back to {page.url}, not to {path}")
        who = page.locator(".me").text_content()
        if f"oidc:{name}@example.com" not in who or f"role: {role}" not in who:
            walk.problems.append(f"{name} is signed in as {who}")
        offers(walk, page, role, offered)
        context.close()
    context = walk.context()
    page = by_provider(context, "stranger")
    if page.locator("text=in none of the groups").count() == 0:
        walk.problems.append(f"a stranger is not told why there is no way in: {page.url}")
    walk.check(page, "sign-in of a stranger")
    context.close()


def offers(walk, page, role, expected):
    """The actions of a page, by their routes: those that the role may use, and no others."""
    forms = page.locator("details.action > form").all()
    found = {form.get_attribute("action").rsplit("/", 1)[1] for form in forms}
    if found != set(expected):
        walk.problems.append(f"{page.url} offers {found} to {role}, not {expected}")


def support(walk, program, order, esim, partner):
    """Support sends webhooks again, pauses endpoints and sees activation codes, and does nothing else."""
    name = f"support-{os.getpid()}"
    made = esimctl(program, "operator", "create", name, "--role", "support")
    context = walk.context()
    page = context.new_page()
    set_up(walk, page, made["link"])
    page.goto(BASE + order)
    offers(walk, page, "support", ["resend", "code"])
    act(page, "code")
    if page.locator("dt", has_text="Activation code").count() == 0:
        walk.problems.append("no activation code is shown")
    walk.check(page, "activation code")
    page.goto(BASE + esim)
    offers(walk, page, "support", ["usage", "resend", "code"])
    act(page, "usage")
    page.goto(BASE + partner)
    act(page, "test")
    page.wait_for_selector("h1:has-text('webhook.test')")
    walk.check(page, "a test webhook")
    for path, offered in ((partner, ["pause", "test"]), ("/needs", []), ("/resends", []), ("/providers", [])):
        page.goto(BASE + path)
        offers(walk, page, "support", offered)
    context.close()


def ended(walk, program, order):
    """A form whose session has ended comes back to its page, and says that nothing was done."""
    context = walk.context()
    page = by_provider(context, "on-call", order)
    esimctl(program, "operator", "set", "oidc:on-call@example.com", "--signed-out")
    form = opened(page, "resend")
    form.locator("input[name=reason]").fill("the walk of tests/console")
    form.locator("button").click()
    page.wait_for_selector("text=was not carried out")
    walk.check(page, "sign-in after the end of a session")
    page.fill("input[name=name]", walk.name)
    page.fill("input[name=password]", PASSWORD)
    page.click("main button")
    page.wait_for_selector("h2:has-text('What happened')")
    context.close()


def partner_acts(walk, page, partner):
    """What is changed of a partner, each on a page of its own."""
    page.goto(BASE + partner)
    act(page, "show-url")
    url = page.locator("dd code").inner_text()
    act_page(walk, page, partner + "/limits", [("input[name=orders_per_second]", "20")])
    act_page(walk, page, partner + "/webhook-url", [("input[name=url]", url)])
    # This console has no master keys for new ones, so it names who makes them.
    for what in ("keys", "webhook-secret"):
        page.goto(BASE + partner + "/" + what)
        if "esimctl partner rotate" not in page.locator("code.cmd").inner_text():
            walk.problems.append(f"the page of new {what} does not say who makes them")


def actions(walk, page, order, partner):
    """Each action once, and that the screen of actions has it."""
    parked = store_orders(3_000)
    page.goto(BASE + order)
    act(page, "resend")
    walk.check(page, "an order after an action")
    act(page, "code")
    # All purchases with one cause: the provider is asked first.
    page.goto(BASE + "/needs")
    page.locator("a[href^='/purchases/settle']").click()
    walk.check(page, "settling before the provider was asked")
    send(page, page.locator("form[action='/purchases/ask']"))
    page.wait_for_selector("select option[value=retry]", state="attached")
    walk.check(page, "settling after the provider was asked")
    # Its list instead.
    page.fill("textarea[name=list]", "order_id;number")
    page.locator("form[action='/purchases/compare'] button").click()
    page.wait_for_selector("text=0 of the 1 are in the list")
    walk.check(page, "settling after a list was compared")
    page.goto(BASE + parked)
    form = opened(page, "resolve")
    form.locator("input[value=not-bought]").check()
    send(page, form)

    page.goto(BASE + "/providers")
    act(page, "open")
    walk.check(page, "providers of which one does not buy")
    act(page, "close")
    page.goto(BASE + partner + "/access")
    act(page, "disable")
    page.goto(BASE + partner + "/access")
    walk.check(page, "a partner that is disabled")
    act(page, "enable")
    partner_acts(walk, page, partner)
    page.goto(BASE + partner)
    act(page, "pause")

    # The webhooks of a paused endpoint are not sent, so the resend cannot end before it is cancelled.
    page.goto(BASE + "/resends")
    page.locator("details.action summary").click()
    page.select_option("select[name=state]", "delivered")
    page.select_option("select[name=since]", "7days")
    page.get_by_role("button", name="Preview").click()
    form = page.locator("form[action='/resends']")
    form.locator("input[name=reason]").fill("the walk of tests/console")
    form.locator("button").click()
    page.wait_for_selector("h1:has-text('Webhooks sent again')")
    walk.check(page, "resend")
    act(page, "cancel")
    page.goto(BASE + "/needs")
    walk.check(page, "needs with a paused endpoint")
    act(page, "resume")
    page.goto(BASE + "/actions")
    for command in ("resend start", "topup show-code", "placement resolve --not-bought", "provider open", "provider close", "provider reconcile",
                    "partner disable", "partner enable", "partner set-limits", "partner set-webhook",
                    "endpoint test", "endpoint show-url", "topup usage",
                    "endpoint pause", "endpoint resume", "resend cancel"):
        if page.locator("td", has_text=command).count() == 0:
            walk.problems.append(f"the screen of actions lacks {command}")


def pages(page):
    """The paths of the pages: the newest order and its partner, found by clicks."""
    page.goto(BASE + "/orders")
    row = page.locator("tbody tr").first
    partner = row.locator("a[href^='/partners/']").get_attribute("href")
    row.locator("a[href^='/orders/']").click()
    page.wait_for_selector("h2:has-text('What happened')")
    order = urllib.parse.urlsplit(page.url).path
    return order, partner


def search(walk, page, order):
    """One search from the box leads to the order."""
    page.goto(BASE + order)
    external = page.locator("h1").inner_text()
    page.fill("input[name=q]", external)
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('What happened')")
    if urllib.parse.urlsplit(page.url).path != order:
        walk.problems.append(f"the search for {external} led to {page.url}")


def refused(walk, page, partner):
    """A request that ingress refused is on the page of its partner, with the id that the partner got."""
    page.goto(BASE + partner + "/access")
    access_key = page.locator("dt:has-text('Access key') + dd").inner_text()
    brand = os.environ.get("BRAND") or "Service"
    headers = {"Access-Key": access_key, "Timestamp": str(int(time.time())), "Signature": "bm9uZQ=="}
    url = os.environ["BASE_URL"] + "/api/v1/api_partner/orders"
    request = urllib.request.Request(url, b"{}", {f"X-{brand}-{name}": value for name, value in headers.items()})
    try:
        urllib.request.urlopen(request)
        walk.problems.append("a request with a wrong signature was accepted")
        return
    except urllib.error.HTTPError as error:
        request_id = error.headers["X-Request-Id"]
    # Ingress writes what it refused some seconds later.
    for _ in range(200):
        page.goto(BASE + partner + "/refused")
        if page.locator(".group", has_text="signature_invalid").locator("tr", has_text=request_id).count() > 0:
            return
        page.wait_for_timeout(100)
    walk.problems.append(f"the page of the partner lacks the refused request {request_id}")


def every_path(order, esim, webhook, partner):
    """The name and the path of each page."""
    return {
        "webhook": webhook,
        "overview": "/", "week": "/?range=7d", "needs": "/needs", "orders": "/orders",
        "orders-filtered": "/orders?state=ready&since=24h&partner=nobody", "order": order, "esim": esim,
        "webhooks": "/webhooks", "webhooks-given-up": "/webhooks?state=exhausted", "partners": "/partners",
        "partners-with-a-problem": "/partners?state=problem", "partner": partner, "refused": partner + "/refused",
        "refused-for-one-cause": partner + "/refused?code=signature_invalid", "access": partner + "/access",
        "limits": partner + "/limits", "webhook-url": partner + "/webhook-url", "keys": partner + "/keys",
        "orders-of-a-product": "/orders?product=nothing", "webhooks-of-a-provider": "/webhooks?provider=sandbox&partner=nobody",
        "record-of-an-act": "/actions?what=partner+set-limits", "providers": "/providers",
        "resends": "/resends", "preview": "/resends/preview?since=1h&state=delivered",
        "actions": "/actions", "nothing-found": "/find?q=nothing", "zone": "/zone",
    }


def every_page(walk, name, paths, folder):
    for scheme in SCHEMES:
        for width, height in SIZES:
            context = walk.context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = sign_in(context, name)
            for title, path in paths.items():
                page.goto(BASE + path)
                walk.check(page, f"{title} at {width}, {scheme}")
                if folder and (width, scheme) in ((1440, "light"), (360, "dark")):
                    page.screenshot(path=str(folder / f"console-{title}-{width}.png"))
            context.close()


def without_script(walk, name, order, partner, paths):
    """The pages say the same without JavaScript, and forms work: those of acts, and that of the zone, which every page then
    follows."""
    context = walk.context(java_script_enabled=False)
    page = sign_in(context, name)
    for title, path in paths.items():
        page.goto(BASE + path)
        if page.locator("h1").count() != 1 or page.locator("nav a.to").count() < 8:
            walk.problems.append(f"{title} is not whole without JavaScript")
    page.goto(BASE + order)
    if page.locator("ol.story li").count() == 0:
        walk.problems.append("without JavaScript the order has no steps")
    for what in ("pause", "resume"):
        page.goto(BASE + partner)
        act(page, what)
    page.goto(BASE + partner + "/limits")
    page.fill("input[name=orders_per_second]", "21")
    send(page, page.locator(f"form[action='{partner}/limits']"))
    page.goto(BASE + "/zone?back=" + order)
    page.select_option("select[name=zone]", "Asia/Tokyo")
    page.get_by_role("button", name="Use it").click()
    if page.url != BASE + order or "Tokyo" not in page.locator("time").first.get_attribute("data-exact"):
        walk.problems.append(f"the zone that was chosen is not that of {page.url}")
    context.close()


def measure(program, browser, name, number):
    """How long each page takes with many orders stored, as the browser's network sees it."""
    store_orders(number)
    store_partners(min(number // 100, 10_000), min(number // 10, 100_000))
    context = browser.new_context()
    page = sign_in(context, name)
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
        "/", "/?range=7d", "/needs", "/orders", "/orders?state=failed", "/orders?provider=nobody", f"/orders?product={product}",
        f"/orders?partner={mine}", f"/orders?partner={mine}&state=failed", "/orders?partner=Measured+77", order, esim,
        "/webhooks", "/webhooks?state=exhausted", "/webhooks?state=pending", "/webhooks?provider=nobody",
        f"/webhooks?partner={gave_up}&state=exhausted", f"/webhooks/{webhook}", "/partners", "/partners?state=problem",
        "/partners?partner=measured", partner, f"/partners/{gave_up}", f"{partner}/refused", f"{partner}/access", "/providers",
        "/resends", "/resends/preview?since=7days", "/resends/preview?since=1h&state=delivered", "/actions",
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
    context.close()
    if slow:
        sys.exit("above the bound: " + ", ".join(slow))


def store_orders(number):
    """Copies of the demo's order, with ids and times of their own, written by one statement. The oldest one is parked; its path
    is returned."""
    sql = f"""
        WITH partner AS (SELECT partner_id FROM partners ORDER BY created_at DESC LIMIT 1), new AS MATERIALIZED (
            SELECT gen_random_uuid() AS order_id, gen_random_uuid() AS placement_id, gen_random_uuid() AS delivery_id,
                   '2024' || lpad(n::text, 22, '0') AS topup_id, n, now() - n * interval '1 second' AS at, partner_id
            FROM generate_series(1, {int(number)}) n, partner
        ), o AS (INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, created_at)
                 SELECT order_id, partner_id, 'measured-' || n, at, at FROM new
        ), p AS (INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at, placed_at, created_at)
                 SELECT placement_id, order_id, partner_id, 'sandbox', 'ready', 'placed', 1, at, at, at FROM new
        ), t AS (INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
                 SELECT topup_id, placement_id, 0, placement_id, 'ready' FROM new
        ), e AS (INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, ready_at, delivery_id)
                 SELECT topup_id, 'sandbox', 'm' || n, '89' || lpad(n::text, 17, '0'), at, delivery_id FROM new)
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, delivered_at, status, duration_ms, created_at)
        SELECT delivery_id, partner_id, 'topup.ready', topup_id, order_id, 'delivered', 1, at, at, 200, 12, at FROM new"""
    refused = """
        INSERT INTO refused_requests (request_id, partner_id, kind, at, status, reason, errors, method, path, external_order_id, unrecorded)
        SELECT gen_random_uuid(), partner_id, kind, now() - n * interval '1 minute', 422, 'qty_invalid', 'qty_invalid; item=0', 'POST',
               '/api/v1/api_partner/orders', 'refused-' || n, 0
        FROM (SELECT partner_id FROM partners ORDER BY created_at DESC LIMIT 1) partner, generate_series(1, 1000) n,
             unnest(ARRAY['order', 'other', 'unsigned']) kind"""
    psql(sql, refused, "ANALYZE")
    parked = f"""
        WITH parked AS (UPDATE placements p SET state = 'parked', placed_at = NULL, reason = 'the outcome stays unknown'
                        FROM orders o WHERE o.order_id = p.order_id AND o.external_order_id = 'measured-{int(number)}'
                        RETURNING p.placement_id, p.order_id, p.partner_id
        ), held AS (INSERT INTO held (id, state, provider, partner_id) SELECT placement_id, 'parked', 'sandbox', partner_id FROM parked)
        SELECT order_id FROM parked"""
    return f"/orders/{psql(parked)}"


def store_partners(number, exhausted):
    """Further partners with the key of the newest one, and given-up webhooks of its eSIMs, shared among a hundred
    of them."""
    psql(f"""
        WITH model AS (SELECT * FROM partners ORDER BY created_at DESC LIMIT 1)
        INSERT INTO partners (partner_id, name, environment, access_key, secret_key, version, created_at)
        SELECT gen_random_uuid(), 'Measured ' || n, environment, md5(n::text), secret_key, 0, created_at - n * interval '1 second'
        FROM model, generate_series(1, {int(number)}) n""", """
        UPDATE partner_endpoints e SET url = 'https://' || e.endpoint_id || '.measured.example/'
        FROM partners p WHERE p.partner_id = e.endpoint_id AND p.name LIKE 'Measured %'""", f"""
        WITH few AS (SELECT partner_id, row_number() OVER () - 1 AS nth FROM partners WHERE name LIKE 'Measured %' LIMIT 100),
        new AS MATERIALIZED (
            SELECT gen_random_uuid() AS id, partner_id, topup_id, order_id, n FROM (
                SELECT topup_id, order_id, row_number() OVER () AS n FROM deliveries WHERE kind = 'topup.ready' LIMIT {int(exhausted)}
            ) d JOIN few ON few.nth = d.n % 100
        ), held AS (INSERT INTO held (id, state, provider, partner_id) SELECT id, 'exhausted', '', partner_id FROM new)
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, status, duration_ms, created_at)
        SELECT id, partner_id, 'topup.ready', topup_id, order_id, 'exhausted', 24, now(), 500, 12, now() - n * interval '1 second'
        FROM new""", "ANALYZE")


def psql(*statements):
    """Runs statements as the owner. The password goes through the environment, because all users of the machine can see
    arguments."""
    url = urllib.parse.urlsplit(os.environ["DATABASE_URL"])
    login = {"PGHOST": url.hostname, "PGPORT": str(url.port), "PGUSER": url.username, "PGPASSWORD": url.password,
             "PGDATABASE": url.path.lstrip("/")}
    # ANALYZE warns of each table of the server that is not the owner's.
    command = [os.environ["PG_BIN"] + "/psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", "SET client_min_messages = error"]
    for one in statements:
        command += ["-c", one]
    return subprocess.run(command, check=True, env={**os.environ, **login}, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(program, axe, *options):
    name = f"walker-{os.getpid()}"
    made = esimctl(program, "operator", "create", name, "--role", "operator")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        walk = Walk(axe, browser, name)
        context = walk.context()
        page = context.new_page()
        set_up(walk, page, made["link"])
        if options[:1] == ("--measure",):
            measure(program, browser, name, int(options[1]))
            return
        order, partner = pages(page)
        esim = page.locator("a[href^='/esims/']").first.get_attribute("href")
        webhook = page.locator("a[href^='/webhooks/']").first.get_attribute("href")
        search(walk, page, order)
        refused(walk, page, partner)
        support(walk, program, order, esim, partner)
        signed_in_by_provider(walk, order, partner)
        ended(walk, program, order)
        actions(walk, page, order, partner)
        context.close()
        folder = pathlib.Path(options[1]) if options[:1] == ("--pictures",) else None
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        paths = every_path(order, esim, webhook, partner)
        every_page(walk, name, paths, folder)
        without_script(walk, name, order, partner, paths)
        browser.close()
    if walk.problems:
        sys.exit("\n".join(dict.fromkeys(walk.problems)))
    print(f"console: {walk.checked} pages checked, nothing serious")


if __name__ == "__main__":
    main(*sys.argv[1:])
