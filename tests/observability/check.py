"""Checks of deploy/observability; tests/observability/run says which.

check.py files DEPLOY OPERATIONS_MD METRICS_MD
check.py system DEPLOY PROMETHEUS_URL SPANS      (settings of the running system in the environment)
"""

import base64
import hashlib
import hmac
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import yaml

import alert_tests
import exemplars
import inhibition

# --- PromQL, as far as it is needed to know what an expression names -----------------------------

TOKEN = re.compile(
    r'\s+|(?P<text>"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')|(?P<range>\[[^\]]*\])|(?P<number>[0-9][0-9a-zA-Z_.]*)'
    r"|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<sign>=~|!~|!=|==|>=|<=|.)"
)
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


def names_in(expr):
    """The selectors of an expression as (metric, [(label, operator, value)]), and the labels it groups by."""
    tokens = [(m.lastgroup, m.group()) for m in TOKEN.finditer(expr) if m.lastgroup]
    selectors, labels, i = [], set(), 0
    while i < len(tokens):
        kind, text = tokens[i]
        following = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        i += 1
        if kind != "name" or text in WORDS:
            continue
        if text in LISTS:
            while tokens[i][1] != ")":
                if tokens[i][0] == "name":
                    labels.add(tokens[i][1])
                i += 1
        elif following == "{":
            matchers, i = [], i + 1
            while tokens[i][1] != "}":
                if tokens[i][0] == "name":
                    matchers.append((tokens[i][1], tokens[i + 1][1], tokens[i + 2][1][1:-1].replace("\\\\", "\\")))
                    i += 2
                i += 1
            selectors.append((text, matchers))
        elif following not in ("(", "by", "without"):
            selectors.append((text, []))
    return selectors, labels


# --- what the files say -----------------------------------------------------------------------------

VARIABLES = {"$__rate_interval": "30s", "$provider": ".*"}


def filled_in(expr):
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def dashboards(deploy):
    for path in sorted((deploy / "grafana/dashboards").glob("*.json")):
        yield path.name, json.loads(path.read_text())


def panels_with_queries(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def check_first_look(deploy):
    """Whether the first look has eight panels, each of which is one of the dashboard of orders, so that both show the same."""
    boards = dict(dashboards(deploy))
    every = [panel["targets"] for panel in panels_with_queries(boards["orders.json"])]
    first = boards["first-look.json"]["panels"]
    problems = [] if len(first) == 8 else [f"first-look.json: {len(first)} panels"]
    for panel in first:
        if panel["targets"] not in every:
            problems.append(f"first-look.json: {panel['title']}: no panel of orders.json asks the same")
    return problems


def rules(deploy, kind):
    """The rules of a kind: alert or record."""
    groups = yaml.safe_load((deploy / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


# What others export: CloudNativePG, kubelet, node_exporter, Prometheus itself. A local system has none but the last two.
FOREIGN = re.compile(r"(cnpg_|barman_cloud_|esim_backup_|esim_drill_|kubelet_volume_stats_|node_filesystem_)\w+|ALERTS")
# Labels that Prometheus adds.
ADDED = {"job", "instance", "le"}


def documented(metrics_md):
    """The labels of each metric in the table of docs/metrics.md."""
    found = {}
    for row in re.findall(r"^\| `(\w+)` \|(.*)\|$", metrics_md, re.MULTILINE):
        found[row[0]] = set(re.findall(r"`(\w+)`", row[1].split("|")[2]))
    return found


def row_of(table, metric):
    """The name under which docs/metrics.md has a metric: a histogram without its suffix."""
    return next((one for one in (metric, re.sub("_(bucket|count|sum)$", "", metric)) if one in table), None)


def check_documented(table, records, expr, where):
    """Each metric of an expression is in docs/metrics.md with these labels, is a record, or is foreign."""
    problems = []
    for metric, matchers in names_in(expr)[0]:
        if metric in records or metric == "up" or FOREIGN.fullmatch(metric):
            continue
        base = row_of(table, metric)
        if base is None:
            problems.append(f"{where}: docs/metrics.md has no {metric}")
            continue
        for label, _, _ in matchers:
            if label not in table[base] | ADDED:
                problems.append(f"{where}: docs/metrics.md names no label {label} of {metric}")
    return problems


def anchors(markdown):
    """The anchors of headings as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", markdown, re.MULTILINE):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


# Of these labels, sandbox never pages.
SANDBOX = {"provider", "environment"}


def check_sandbox(table, records, rule):
    """In a rule that pages, and in its records, each metric that tells sandbox from live leaves sandbox out."""
    selectors = names_in(rule["expr"])[0]
    selectors += [one for metric, _ in selectors for one in names_in(records.get(metric, ""))[0]]
    for metric, matchers in selectors:
        could = SANDBOX & table.get(row_of(table, metric), set())
        # The provisioner's rows have a provider, the notifier's an environment.
        if ("stage", "=", "notifier") in matchers:
            could -= {"provider"}
        if ("stage", "=", "provisioner") in matchers:
            could -= {"environment"}
        for label in could - {label for label, operator, value in matchers if (operator, value) == ("!=", "sandbox")}:
            # What another selector is matched with needs no matcher of its own.
            if f"unless on ({label}) {metric}" not in rule["expr"]:
                yield f'alert {rule["alert"]} pages: {metric} needs {label}!="sandbox"'


def check_files(deploy, operations, metrics_md):
    problems = []
    runbook = operations.read_text()
    sections = anchors(runbook)
    table, records = documented(metrics_md.read_text()), {rule["record"]: rule["expr"] for rule in rules(deploy, "record")}
    groups = alert_tests.groups_of(deploy / "prometheus/alerts.yml")
    tests = [test for path in sorted((deploy / "prometheus").glob("*_test.yml")) for test in alert_tests.expand(groups, path)]
    fires, silent = set(), set()
    for test in tests:
        for case in test["alert_rule_test"]:
            (fires if case["exp_alerts"] else silent).add(case["alertname"])
    names = [rule["alert"] for rule in rules(deploy, "alert")]
    for rule in rules(deploy, "alert"):
        name, annotations, severity = rule["alert"], rule.get("annotations", {}), rule.get("labels", {}).get("severity")
        anchor = f"docs/operations.md#{name.lower()}"
        wrong = {
            "there are several": names.count(name) > 1,
            "no test in which it fires": name not in fires,
            "no test in which it doesn't": name not in silent,
            "its severity is neither page nor ticket": severity not in ("page", "ticket"),
            f"its runbook_url is not {anchor}": annotations.get("runbook_url") != anchor,
            "docs/operations.md has no section for it": name.lower() not in sections,
            "docs/operations.md does not give its severity": runbook.count(f"\n### {name}\n\n*{severity}*\n") != 1,
        }
        wrong |= {f"no {wanted}": not annotations.get(wanted) for wanted in ("summary", "description", "runbook_url")}
        problems += [f"alert {name}: {what}" for what, is_so in wrong.items() if is_so]
        if severity == "page":
            problems += check_sandbox(table, records, rule)
        problems += check_documented(table, records, rule["expr"], f"alert {name}")
    expressions = [rule["expr"] for rule in rules(deploy, "record") + rules(deploy, "alert")]
    for _, dashboard in dashboards(deploy):
        for panel in panels_with_queries(dashboard):
            expressions += [target["expr"] for target in panel["targets"]]
    used = {metric for expr in expressions for metric, _ in names_in(filled_in(expr))[0]}
    for rule in rules(deploy, "record"):
        if rule["record"] not in used:
            problems.append(f"record {rule['record']}: no alert and no panel uses it")
        problems += check_documented(table, records, rule["expr"], f"record {rule['record']}")
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules(deploy, "alert")}
    problems += inhibition.check(yaml.safe_load((deploy / "alertmanager.yml").read_text()), severities)

    problems += check_first_look(deploy)
    problems += exemplars.check_panels(dashboards(deploy))
    for file, dashboard in dashboards(deploy):
        ids = [panel["id"] for panel in dashboard["panels"]]
        if len(ids) != len(set(ids)):
            problems.append(f"{file}: panel ids repeat")
        cells = {}
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    if not 0 <= x < 24 or cells.setdefault((x, y), panel["title"]) != panel["title"]:
                        problems.append(f"{file}: {panel['title']} overlaps or sticks out")
        for panel in panels_with_queries(dashboard):
            title = panel["title"]
            has = {
                "description": panel.get("description"),
                "unit": panel["fieldConfig"]["defaults"].get("unit"),
                "query": panel["targets"],
            }
            problems += [f"{file}: {title}: no {what}" for what, there in has.items() if not there]
            for target in panel["targets"]:
                if target["datasource"]["uid"] != "${datasource}":
                    problems.append(f"{file}: {title}: another data source")
                problems += check_documented(table, records, filled_in(target["expr"]), f"{file}: {title}")

    provisioned = yaml.safe_load((deploy / "grafana/provisioning/datasources/datasources.yml").read_text())
    if {one["uid"] for one in provisioned["datasources"]} < {"prometheus", "jaeger"}:
        problems.append("Grafana's data sources prometheus and jaeger are not provisioned")
    yaml.safe_load((deploy / "grafana/provisioning/dashboards/dashboards.yml").read_text())

    collector = yaml.safe_load((deploy / "collector.yaml").read_text())
    service = collector["service"]
    for name, pipeline in service["pipelines"].items():
        for kind in ("receivers", "processors", "exporters"):
            for part in pipeline[kind]:
                if part not in collector[kind]:
                    problems.append(f"collector.yaml: {name} uses {part}, which is not among its {kind}")
        if pipeline["processors"][0] != "memory_limiter":
            problems.append(f"collector.yaml: the first processor of {name} is not memory_limiter")
    if {"traces", "metrics", "logs"} != set(service["pipelines"]):
        problems.append("collector.yaml: not exactly the pipelines traces, metrics and logs")
    for extension in service["extensions"]:
        if extension not in collector["extensions"]:
            problems.append(f"collector.yaml: extension {extension} is not configured")
    boards = sum(1 for _ in dashboards(deploy))
    return problems, f"{len(names)} alerts, {len(tests)} tests, {len(inhibition.OUTAGES)} outages, {boards} dashboards"


# --- traffic, so that there is something to see ------------------------------------------------------


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(500 if self.path.startswith("/broken") else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def post(path, body, partner, signature=None):
    stamp = str(int(time.time()))
    key = base64.b64decode(partner["secret_key"])
    text = f"POST\n{path}\n{stamp}\n{partner['access_key']}".encode()
    headers = {
        "content-type": "application/json",
        "x-service-access-key": partner["access_key"],
        "x-service-timestamp": stamp,
        "x-service-signature": signature or hmac.new(key, text, hashlib.sha256).hexdigest(),
    }
    request = urllib.request.Request(os.environ["BASE_URL"] + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


class Traffic:
    def __init__(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        self.options = {one["name"]: one["option_id"] for one in esimctl("option", "list")}
        self.partners = [self.partner(base + path) for path in ("/works", "/broken")]
        self.partners.append(self.partner(base + "/works", "live"))
        self.partners.append(self.partner(None))
        self.live_option()

    @staticmethod
    def partner(url, environment="sandbox"):
        name = f"observed {uuid.uuid4()}"
        receives = ("--webhook-url", url, "--webhook-http-live") if url else ()
        return esimctl("partner", "create", "--name", name, "--environment", environment, *receives,
                       "--orders-per-second", "default", "--units-per-second", "default")

    def live_option(self):
        """A live partner buys from the sandbox too: pages look at live partners only."""
        ours = {one["name"]: one for one in esimctl("option", "list") if one["provider"] == "sandbox"}

        def live(name, of, **more):
            self.options[name] = str(uuid.uuid4())
            pair = {field: ours[of][field] for field in ("provider", "provider_option_id")}
            return {"option_id": self.options[name], "name": name, "environment": "live", **pair, **more}

        # The second provider rejects it, too. What is counted is that it was asked.
        further = [{"provider": "airalo", "provider_option_id": "none"}]
        options = [live("ready, live", "ready"), live("sold out, live", "out-of-stock", alternatives=further)]
        esimctl("option", "apply", "-f", "-", given=json.dumps({"options": options}))

    def order(self, option, partner=0, external=None, qty=1, signature=None):
        body = {
            "external_order_id": external or str(uuid.uuid4()),
            "products": [{"option_id": self.options.get(option, option), "qty": qty}],
        }
        sent = json.dumps(body).encode()
        return post("/api/v1/api_partner/orders", sent, self.partners[partner], signature)

    def some(self):
        # Until ingress has heard of a provisioner, it doesn't wait for the provider's refusal; and it has to read the
        # new option.
        ends = time.monotonic() + 20
        while self.order("refused") != 422 or self.order("ready, live", partner=2) != 201:
            if time.monotonic() > ends:
                raise SystemExit("for 20 s no refusal of the provider came in time for the answer, or no live order was accepted")
            time.sleep(0.2)  # between two orders
        again = str(uuid.uuid4())
        got = [
            self.order("ready", external=again, qty=2), self.order("ready", external=again),
            self.order("ready", partner=1), self.order("refused"), self.order("no such option"),
            self.order("ready", signature="0" * 64), self.order("delayed"), self.order("bought-then-error"),
        ]
        want = [201, 422, 201, 422, 422, 401, 201, 201]
        if got != want:
            raise SystemExit(f"the orders were answered with {got}, expected {want}")
        self.order("sold out, live", partner=2)
        self.order("ready", partner=3)
        self.change_esims(again)

    def change_esims(self, external):
        """Gives the first unit of this order back and extends the second one, once they are ready."""
        ends = time.monotonic() + 20
        while True:
            topups = esimctl("order", "show", external)["orders"][0]["topups"]
            if all(one["state"] == "ready" for one in topups):
                break
            if time.monotonic() > ends:
                raise SystemExit("for 20 s no eSIM was ready that could be given back")
            time.sleep(0.2)  # between two looks
        returned, extended = (f"/api/v1/api_partner/topups/{one['topup_id']}" for one in topups)
        status = post(f"{returned}/give-back", b"", self.partners[0])
        if status not in (200, 202):
            raise SystemExit(f"a give-back was answered with {status}")
        more = {"external_id": str(uuid.uuid4()), "option_id": self.options["extension"]}
        status = post(f"{extended}/extensions", json.dumps(more).encode(), self.partners[0])
        if status not in (201, 202):
            raise SystemExit(f"an extension was answered with {status}")


def esimctl(*arguments, given=None):
    command = [os.environ["BIN_DIR"] + "/esimctl", "--json", *arguments]
    done = subprocess.run(command, check=True, input=given, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)


# --- what a running system shows --------------------------------------------------------------------


class Prometheus:
    def __init__(self, url):
        self.url = url

    def api(self, path, **parameters):
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}{query}", timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def query(self, expr):
        """The series as (labels, value), or what is wrong with the expression."""
        answer = self.api("query", query=expr)
        if answer["status"] != "success":
            return [], answer["error"]
        data = answer["data"]
        if data["resultType"] in ("scalar", "string"):
            return [({}, data["result"][1])], None
        return [(one["metric"], one["value"][1]) for one in data["result"]], None


# A system that is well has none of these.
NEVER_WHEN_WELL = {
    ("http_response_status_code", "5.."),
    ("reason", "in_flight_share|delay_share|memory_share|look_ups"),
    ("reason", "delay|delay_share"),
}


def check_names(prometheus, expr, where, late=frozenset()):
    """Every metric, label and value that an expression names is there, but for records that come `late`."""
    problems, labels_there = [], {"le"}
    selectors, grouped_by = names_in(expr)
    if any(FOREIGN.fullmatch(metric) for metric, _ in selectors):
        labels_there |= grouped_by
    for metric, matchers in selectors:
        if FOREIGN.fullmatch(metric) or metric in late:
            continue
        series, error = prometheus.query(metric)
        if error or not series:
            problems.append(f"{where}: there is no metric {metric}")
            continue
        values = {}
        for labels, _ in series:
            for label, value in labels.items():
                values.setdefault(label, set()).add(value)
        labels_there.update(values)
        for label, operator, value in matchers:
            if label not in values:
                problems.append(f"{where}: {metric} has no label {label}")
            elif operator == "=" and value not in values[label]:
                problems.append(f"{where}: no {metric} has {label}={value!r}, only {sorted(values[label])}")
            elif operator == "=~" and (label, value) not in NEVER_WHEN_WELL:
                if not any(re.fullmatch(value, one) for one in values[label]):
                    problems.append(f"{where}: no {metric} has {label}=~{value!r}, only {sorted(values[label])}")
    if len(problems) == 0 and grouped_by - labels_there:
        problems.append(f"{where}: nothing in it has the labels {sorted(grouped_by - labels_there)}")
    return problems


def is_foreign(deploy, expr):
    """Whether an expression has only metrics that a local system lacks."""

    def only(known, expr):
        return all(one in known or FOREIGN.fullmatch(one) for one, _ in names_in(expr)[0])

    return only({rule["record"] for rule in rules(deploy, "record") if only((), rule["expr"])}, expr)


def check_system(deploy, prometheus):
    problems, count = [], 0
    for file, dashboard in dashboards(deploy):
        for variable in dashboard["templating"]["list"]:
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("definition", ""))
            if found:
                series, _ = prometheus.query(found[1])
                if not any(found[2] in labels for labels, _ in series):
                    problems.append(f"{file}: variable {variable['name']} finds nothing")
        for panel in panels_with_queries(dashboard):
            for target in panel["targets"]:
                count += 1
                where = f"{file}: {panel['title']} {target['refId']}"
                expr = filled_in(target["expr"])
                found, error = prometheus.query(expr)
                if error:
                    problems.append(f"{where}: {error}")
                    continue
                if is_foreign(deploy, expr):
                    continue
                problems += check_names(prometheus, expr, where)
                if not any(value != "NaN" for _, value in found):
                    problems.append(f"{where}: no numbers come of {expr}")
                for label in re.findall(r"{{(\w+)}}", target.get("legendFormat", "")):
                    if any(label not in labels for labels, _ in found):
                        problems.append(f"{where}: its legend names {label}, which not every series has")

    loaded = [rule for group in prometheus.api("rules")["data"]["groups"] for rule in group["rules"]]
    health = {rule["name"]: rule for rule in loaded}
    # A system that began a moment ago has nothing of these, because they look at a time before it. Their own expressions
    # are looked at like all others.
    late = {rule["record"] for rule in rules(deploy, "record") if " offset " in rule["expr"]}
    for kind in ("record", "alert"):
        for rule in rules(deploy, kind):
            count += 1
            where = f"{kind} {rule[kind]}"
            state = health.get(rule[kind])
            if state is None or state["health"] != "ok":
                problems.append(f"{where}: {state and state.get('lastError') or 'not evaluated'}")
            if not is_foreign(deploy, rule["expr"]):
                problems += check_names(prometheus, rule["expr"], where, late)
    return problems, f"{count} expressions of the dashboards and the alerts"


def until_well(deploy, url, spans):
    """Looks until everything is there: what is read every 15 s takes its time."""
    prometheus, traffic = Prometheus(url), Traffic()
    ends = time.monotonic() + 120
    while True:
        traffic.some()
        try:
            problems, what = check_system(deploy, prometheus)
            problems += exemplars.check_stored(dashboards(deploy), prometheus, filled_in, spans)
            problems += exemplars.check_formats()
        except (urllib.error.URLError, ConnectionError) as error:
            problems, what = [f"Prometheus does not answer: {error}"], ""
        if not problems or time.monotonic() > ends:
            return problems, what
        time.sleep(2)  # between two looks, not for something to happen


def main():
    what, deploy = sys.argv[1], pathlib.Path(sys.argv[2])
    if what == "files":
        problems, checked = check_files(deploy, pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]))
    else:
        problems, checked = until_well(deploy, sys.argv[3], pathlib.Path(sys.argv[4]))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise SystemExit(f"{len(problems)} problems")
    print(f"well: {checked}")


main()
