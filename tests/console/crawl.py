"""What the walk of tests/console holds against every page, and how it finds the pages, the filters and the acts: by the links and
the forms of the pages, so that a new one is walked without being named anywhere. The list of the console's routes says whether
one was left out.
"""

import os
import pathlib
import re
import time
import urllib.parse
from collections import deque

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = os.environ["CONSOLE_URL"].rstrip("/")
ISSUER = os.environ["OIDC_ISSUER"]
PASSWORD = "correct horse battery staple"
REASON = "the walk of tests/console"
# Serious faults of accessibility end the walk; lesser ones are printed.
GRAVE = {"serious", "critical"}
SIZES = [(390, 844), (1440, 900)]
# Only whether something is wider than this window is looked at.
NARROWEST = (360, 740)
SCHEMES = ["light", "dark"]
# Values for fields that take no other ones. A form that answers with a 4xx needs one here.
FIELDS = {"list": "order_id;number", "from": "2026-01-01T00:00", "until": "2030-01-01T00:00", "amount": "10.00", "currency": "EUR",
          "first_month": "2026-01", "last_month": "2030-01"}
# How long a form may take to come to its page, in seconds: a provisioner may have to answer first.
PATIENCE = 20


def routes():
    """The routes of the console, from the list that its router is made of: (method, path)."""
    source = ROOT / "services/console/src"
    callback = re.search(r'CALLBACK: &str = "([^"]+)"', (source / "openid.rs").read_text())[1]
    text = (source / "routes.rs").read_text()
    found = re.findall(r'\b(page|action)\(\s*(?:"([^"]+)"|CALLBACK)\s*,', text)
    methods = {"page": "GET", "action": "POST"}
    return [(methods[kind], path or callback) for kind, path in found]


ROUTES = routes()
# A route without a placeholder goes before one that would take its path, too.
PATTERNS = [
    (method, path, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) + "$"))
    for method, path in sorted(ROUTES, key=lambda route: route[1].count("{"))
]


def route_of(method, path):
    path = urllib.parse.urlsplit(path).path
    return next((route for known, route, pattern in PATTERNS if known == method and pattern.match(path)), None)


class Walk:
    """The browser, and what was found and seen so far."""

    def __init__(self, axe, browser, folder=None):
        # Without it pages are not checked.
        self.axe = axe and pathlib.Path(axe).read_text()
        # Where pictures go.
        self.folder = folder
        self.browser = browser
        self.problems = []
        self.checked = 0
        self.visited = set()
        # The kinds of elements that axe has looked at.
        self.known = set()
        # Whether a page of an error is wanted now.
        self.refuses = False

    def context(self, **settings):
        context = self.browser.new_context(**settings)
        context.on("request", self.request)
        context.on("console", self.message)
        context.on("weberror", lambda error: self.problems.append(f"error in a page: {error.error}"))
        return context

    def visit(self, method, url):
        if url.startswith(BASE + "/"):
            self.visited.add((method, route_of(method, url.removeprefix(BASE))))

    def request(self, request):
        self.visit(request.method, request.url)
        # The pages of the OpenID provider are not ours.
        frame = "" if request.is_navigation_request() else request.frame.url
        if not request.url.startswith((BASE + "/", ISSUER + "/", "data:")) and not frame.startswith(ISSUER):
            self.problems.append(f"a request to another host: {request.url}")

    def message(self, message):
        where = message.page.url if message.page else ""
        # A browser reports the status of a page itself. A stranger gets a 403 on purpose.
        refused = self.refuses or "/sign-in/openid/callback" in where and "status of 403" in message.text
        if message.type in ("error", "warning") and not where.startswith(ISSUER) and not refused:
            self.problems.append(f"{where}: {message.type} on the console: {message.text}")

    def wide(self, page, name):
        """Nothing is wider than the window."""
        found = page.evaluate("""() => {
            const wide = document.documentElement.scrollWidth, window_ = innerWidth;
            if (wide <= window_) return null;
            const all = [...document.querySelectorAll("body *")];
            // A text may be wider than its element.
            const edge = (one) => Math.max(one.getBoundingClientRect().right,
                getComputedStyle(one).overflowX === "visible" ? one.getBoundingClientRect().left + one.scrollWidth : 0);
            const one = all.reverse().find((one) => edge(one) > window_ + 1);
            return `${wide} pixels wide in a window of ${window_}: ${one ? one.outerHTML.slice(0, 160) : ""}`;
        }""")
        if found:
            self.problems.append(f"{name}: {found}")

    def look(self, page, name):
        """Nothing serious by axe."""
        page.evaluate(self.axe)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        for one in found["violations"]:
            where = one["nodes"][0]["html"][:120]
            line = f"{name}: axe {one['impact']}: {one['id']}: {one['help']}: {where}"
            if one["impact"] in GRAVE:
                self.problems.append(line)
            else:
                print(line)

    def is_new(self, page):
        """Whether a page has a kind of element that axe has not looked at."""
        kinds = page.evaluate("""() => [...document.querySelectorAll("body *")].map((one) =>
            `${one.parentElement.tagName}.${one.parentElement.className} ${one.tagName}.${one.getAttribute("class") || ""}`)""")
        new = set(kinds) - self.known
        self.known |= new
        return bool(new)

    def check(self, page, name, scripts=True, always=True):
        """What must hold for every page, at each width and in each scheme, and with all its forms open. axe needs scripts. It
        looks at what has a new kind of element, and `always` if it is told to."""
        if not self.axe:
            return
        self.checked += 1
        page.set_viewport_size({"width": NARROWEST[0], "height": NARROWEST[1]})
        self.wide(page, f"{name} at {NARROWEST[0]}")
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        self.wide(page, f"{name} at {NARROWEST[0]} with its forms open")
        looks = scripts and (self.is_new(page) or always)
        for scheme in SCHEMES if looks or self.folder else SCHEMES[:1]:
            page.emulate_media(color_scheme=scheme)
            for width, height in SIZES:
                page.set_viewport_size({"width": width, "height": height})
                # Colours change no width.
                if scheme == SCHEMES[0]:
                    self.wide(page, f"{name} at {width}")
                if looks:
                    self.look(page, f"{name} at {width}, {scheme}")
                # The crawl makes those of what has an address.
                if self.folder and scripts and not name.startswith("/"):
                    self.picture(page, name, width, scheme)

    def picture(self, page, name, width, scheme):
        name = re.sub(r"\W+", "-", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{20,}", "one", name)).strip("-")
        page.screenshot(path=str(self.folder / f"{name}-{width}-{scheme}.png"), full_page=True)

    def left_out(self):
        """The routes that were never visited."""
        return [f"{method} {path} was never visited" for method, path in ROUTES if (method, path) not in self.visited]


class Crawl:
    """One walk through all pages, filters and acts that somebody can reach from the first page, with the scripts of the pages
    or without."""

    def __init__(self, walk, page, scripts, fields):
        self.walk = walk
        self.page = page
        self.scripts = scripts
        # What is written into a field of a name.
        self.fields = {**FIELDS, **fields}
        self.queue = deque([("/", "")])
        self.paths, self.keys, self.forms = set(), set(), set()
        # The acts that were found: their routes, and where the form of one is.
        self.acts, self.done = {}, set()
        self.reasons = 0
        self.outdated = 0

    def run(self):
        while self.queue or self.acts:
            while self.queue:
                self.visit(*self.queue.popleft())
            # An act on one thing goes before one on a group, and one that settles or ends all keys goes last: it may take the last
            # of its kind away.
            for route in sorted(self.acts, key=lambda route: ("{" not in route, route.endswith(("/settle", "/leaked"))))[:1]:
                self.act(route, *self.acts.pop(route))

    # --- pages and filters

    def key(self, path, source):
        """What is visited once: a filter of a page with a word that it offers, or with any other value; or a page that another
        kind of page leads to."""
        split = urllib.parse.urlsplit(path)
        pairs = urllib.parse.parse_qsl(split.query)
        is_word = re.compile(r"[a-z_ -]{1,24}$|\d{1,2}[a-z]{1,5}$")
        filters = frozenset((name, value if is_word.match(value) else "*") for name, value in pairs)
        return route_of("GET", path), filters, "" if filters else source

    def wants(self, path, source):
        key = self.key(path, source)
        route, filters, _ = key
        if path in self.paths or key in self.keys:
            return False
        # Several filters together are visited only where a page needs them.
        is_known = any(known[0] == route for known in self.keys)
        if len(filters) > 1 and is_known:
            return False
        self.paths.add(path)
        self.keys.add(key)
        return True

    def visit(self, path, source):
        if not self.wants(path, source):
            return
        if route_of("GET", path) is None:
            self.walk.problems.append(f"{source} leads to {path}, which is no page")
            return
        if re.search(r"\.(csv|txt)$", urllib.parse.urlsplit(path).path):
            self.walk.visit("GET", BASE + path)
            answer = self.page.context.request.get(BASE + path)
            if not answer.ok or not answer.body():
                self.walk.problems.append(f"{path}: {answer.status}")
            return
        is_first = sum(known[0] == route_of("GET", path) for known in self.keys) == 1
        answer = self.page.goto(BASE + path)
        if answer.status >= 400:
            self.walk.problems.append(f"{path}, linked from {source}: {answer.status}")
            return
        self.seen(path, is_first)
        if self.walk.folder and self.scripts and (is_first or not source.startswith("filters of")):
            self.pictures(path)

    def seen(self, path, always):
        """The page that is shown, with what it leads to."""
        page, route = self.page, route_of("GET", path)
        if page.locator("h1").count() != 1 or page.locator("nav a.to").count() < 8:
            self.walk.problems.append(f"{path} is not whole")
        self.walk.check(page, path, self.scripts, always)
        self.links(route)
        self.found(path)
        self.filters(path, route)

    def links(self, source):
        paths = self.page.eval_on_selector_all("a[href]", "all => all.map((one) => one.getAttribute('href'))")
        for path in paths:
            path = path.partition("#")[0]
            if path.startswith("/") and not path.startswith("//"):
                self.queue.append((path, source or ""))

    def described(self, method):
        """The forms of the page with their fields."""
        return self.page.eval_on_selector_all(f"form[method={method}]", """all => all.map((form) => ({
            action: form.getAttribute("action"),
            sends: Boolean(form.querySelector("button")),
            fields: [...form.elements].filter((one) => one.name && one.type !== "hidden").map((one) => ({
                name: one.name, type: one.type, value: one.value,
                options: one.options ? [...one.options].map((option) => option.value) : [],
            })),
        }))""")

    def text_for(self, field, action):
        # A reference is booked once.
        if field["name"] == "reference":
            return f"walk {action.rsplit('/', 1)[-1]} {self.scripts}"
        return self.fields.get(field["name"], "x1")

    def filters(self, path, route):
        """Each choice of each filter alone, and then all fields of the form together."""
        for number, form in enumerate(self.described("get")):
            key = (form["action"], *sorted({field["name"] for field in form["fields"]}))
            if key in self.forms:
                continue
            self.forms.add(key)
            for field in form["fields"]:
                values = field["options"] or [field["value"] if field["type"] == "radio" else self.text_for(field, form["action"])]
                # Of a long choice the first ones and the last one.
                for value in (values if len(values) < 9 else values[:4] + values[-1:]):
                    if value:
                        self.queue.append((f"{form['action']}?{urllib.parse.urlencode({field['name']: value})}", f"filters of {route}"))
            self.page.goto(BASE + path)
            self.walk.check(self.page, f"{path} again", self.scripts, False)
            shown = self.page.locator("form[method=get]").nth(number)
            for field in form["fields"]:
                control = shown.locator(f"[name='{field['name']}']")
                if field["type"] == "radio":
                    control.last.check()
                elif field["options"]:
                    control.select_option(field["options"][-1])
                else:
                    control.fill(self.text_for(field, form["action"]))
            with self.page.expect_navigation() as answer:
                shown.locator("button").first.click()
            if answer.value.status >= 400:
                self.walk.problems.append(f"{self.page.url}, by the form of {path}: {answer.value.status}")
                continue
            after = self.page.url.removeprefix(BASE)
            self.walk.check(self.page, after, self.scripts, False)
            self.links(route_of("GET", after))
            self.found(after)

    def pictures(self, path):
        name = re.sub(r"\W+", "-", self.key(path, "")[0].replace("{id}", "one")).strip("-") or "overview"
        name += "".join(f"-{value}" for _, value in sorted(self.key(path, "")[1]) if value != "*")
        while (self.walk.folder / f"{name}-1440-light.png").exists():
            name += "-"
        for scheme in SCHEMES:
            self.page.emulate_media(color_scheme=scheme)
            for width, height in SIZES:
                self.page.set_viewport_size({"width": width, "height": height})
                self.page.goto(BASE + path)
                self.walk.picture(self.page, name, width, scheme)

    # --- acts

    def found(self, path):
        """Notes the acts of the page that were not carried out yet, and returns their routes."""
        found = []
        for form in self.described("post"):
            route = route_of("POST", form["action"])
            if route is None:
                self.walk.problems.append(f"{path} has a form for {form['action']}, which is no act")
            elif form["sends"] and route not in self.done and route != "/sign-out":
                found.append((route, form["action"]))
                self.acts.setdefault(route, (path, form["action"]))
        return found

    def shown(self, path, action):
        """The form of an act on its page. It may have to wait for the answer of a provider."""
        form = self.page.locator(f"form[action='{action}']").first
        end = time.monotonic() + PATIENCE
        # Another act may have ended what the page was about, so that it is gone.
        self.walk.refuses = True
        while path is not None:
            self.page.goto(BASE + path)
            if form.locator("button").count() or time.monotonic() > end:
                break
            self.page.wait_for_timeout(200)
        self.walk.refuses = False
        return form

    def fill(self, form):
        """Fills in what a form needs: its reason, one of each choice, and what has to be written."""
        asks = form.locator("[name=reason]").count() > 0
        if asks:
            form.locator("[name=reason]").fill(REASON)
        fields = form.evaluate("""(form) => [...form.elements].filter((one) => one.name && one.type !== "hidden"
            && one.name !== "reason").map((one) => ({ name: one.name, type: one.type, value: one.value, required: one.required,
            options: one.options ? [...one.options].map((option) => option.value) : [] }))""")
        texts = [field for field in fields if field["type"] in ("text", "url", "number", "textarea")]
        for field in fields:
            control = form.locator(f"[name='{field['name']}']")
            if field["type"] == "radio":
                # One that is no grave decision, if there is one: the last of these.
                mild = form.locator(f".pick:not(.grave) [name='{field['name']}']")
                (mild if mild.count() else control).last.check()
            elif field["options"] and not field["value"]:
                control.select_option(next(one for one in field["options"] if one))
            elif field in texts and field["value"].isdigit():
                control.fill(str(int(field["value"]) + 1))
            elif field in texts and not field["value"] and (field["required"] or field["name"] in self.fields or field is texts[0]):
                control.fill(self.fields.get(field["name"], "20"))
        return asks

    def act(self, route, path, action):
        """Carries an act out once, at one width, after its page was checked, and checks the page that it leads to. What that
        offers is carried out next, so that what was stopped goes on."""
        if route in self.done:
            return
        self.done.add(route)
        page = self.page
        form = self.shown(path, action)
        if not form.count():
            # Another act has ended what it was about. Another page may offer it, and a route that none offers is named at the end.
            self.done.discard(route)
            return
        if path is not None:
            self.walk.check(page, f"before {route}, from {path}", self.scripts, False)
        number = len(self.done)
        size = SIZES[number % 2]
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=SCHEMES[number // 2 % 2])
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        asks = self.fill(form)
        with page.expect_response(lambda answer: answer.request.method == "POST" and answer.url == BASE + action) as answer:
            form.locator("button").last.click()
        page.wait_for_load_state()
        page.wait_for_selector("h1")
        self.walk.visit("POST", BASE + action)
        where = f"after {action}"
        if answer.value.status == 409 and path is not None and self.outdated < 5:
            # The notifier has tried a webhook since the page was shown. Whoever is told so looks at the page as it is now.
            self.outdated += 1
            page.wait_for_timeout(1000)
            self.walk.problems[:] = [one for one in self.walk.problems if "status of 409" not in one]
            self.done.discard(route)
            self.act(route, path, action)
            return
        if answer.value.status >= 400:
            told = page.locator("main").inner_text()[:300]
            self.walk.problems.append(f"{where}, from {path}: {answer.value.status}: {told}")
            return
        if asks:
            self.reasons += 1
        if asks and answer.value.status == 303 and page.locator("text=in the record of actions").count() == 0:
            self.walk.problems.append(f"{where}: the page does not say what was done")
        self.walk.check(page, where, self.scripts, answer.value.status == 200)
        # The answer to a form that leads nowhere else has no address of its own.
        path = page.url.removeprefix(BASE) if answer.value.status == 303 else None
        self.links(route_of("GET", path) if path else None)
        for route, action in self.found(path):
            self.acts.pop(route, None)
            self.act(route, path, action)
