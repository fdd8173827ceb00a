"""walk.py ESIMCTL AXE [--pictures FOLDER | --measure N]: see tests/console/run.

It finds the system by the variables of .local/env (CONSOLE_URL, BASE_URL, DATABASE_URL, DATABASE_ADMIN_URL, PG_BIN),
and the OpenID provider by OIDC_ISSUER.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from crawl import BASE, PASSWORD, REASON, ROUTES, Crawl, Walk
from measure import measure
from playwright.sync_api import sync_playwright
from rows import psql, store_orders, store_partners
from states import away, charts, nothing_found, slow, store_figures

# What the walk does before and after the crawl.
BY_HAND = {"/set-up", "/sign-in", "/sign-out", "/esims/{id}/suspend", "/esims/{id}/resume"}


def esimctl(program, *arguments):
    output = subprocess.run([program, *arguments, "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def sign_in(walk, page, name, scripts=True):
    """Signs in by the form, which was checked, and comes to the overview."""
    page.goto(BASE + "/")
    walk.check(page, "sign-in", scripts)
    page.fill("input[name=name]", name)
    page.fill("input[name=password]", PASSWORD)
    page.click("main button")
    page.wait_for_selector(".verdict h1")


def set_up(walk, page, link, scripts=True):
    """The way of a new operator, from the link to the overview. Without scripts the link is pasted."""
    page.goto(link)
    walk.check(page, "set-up", scripts)
    if not scripts:
        page.fill("input[name=link]", link)
    page.fill("input[name=password]", PASSWORD)
    page.fill("input[name=again]", PASSWORD)
    page.click("main button")
    page.wait_for_selector(".verdict h1")


def send(page, form):
    """Gives a form a reason and sends it."""
    form.locator("input[name=reason]").fill(REASON)
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
    """Support sends webhooks again, pauses endpoints, takes matters and sees activation codes, and does nothing else."""
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
    offers(walk, page, "support", ["usage", "resend", "code", "suspend"])
    act(page, "usage")
    suspended(walk, page, esim)
    page.goto(BASE + partner)
    act(page, "test")
    page.wait_for_selector("h1:has-text('webhook.test')")
    walk.check(page, "a test webhook")
    for path, offered in ((partner, ["pause", "test"]), ("/needs", ["told", "take", "resume"]), ("/resends", []), ("/providers", [])):
        page.goto(BASE + path)
        offers(walk, page, "support", offered)
    context.close()


def suspended(walk, page, esim):
    """An eSIM is suspended, and resumed once its provider has said that it is suspended, which the crawl does not wait for."""
    page.goto(BASE + esim)
    act(page, "suspend")
    for _ in range(200):
        page.goto(BASE + esim)
        if page.locator("form[action$='/resume']").count() > 0:
            act(page, "resume")
            walk.check(page, "an eSIM that was suspended")
            return
        page.wait_for_timeout(100)
    walk.problems.append("a suspended eSIM cannot be resumed")


def ended(walk, program, order, name):
    """A form whose session has ended comes back to its page, and says that nothing was done."""
    context = walk.context()
    page = by_provider(context, "on-call", order)
    esimctl(program, "operator", "set", "oidc:on-call@example.com", "--signed-out")
    form = opened(page, "resend")
    form.locator("input[name=reason]").fill(REASON)
    form.locator("button").click()
    page.wait_for_selector("text=was not carried out")
    walk.check(page, "sign-in after the end of a session")
    page.fill("input[name=name]", name)
    page.fill("input[name=password]", PASSWORD)
    page.click("main button")
    page.wait_for_selector("h2:has-text('What happened')")
    context.close()


def pages(page):
    """The paths of the demo's order and of its partner, whose page is shown then."""
    order = "/orders/" + psql("SELECT order_id FROM orders WHERE external_order_id NOT LIKE 'measured-%' ORDER BY created_at LIMIT 1")
    page.goto(BASE + order)
    page.wait_for_selector("h2:has-text('What happened')")
    return order, page.locator("main a[href^='/partners/']").first.get_attribute("href").partition("/refused")[0]


def search(walk, page, order):
    """One search from the box leads to the order, and while somebody types it stands under the box."""
    page.goto(BASE + order)
    external = page.locator("h1").inner_text()
    page.locator("input[name=q]").press_sequentially(external[:6])
    page.wait_for_selector("#hints li")
    walk.check(page, "the box while somebody types")
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


def settling(walk, page):
    """All purchases with one cause: the provider is asked, and what it certainly does not have may be bought again."""
    page.goto(BASE + "/needs")
    page.locator("a[href^='/purchases/settle']").first.click()
    send(page, page.locator("form[action='/purchases/ask']"))
    page.wait_for_selector("select option[value=retry]", state="attached")
    walk.check(page, "settling after the provider was asked")


def menu(walk, page, scripts):
    """On a narrow window the pages stand in a menu, which opens without scripts, too."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(BASE + "/orders")
    page.click("button.menu")
    page.wait_for_selector("nav a.to:visible")
    walk.wide(page, "the menu")
    if scripts and walk.axe:
        walk.look(page, "the menu")


def errors(walk, page, scripts):
    """What is no page says so."""
    walk.refuses = True
    for path in ("/nothing", "/orders/nothing", "/partners/nothing"):
        page.goto(BASE + path)
        walk.check(page, f"error {path}", scripts)
    walk.refuses = False


def changed(walk, context, page, partner):
    """A form of a page that somebody else's act has made old does nothing, and says so."""
    page.goto(BASE + partner)
    other = context.new_page()
    other.goto(BASE + partner)
    act(other, "pause")
    walk.refuses = True
    form = opened(page, "pause")
    form.locator("input[name=reason]").fill(REASON)
    form.locator("button").click()
    page.wait_for_selector("text=has changed since the page was shown")
    walk.check(page, "changed meanwhile")
    walk.refuses = False
    act(other, "resume")
    other.close()


def zone(walk, page, order):
    """The zone that somebody chooses is that of the times on every page."""
    page.goto(BASE + "/zone?back=" + order)
    page.select_option("select[name=zone]", "Asia/Tokyo")
    page.get_by_role("button", name="Use it").click()
    page.wait_for_selector("h2:has-text('What happened')")
    if page.url != BASE + order or "Tokyo" not in page.locator("time").first.get_attribute("data-exact"):
        walk.problems.append(f"the zone that was chosen is not that of {page.url}")


def prepare(program, first):
    """What acts are about: a product of two providers, further keys of partners, orders, some on hold or given back, and partners whose endpoints are paused,
    so that what is sent again does not end."""
    psql("INSERT INTO options (option_id, name, provider, provider_option_id, environment, version, alternatives) "
         "VALUES ('00000000-0000-4000-8000-000000000009', 'Sold by two', 'sandbox', 'two', 'live', 0, "
         "'[{\"provider\": \"second\", \"provider_option_id\": \"two\"}]') ON CONFLICT DO NOTHING")
    store_orders(120, first, on_hold=6, given_back=4)
    store_partners(3, 30, first)
    for number in range(first, first + 3):
        subprocess.run([program, "endpoint", "pause", f"Measured {number}", "--reason", "prepares the walk"], check=True, stdout=subprocess.DEVNULL)
    for partner in esimctl(program, "partner", "list"):
        esimctl(program, "partner", "key", "create", partner["partner_id"], "--name", f"Agent {first}", "--rights", "order,read",
                "--reason", "prepares the walk")


def recorded(walk, page, name, reasons):
    """Each act is in the record of actions with its reason."""
    number = int(psql(f"SELECT count(*) FROM operator_actions WHERE operator = '{name}' AND reason = '{REASON}'"))
    if number < reasons:
        walk.problems.append(f"{name} has given {reasons} reasons, and the record has {number}")
    page.goto(BASE + "/actions?by=" + name)
    if page.locator("td", has_text=REASON).count() == 0:
        walk.problems.append("the screen of actions has none of the walk")


def crawl(walk, program, scripts):
    """The walk of a new operator, with the scripts of the pages or without."""
    name = f"walker-{os.getpid()}" + ("" if scripts else "-plain")
    made = esimctl(program, "operator", "create", name, "--role", "operator")
    context = walk.context(java_script_enabled=scripts)
    page = context.new_page()
    if scripts:
        store_figures()
    set_up(walk, page, made["link"], scripts)
    if scripts:
        # Before there is something that needs a person.
        charts(walk, page)
    prepare(program, 1 if scripts else 1_001)
    order, partner = pages(page)
    esim = page.locator("a[href^='/esims/']").first.get_attribute("href")
    if scripts:
        search(walk, page, order)
        refused(walk, page, partner)
        support(walk, program, order, esim, partner)
        signed_in_by_provider(walk, order, partner)
        ended(walk, program, order, name)
        nothing_found(walk, page)
        slow(walk, page)
        settling(walk, page)
        changed(walk, context, page, partner)
    menu(walk, page, scripts)
    errors(walk, page, scripts)
    url = psql(f"SELECT url FROM partner_endpoints WHERE endpoint_id = '{partner.rsplit('/', 1)[1]}'")
    fields = {"partner": "measured 1", "q": "measured", "url": url, "by": name, "order": "refused-1"}
    how = "with scripts" if scripts else "without scripts"
    began = time.monotonic()
    one = Crawl(walk, page, scripts, fields)
    # The demo's order has a real eSIM, so its acts are carried out.
    one.queue.extend((path, "") for path in (order, esim, partner))
    one.run()
    print(f"console: {len(one.paths)} pages, {len(one.forms)} filters and {len(one.done)} acts {how}, "
          f"{time.monotonic() - began:.0f} s")
    recorded(walk, page, name, one.reasons)
    zone(walk, page, order)
    page.goto(BASE + "/")
    page.locator("form[action='/sign-out'] button").evaluate("(one) => one.form.submit()")
    page.wait_for_selector("input[name=password]")
    sign_in(walk, page, name, scripts)
    if not scripts:
        # The last of all, because the processes need a while until they work again.
        context.close()
        context = walk.context()
        page = context.new_page()
        sign_in(walk, page, name)
        away(walk, context, page)
    context.close()
    return one.done


def main(program, axe, *options):
    began = time.monotonic()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        folder = pathlib.Path(options[1]) if options[:1] == ("--pictures",) else None
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        walk = Walk(axe, browser, folder)
        if options[:1] == ("--measure",):
            made = esimctl(program, "operator", "create", f"measurer-{os.getpid()}", "--role", "operator")
            context = browser.new_context()
            page = context.new_page()
            set_up(Walk(None, browser), page, made["link"])
            measure(context, page, pages, int(options[1]))
            return
        # A purchase or a change of an eSIM may be settled by another act before its own one comes, in one of the two ways.
        done = crawl(walk, program, True) | crawl(walk, program, False) | BY_HAND
        browser.close()
    walk.problems.extend(f"POST {path} was never carried out" for method, path in ROUTES if method == "POST" and path not in done)
    problems = [*dict.fromkeys(walk.problems), *walk.left_out()]
    if problems:
        sys.exit("\n".join(problems))
    print(f"console: {walk.checked} pages checked at each width and in each scheme in {time.monotonic() - began:.0f} s, nothing serious")


if __name__ == "__main__":
    main(*sys.argv[1:])
