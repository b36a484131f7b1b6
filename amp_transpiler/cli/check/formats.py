"""The result of a check as text, JSON, SARIF and JUnit."""

from __future__ import annotations

import collections
import json
import pathlib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

from amp_transpiler.cli.check.finding import SEVERITIES, Checked, Finding
from amp_transpiler.errors import visible
from amp_transpiler.version import __version__

__all__ = ["written"]

_TOOL = "amp-transpile"
_SARIF = "2.1.0"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def written(checked: Checked, form: str) -> str:
    """Return the result in a format of `--format`."""
    return _FORMATS[form](checked)


def _text(checked: Checked) -> str:
    lines = [
        f"{visible(row.path, None)}: {checked.severity_of(row)}: {row.message} [{row.rule}]" for row in checked.findings
    ]
    counts = collections.Counter(map(checked.severity_of, checked.findings))
    words = [f"{counts[severity]} {severity}{'s' * (counts[severity] != 1)}" for severity in SEVERITIES]
    models = f"{len(checked.models)} model{'s' * (len(checked.models) != 1)}"
    return "\n".join([*lines, f"{models}: {', '.join(words)}"])


def _json(checked: Checked) -> str:
    findings = [
        {"path": row.path, "rule": row.rule, "severity": checked.severity_of(row), "message": row.message}
        for row in checked.findings
    ]
    record = {
        "tool": _TOOL,
        "version": __version__,
        "failed": checked.has_failed,
        "models": list(checked.models),
        "findings": findings,
    }
    return json.dumps(record, indent=2)


def _sarif(checked: Checked) -> str:
    names = list(checked.rules)
    rules = [
        {
            "id": rule.name,
            "shortDescription": {"text": rule.title},
            "help": {"text": rule.remedy},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in checked.rules.values()
    ]
    results = [
        {
            "ruleId": row.rule,
            "ruleIndex": names.index(row.rule),
            "level": checked.severity_of(row),
            "message": {"text": row.message},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(row.path)}}}],
        }
        for row in checked.findings
    ]
    driver: dict[str, Any] = {"name": _TOOL, "version": __version__, "rules": rules}
    return json.dumps(
        {"$schema": _SCHEMA, "version": _SARIF, "runs": [{"tool": {"driver": driver}, "results": results}]}, indent=2
    )


def _uri(path: str) -> str:
    """Return a path as SARIF wants it: relative ones stay so, with every odd character escaped."""
    from urllib.parse import quote

    place = pathlib.PurePath(path)
    return place.as_uri() if place.is_absolute() else quote(place.as_posix())


def _junit(checked: Checked) -> str:
    failing = [row for row in checked.findings if checked.fails(row)]
    failed = {row.path for row in failing}
    totals = {"tests": str(len(checked.models)), "failures": str(len(failed)), "skipped": str(len(checked.skipped))}
    root = ET.Element("testsuites", totals)
    suite = ET.SubElement(root, "testsuite", {"name": checked.title, "errors": "0", **totals})
    for model in checked.models:
        case = ET.SubElement(suite, "testcase", {"classname": _TOOL, "name": visible(model, None)})
        if model in checked.seconds:
            case.set("time", f"{checked.seconds[model]:.3f}")
        if model in checked.skipped:
            ET.SubElement(case, "skipped", {"message": visible(checked.skipped[model], None)})
        rows = [row for row in checked.findings if row.path == model]
        bad = [row for row in rows if checked.fails(row)]
        if bad:
            text = "\n".join(_line(checked, row) for row in bad)
            failure = {"type": bad[0].rule, "message": visible(bad[0].message, None)}
            ET.SubElement(case, "failure", failure).text = visible(text, None) if len(bad) == 1 else text
        if milder := [row for row in rows if row not in bad]:
            ET.SubElement(case, "system-out").text = "\n".join(_line(checked, row) for row in milder)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _line(checked: Checked, row: Finding) -> str:
    return f"{checked.severity_of(row)}: {visible(row.message, None)} [{row.rule}]"


_FORMATS: dict[str, Callable[[Checked], str]] = {"text": _text, "json": _json, "sarif": _sarif, "junit": _junit}
