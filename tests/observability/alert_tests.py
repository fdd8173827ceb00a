"""alert_tests.py ALERTS_YML FOLDER TEST_YML…: writes the tests of alerts into FOLDER as promtool reads them.

A test is its name with series (`metric{label="value"}: values`) and with what fires at a time:
`10m AnAlert: no`, or the labels and the annotations that are not the same each time. Several that fire are a list.
The severity and the constant annotations are those of the rule.
"""

import pathlib
import re
import sys

import yaml


def alerts_of(path):
    groups = yaml.safe_load(pathlib.Path(path).read_text())["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    return [group["name"] for group in groups], rules


def expected(rule, given):
    given = {name: str(value) for name, value in given.items()}
    annotations = {
        name: given.pop(name) if "{{" in text else text for name, text in rule["annotations"].items()
    }
    return {"exp_labels": given | rule["labels"], "exp_annotations": annotations}


def expand(alerts_yml, test_yml):
    """A file of tests as promtool reads it."""
    order, rules = alerts_of(alerts_yml)
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
    return {
        "rule_files": [str(pathlib.Path(alerts_yml).resolve())],
        "evaluation_interval": given["interval"],
        "group_eval_order": order,
        "tests": tests,
    }


if __name__ == "__main__":
    for path in sys.argv[3:]:
        written = pathlib.Path(sys.argv[2]) / pathlib.Path(path).name
        written.write_text(yaml.safe_dump(expand(sys.argv[1], path), sort_keys=False, width=1000))
