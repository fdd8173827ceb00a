"""Checks of exemplars, and of the format that carries them."""

import os
import time
import urllib.request

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

OPENMETRICS = "application/openmetrics-text"
SERVICES = ("INGRESS", "PROVISIONER", "NOTIFIER", "SANDBOX", "CONSOLE")


def latencies(boards):
    """Each panel that draws a histogram over time, with its targets of it."""
    for file, board in boards:
        for panel in board["panels"]:
            targets = [target for target in panel.get("targets", []) if "_bucket" in target["expr"]]
            if targets and panel["type"] == "timeseries":
                yield f"{file}: {panel['title']}", targets


def check_panels(boards):
    """Each panel of latency shows exemplars, once: those of one histogram are the same for each of its quantiles."""
    for where, targets in latencies(boards):
        shown = sum(1 for target in targets if target.get("exemplar"))
        if shown != 1:
            yield f"{where}: {shown} queries show exemplars"


def check_stored(boards, prometheus, filled_in, spans):
    """Prometheus has an exemplar for each of these panels, whose trace the collector has, too."""
    exported = spans.read_bytes()
    for where, targets in latencies(boards):
        for target in targets:
            if not target.get("exemplar"):
                continue
            now = time.time()
            answer = prometheus.api("query_exemplars", query=filled_in(target["expr"]), start=now - 300, end=now)
            if answer["status"] != "success":
                yield f"{where}: {answer['error']}"
                continue
            traces = {one["labels"]["trace_id"] for series in answer["data"] for one in series["exemplars"]}
            if not any(bytes.fromhex(trace) in exported for trace in traces):
                yield f"{where}: the collector has none of the {len(traces)} traces that Prometheus names"


def scraped(service, accept):
    request = urllib.request.Request(os.environ[f"{service}_ADMIN_URL"] + "/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def check_formats():
    """OpenMetrics is valid and has the same series as the older text, which is what everybody else gets."""
    for service in SERVICES:
        kind, text = scraped(service, f"{OPENMETRICS};version=1.0.0,text/plain;q=0.5")
        if kind != f"{OPENMETRICS}; version=1.0.0; charset=utf-8":
            yield f"{service}: OpenMetrics was asked for and {kind} came"
            continue
        try:
            new = names(openmetrics_parser.text_string_to_metric_families(text))
        except ValueError as error:
            yield f"{service}: this is not OpenMetrics: {error}"
            continue
        kind, text = scraped(service, "*/*")
        if not kind.startswith("text/plain"):
            yield f"{service}: {kind} came unasked"
            continue
        old = names(parser.text_string_to_metric_families(text))
        if new != old:
            yield f"{service}: only one of the two formats has {sorted(new ^ old)[:5]}"


def names(families):
    """The samples without their values; a bound of a bucket is 1 in the older text and 1.0 in OpenMetrics."""
    found = set()
    for family in families:
        for sample in family.samples:
            labels = {name: str(float(value)) if name == "le" else value for name, value in sample.labels.items()}
            found.add((family.type, sample.name, tuple(sorted(labels.items()))))
    return found
