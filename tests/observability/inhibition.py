"""One outage pages once: which alerts of an outage Alertmanager sends with our inhibit rules.

amtool checks the syntax of alertmanager.yml but runs no inhibition, so its semantics are here: a firing source silences
the targets with equal labels, where a missing label equals an empty one. An alert that is a source and a target of the
same rule is not silenced by another such alert.
"""

import re

# What fires in an outage, and what of it is sent. An alert is its name, and its labels after a comma.
OUTAGES = {
    "PostgreSQL is down": (
        "DatabaseDown IngressErrors IngressSlow OrdersBudgetBurns OrdersBudgetBurnsSlowly WebhooksBudgetBurns "
        "ProvisionerBehind,provider=usimsa ProvisionerFarBehind,provider=usimsa NotifierBehind NotifierFarBehind "
        "BacklogGrows,stage=provisioner,provider=usimsa DatabasePoolExhausted,job=ingress,instance=a StandbyMissing",
        "DatabaseDown",
    ),
    "ingress is down": (
        "IngressDown NoOrders OrdersBudgetBurns InstanceDown,job=ingress,instance=a "
        "InstanceDown,job=notifier,instance=b",
        "IngressDown InstanceDown,job=notifier,instance=b",
    ),
    "nothing runs, or Prometheus reaches nothing": (
        "IngressDown ProvisionerDown NotifierDown NoOrders InstanceDown,job=ingress,instance=a "
        "InstanceDown,job=provisioner,instance=b InstanceDown,job=notifier,instance=c",
        "IngressDown",
    ),
    "no provisioner runs": (
        "ProvisionerDown ProvisionerFarBehind,provider=usimsa ProvisionerBehind,provider=sandbox SandboxBehind "
        "UnservedProvider,provider=usimsa ConsumerStalled,stream=TOPUP_JOBS ConsumerStalled,stream=TOPUP_READY "
        "BacklogGrows,stage=provisioner,provider=usimsa BacklogGrows,stage=notifier "
        "InstanceDown,job=provisioner,instance=a",
        "ProvisionerDown ConsumerStalled,stream=TOPUP_READY BacklogGrows,stage=notifier",
    ),
    "no notifier runs": (
        "NotifierDown NotifierBehind NotifierFarBehind WebhooksBudgetBurns WebhooksFail BacklogGrows,stage=notifier "
        "ConsumerStalled,stream=TOPUP_READY InstanceDown,job=notifier,instance=a",
        "NotifierDown",
    ),
    "one of two providers is down": (
        "ProviderBreakerOpen,provider=usimsa ProvisionerFarBehind,provider=usimsa ProviderCallsFail,provider=usimsa "
        "OrdersRefused ProvisionerFarBehind,provider=other ProvisionerBehind,provider=other",
        "ProviderBreakerOpen,provider=usimsa ProvisionerFarBehind,provider=other",
    ),
    "all orders are refused": (
        "NothingGetsThrough OrdersRefused AuthFailures NoOrders",
        "NothingGetsThrough",
    ),
    "webhooks do not get out": (
        "WebhooksFail EndpointsBlocked NotifierBehind NotifierFarBehind WebhooksBudgetBurns "
        "WebhooksBudgetBurnsSlowly",
        "WebhooksFail",
    ),
    "the notifiers cannot keep up": (
        "NotifierFarBehind NotifierBehind WebhooksBudgetBurns BacklogGrows,stage=notifier",
        "NotifierFarBehind",
    ),
    "NATS is down": (
        "NatsDown MessagesNotArriving ConsumerStalled,stream=TOPUP_JOBS StreamReplicasMissing",
        "NatsDown",
    ),
    "a page and the tickets of its subject": (
        "DiskAlmostFull,volume=esim-db-1 DiskFilling,volume=esim-db-1 DiskFilling,volume=esim-db-2 XidAgeCritical "
        "XidAgeHigh OrdersBudgetBurns OrdersBudgetBurnsSlowly",
        "DiskAlmostFull,volume=esim-db-1 DiskFilling,volume=esim-db-2 XidAgeCritical OrdersBudgetBurns",
    ),
    "sandbox": (
        "SandboxBehind ProvisionerBehind,provider=sandbox ProvisionerBehind,provider=usimsa",
        "SandboxBehind ProvisionerBehind,provider=usimsa",
    ),
}


def matches(matchers, labels):
    for matcher in matchers:
        name, operator, value = re.fullmatch(r'(\w+)(=~|=)"(.*)"', matcher).groups()
        there = labels.get(name, "")
        if not (re.fullmatch(value, there) if operator == "=~" else there == value):
            return False
    return True


def sent(rules, alerts):
    def silenced(target):
        for rule in rules:
            both = matches(rule["source_matchers"], target)
            for source in alerts:
                if (
                    matches(rule["target_matchers"], target)
                    and matches(rule["source_matchers"], source)
                    and all(source.get(label, "") == target.get(label, "") for label in rule.get("equal", []))
                    and not (both and matches(rule["target_matchers"], source))
                ):
                    return True
        return False

    return [alert for alert in alerts if not silenced(alert)]


def labels_of(text, severity):
    name, *rest = text.split(",")
    return {"alertname": name, "severity": severity[name], **dict(pair.split("=") for pair in rest)}


def check(config, severity):
    """Problems of alertmanager.yml; `severity` is by alert."""
    route, rules = config["route"], config["inhibit_rules"]
    pages = [one["receiver"] for one in route["routes"] if one["matchers"] == ['severity="page"']]
    if pages != ["pager"] or route["receiver"] != "tickets":
        yield "pages do not go to the pager, or tickets do"
    names = set()
    for rule in rules:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            if matcher.startswith("alertname"):
                names |= {name for name in matcher.split('"')[1].split("|")}
    for name in sorted(names):
        if not any(re.fullmatch(name, one) for one in severity):
            yield f"alertmanager.yml: there is no alert {name}"
    alone = {f"{name} alone": (name, name) for name in severity}
    for outage, texts in {**OUTAGES, **alone}.items():
        fires, wanted = ([labels_of(text, severity) for text in alerts.split()] for alerts in texts)
        found = sent(rules, fires)
        if found != wanted:
            yield f"{outage}: {[one['alertname'] for one in found]} is sent, not {texts[1]}"
    # If each silenced the other, neither would be sent.
    for one in severity:
        for other in severity:
            pair = [{"alertname": one}, {"alertname": other}]
            if one != other and not sent(rules, pair):
                yield f"alertmanager.yml: {one} and {other} silence each other"
