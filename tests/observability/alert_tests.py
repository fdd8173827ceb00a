"""alert_tests.py ALERTS_YML FOLDER TEST_YML…: writes the tests of alerts into FOLDER as promtool reads them.

promtool evaluates every rule it reads, so the tests of an alert are a file of their own, beside a file with the alert
and the recording rules.

A test is its name with series (`metric{label="value"}: values`) and with what fires at a time:
`10m AnAlert: no`, or the labels and the annotations that are not the same each time. Several that fire are a list.
The severity and the constant annotations are those of the rule.
"""

import pathlib
import re
import sys

import yaml


def expected(rule, given):
    given = {name: str(value) for name, value in given.items()}
    annotations = {
        name: given.pop(name) if "{{" in text else text for name, text in rule["annotations"].items()
    }
    return {"exp_labels": given | rule["labels"], "exp_annotations": annotations}


def groups_of(alerts_yml):
    return yaml.safe_load(pathlib.Path(alerts_yml).read_text())["groups"]


def expand(groups, test_yml):
    """The tests of a file as promtool reads them."""
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    given = yaml.safe_load(pathlib.Path(test_yml).read_text())
    tests = []
    for name, lines in given["tests"].items():
        test = {"name": name, "interval": given["interval"], "input_series": [], "alert_rule_test": []}
        for key, value in lines.items():
            at = re.fullmatch(r"(\d+[mhd]) (\w+)", key)
            if not at:
                test["input_series"].append({"series": key, "values": str(value)})
                continue
            fires = value if isinstance(value, list) else [value] if value is not False else []
            fires = [expected(rules[at[2]], one or {}) for one in fires]
            test["alert_rule_test"].append({"alertname": at[2], "eval_time": at[1], "exp_alerts": fires})
        tests.append(test)
    return tests


def chosen(groups, alerts):
    """The groups with the recording rules and only these alerts."""
    kept = [
        group | {"rules": [rule for rule in group["rules"] if "alert" not in rule or rule["alert"] in alerts]}
        for group in groups
    ]
    return [group for group in kept if group["rules"]]


def write(groups, folder, path):
    files = {}
    for test in expand(groups, path):
        alerts = tuple(sorted({one["alertname"] for one in test["alert_rule_test"]}))
        files.setdefault(alerts, []).append(test)
    for number, (alerts, tests) in enumerate(files.items(), 1):
        named = f"{path.stem.removesuffix('_test')}-{number}"
        of_tests = chosen(groups, alerts)
        document = {
            "rule_files": [f"{named}_rules.yml"],
            "evaluation_interval": tests[0]["interval"],
            "group_eval_order": [group["name"] for group in of_tests],
            "tests": tests,
        }
        for kind, content in [("rules", {"groups": of_tests}), ("test", document)]:
            (folder / f"{named}_{kind}.yml").write_text(yaml.safe_dump(content, sort_keys=False, width=1000))


if __name__ == "__main__":
    for given in sys.argv[3:]:
        write(groups_of(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(given))
