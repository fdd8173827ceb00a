"""What KEDA asks Prometheus: each query of a ScaledObject is run by promtool over made-up series."""

import pathlib
import re
import subprocess
import tempfile

import yaml

METRICS = pathlib.Path("docs/metrics.md").read_text()
# The stage's stream, the setting that bounds its rows in flight, and that setting's default.
STAGES = {
    "provisioner": ("TOPUP_JOBS", "PROVIDER_CONCURRENCY", 256),
    "notifier": ("TOPUP_READY", "DELIVERY_CONCURRENCY", 512),
}


def cases(stage, threshold):
    """(what it is, series, expected value; None: no value)."""
    stream = STAGES[stage][0]
    provider = {"provisioner": ', provider="usimsa"'}.get(stage, "")

    def replicas(count, due, pending=None, in_flight=0, breaker=0):
        series = {}
        for replica in range(count):
            of = f'job="{stage}", instance="{replica}"'
            series[f"up{{{of}}}"] = 1
            series[f'esim_due_rows{{{of}, stage="{stage}"{provider}}}'] = due
            series[f'esim_jobs_in_flight{{{of}, stage="{stage}"}}'] = in_flight
            if pending is not None:
                series[f'esim_consumer_pending{{{of}, stream="{stream}", consumer="one"}}'] = pending
            if provider:
                series[f'esim_provider_breaker{{{of}{provider}}}'] = breaker
        return series

    yield "960 due rows and no message ask for replicas", replicas(2, 960, 0), 960
    yield "due rows, messages and rows in flight add up", replicas(3, 100, 20, 10), 100 + 20 + 3 * 10
    yield "nothing to do", replicas(3, 0, 0), 0
    yield "without NATS the replicas stay", replicas(7, 0), 7 * threshold
    yield "without NATS due rows ask for more", replicas(2, 9 * threshold), 9 * threshold
    down = {f'up{{job="{stage}", instance="{replica}"}}': 0 for replica in range(4)}
    yield "no replica answers: the replicas stay", down, 4 * threshold
    yield "Prometheus knows nothing of the stage: no value", {'up{job="other"}': 1}, None
    if provider:
        yield "rows behind an open breaker ask for nothing", replicas(2, 960, 0, breaker=1), 0
        yield "rows behind a half open breaker ask for nothing", replicas(2, 960, 0, breaker=2), 0
        of = 'provider="sandbox"'
        other = {f'esim_due_rows{{stage="provisioner", {of}}}': 50, f"esim_provider_breaker{{{of}}}": 0}
        yield "another provider's rows do", replicas(2, 960, 0, breaker=1) | other, 50


def check(rendered, promtool):
    """Problems as (resource, text)."""
    for one in rendered.of("ScaledObject"):
        stage = one["spec"]["scaleTargetRef"]["name"]
        if stage not in STAGES:
            yield one, "is for no stage that scales by KEDA"
            continue
        triggers = one["spec"]["triggers"]
        if [trigger.get("type") for trigger in triggers] != ["prometheus"]:
            yield one, "has not exactly one trigger of type prometheus"
            continue
        metadata = triggers[0]["metadata"]
        if metadata.get("ignoreNullValues") != "false":
            yield one, 'needs ignoreNullValues "false": no data would scale down'
        if one["spec"].get("fallback", {}).get("behavior") != "currentReplicasIfHigher":
            yield one, "needs the fallback behavior currentReplicasIfHigher: a lost Prometheus would scale down"
        _, setting, default = STAGES[stage]
        wanted = int(rendered.settings(stage).get(setting, default)) * 3 // 4
        if metadata.get("threshold") != str(wanted):
            yield one, f"its threshold is not {wanted}, three quarters of {setting}"
        for metric in sorted(set(re.findall(r"esim_\w+", metadata["query"]))):
            if f"| `{metric}` |" not in METRICS:
                yield one, f"docs/metrics.md has no {metric}"
        for problem in run(metadata["query"], list(cases(stage, wanted)), promtool):
            yield one, problem


def run(query, all_cases, promtool):
    for what, series, expected in all_cases:
        samples = [] if expected is None else [{"labels": "{}", "value": expected}]
        test = {
            "interval": "1m",
            "input_series": [{"series": name, "values": f"{value}x5"} for name, value in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": "5m", "exp_samples": samples}],
        }
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "query_test.yml"
            path.write_text(yaml.safe_dump({"tests": [test]}))
            done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, timeout=60)
        if done.returncode:
            got = re.search(r"got:\s*(.*)", done.stdout + done.stderr, re.DOTALL)
            yield f"query: {what}: expected {expected}, {' '.join((got[0] if got else done.stderr).split())}"
