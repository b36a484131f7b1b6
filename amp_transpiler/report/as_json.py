"""Writes the report as JSON: every field, and the versions of the packages that produced it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from amp_transpiler.report.record import ReportRecord
from amp_transpiler.report.wording import remarks
from amp_transpiler.version import __version__
from amp_transpiler.wheels import installed_wheels

__all__ = ["dump", "package_versions", "plain", "report_as_dict"]

FORMAT = 2  # raised when a key or a word is renamed or removed, not when one is added

_PACKAGES = ("onnx", "onnx-ir", "numpy", "ml_dtypes", "scipy")


def report_as_dict(report: ReportRecord) -> dict[str, Any]:
    """Return every field of `report` except the program and its picture, and its predicted times, as JSON values.

    The notes are those that the table has, all of them.
    Floats that are not finite become the strings `NaN`, `Infinity` and `-Infinity`; pairs (before, after) become
    lists of two.
    """
    report.priced_decisions()
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    del fields["program"], fields["graphs"], fields["times"], fields["prices"]
    fields["predicted_ms"], fields["pays_from"] = report.predicted_ms, report.pays_from
    fields["predicted_from"], fields["predicted_graph_ms"] = report.predicted_from, report.predicted_graph_ms
    fields["slower"], fields["needs_onnxruntime"] = report.slower, report.needs_onnxruntime
    fields["session_code"] = report.session_code
    fields["notes"] = remarks(report)
    fields["verdict_word"] = report.verdict_word
    converted = plain(fields)
    assert isinstance(converted, dict)
    return converted


def dump(record: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Return `record` as JSON text that any parser accepts: ASCII only, no bare NaN."""
    return json.dumps(plain(record), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def package_versions() -> dict[str, str | int]:
    """Return the versions of Python and of the packages that the result of a conversion depends on."""
    versions: dict[str, str | int] = {
        "json_format": FORMAT,
        "amp_transpiler": __version__,
        "python": platform.python_version(),
    }
    versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    return versions | {wheel.name: wheel.version for wheel in installed_wheels()}


def plain(value: Any) -> Any:
    """Return `value` built from JSON's types only; records become mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        derived = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
        return {name: plain(getattr(value, name)) for name in (*names, *derived)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(item) for item in value)
    if value is None or isinstance(value, (bool, int, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, PurePath):
        return str(value)
    number = value.item() if hasattr(value, "item") else value  # numpy scalars
    if isinstance(number, float) and not math.isfinite(number):
        infinity = "Infinity" if number > 0 else "-Infinity"
        return "NaN" if math.isnan(number) else infinity
    if isinstance(number, (bool, int, float, str)):
        return number
    raise TypeError(f"cannot put a {type(value).__name__} into JSON: {value!r}")
