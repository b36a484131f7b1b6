"""A dump in a few columns: small enough to keep beside the tests."""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import version

from golden.dump import Record

__all__ = ["COLUMNS", "summary_rows", "written_with"]

COLUMNS = ("model", "way", "dtype", "low", "high", "untouched", "casts", "decisions", "file")


def summary_rows(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """Return one row a conversion: how many nodes have which precision, and digests of the decisions and the file.

    The digest of the decisions is over name, precision and reason's code of every node, in order.
    """
    return [_row(record) for record in records]


def _row(record: Record) -> tuple[str, ...]:
    precisions = collections.Counter(precision for _, _, precision, _ in record["nodes"])
    decided = [(name, precision, record["codes"][at]) for name, _, precision, at in record["nodes"]]
    digest = hashlib.sha256(json.dumps(decided).encode()).hexdigest()
    counts = [str(precisions[kind]) for kind in ("low", "high", "untouched")]
    way = record["way"].replace(" ", "_")
    return record["model"], way, record["dtype"], *counts, str(record["casts"]), digest[:12], record["sha256"][:12]


def written_with() -> str:
    """The versions of the libraries that serialize a model: with others, equal models may differ in their bytes."""
    return ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnx-ir", "protobuf"))
