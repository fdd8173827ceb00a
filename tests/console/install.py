"""install.py ESIMCTL ESIM_PARTNER AXE [FOLDER]: walks the page from which travellers install, in each of its languages and states,
at 360 and 1,440 pixels, light and dark; see tests/console/run. Pictures go into FOLDER.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.parse

from crawl import SCHEMES, Walk
from playwright.sync_api import sync_playwright
from rows import psql

BASE = os.environ["BASE_URL"].rstrip("/")
LANGUAGES = ["en", "de", "es", "fr", "it", "pt", "ar", "ja", "ko", "zh-Hans"]
SIZES = [(360, 740), (1440, 900)]
PHONES = {
    "any": None,
    "iphone": "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15",
    "android": "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36",
}
# What becomes of an eSIM, by what is stored of its use.
STATES = {
    "new": "installed = false, data_used = 0",
    "installed": "installed = true, data_used = 0",
    "using": "data_used = 1288490188, data_total = 3221225472, ends_at = now() + interval '9 days'",
    "used": "data_used = data_total",
    "ended": "ends_at = now()",
}


class InstallWalk(Walk):
    """What must hold for these pages: they ask no other host, and no address but their own has the token, and none the code."""

    secrets = ()

    def request(self, request):
        url = urllib.parse.unquote(request.url)
        if not url.startswith(BASE + "/i/"):
            self.problems.append(f"a request to another address: {url}")
        if any(secret in url for secret in self.secrets[:1]):
            self.problems.append(f"the activation code is in an address: {url}")
        if not request.is_navigation_request() and any(secret in url for secret in self.secrets):
            self.problems.append(f"the token is in the address of what a page loads: {url}")
        if request.headers.get("referer"):
            self.problems.append(f"{url} was asked for with a Referer")


def run(program, *arguments, keys=None):
    made = subprocess.run([program, *arguments], env=os.environ | (keys or {}), stdout=subprocess.PIPE, text=True)
    if made.returncode:
        sys.exit(f"{program} {' '.join(arguments)}: {made.stdout}")
    return json.loads(made.stdout)


def delivered(program, keys):
    """The topup of a new order, once it is ready."""
    options = run(program, "options", keys=keys)["options"]
    option = next(one for one in options if one["name"] == "in-use")
    number = f"install-{os.getpid()}"
    ordered = run(program, "order", number, option["option_id"], keys=keys)
    topup = ordered["products"][0]["topup_id"]
    for _ in range(100):
        order = run(program, "orders", "show", number, keys=keys)
        if order["state"] == "ready":
            run(program, "usage", topup, keys=keys)
            return topup, order["topups"][0]["esim"]["activate_code"], option["option_id"]
        time.sleep(0.2)
    sys.exit(f"the order {number} is not ready")


def look(walk, page, name, pictures):
    """At each width and in each scheme, with everything unfolded."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.removeAttribute('name'); one.open = true; })")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            walk.wide(page, f"{name} at {width}")
            walk.look(page, f"{name} at {width}, {scheme}")
            if pictures:
                page.screenshot(path=str(pictures / f"install-{name}-{width}-{scheme}.png"), full_page=True)
    walk.checked += 1


def without_scripts(walk, url):
    """The page says the same, a value is selected by hand, and printing unfolds the steps."""
    context = walk.context(java_script_enabled=False, viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(url)
    if page.locator("button:visible").count() or not page.locator(".go:visible").count():
        walk.problems.append("without scripts there is a button that copies, or none that installs")
    page.emulate_media(media="print")
    if page.locator(".go:visible").count() or not page.locator(".desk .qr:visible").count():
        walk.problems.append("what is printed has a button, or no QR code")
    context.close()


def main(esimctl, esim_partner, axe, folder=None):
    began = time.monotonic()
    made = run(esimctl, "partner", "create", "--name", f"Norvada {os.getpid()}", "--environment", "sandbox", "--json")
    keys = {"BASE_URL": BASE, "ACCESS_KEY": made["access_key"], "SECRET_KEY": made["secret_key"]}
    topup, code, option = delivered(esim_partner, keys)
    psql(f"UPDATE options SET countries = '{{JP}}', data_mb = 3072, days = 10, details = '{{\"apn\": \"globaldata\", \"activation\": \"first_use\"}}' "
         f"WHERE option_id = '{option}'")
    run(esim_partner, "install-page", "set", "--name", "Norvada Travel", "--brand", "#14506b", "--brand-ink", "#ffffff",
        "--help-email", "help@norvada.example", "--help-url", "https://norvada.example/help", keys=keys)
    url = run(esim_partner, "install-page", "open", topup, keys=keys)["install_url"]
    pictures = folder and pathlib.Path(folder)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        walk = InstallWalk(axe, browser)
        walk.secrets = (code, url.rsplit("/", 1)[1])
        for state, change in STATES.items():
            psql(f"UPDATE esim_requests SET {change} WHERE topup_id = '{topup}'")
            for device, agent in PHONES.items() if state == "new" else [("any", None)]:
                context = walk.context(**({"user_agent": agent} if agent else {}))
                page = context.new_page()
                for language in LANGUAGES:
                    page.goto(f"{url}?lang={language}")
                    if page.locator("html").get_attribute("lang") != language:
                        walk.problems.append(f"{state} is not shown in {language}")
                    if (code in page.content()) != (state == "new"):
                        walk.problems.append(f"{state} in {language}: the code is in the page, or not")
                    # A language of each direction on the phones, all of them in each state.
                    if device == "any" or language in ("en", "ar"):
                        look(walk, page, f"{state}-{device}-{language}", pictures)
                if state == "new" and device == "any":
                    # The languages are links, which need no script.
                    page.goto(url)
                    page.click("a[hreflang=ja]")
                    page.wait_for_selector("html[lang=ja]")
                    without_scripts(walk, url)
                context.close()
        run(esim_partner, "install-page", "end", topup, keys=keys)
        context = walk.context(extra_http_headers={"Accept-Language": "ar"})
        walk.refuses = True
        page = context.new_page()
        if page.goto(url).status != 404:
            walk.problems.append("an ended page is still there")
        look(walk, page, "gone", pictures)
        browser.close()
    if walk.problems:
        sys.exit("\n".join(dict.fromkeys(walk.problems)))
    print(f"install page: {walk.checked} pages checked at each width and in each scheme in {time.monotonic() - began:.0f} s, nothing serious")


if __name__ == "__main__":
    main(*sys.argv[1:])
