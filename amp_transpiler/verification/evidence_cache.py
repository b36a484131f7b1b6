"""Keeps what runs have shown in the user's cache, so that a second question about a model needs few runs.

A record is named by a digest of all that it depends on: the prepared program with its weights, the samples, the low
format, the target, and the versions of what ran.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.files.digest import Digest, add_model, new_digest
from amp_transpiler.files.user_cache import Records
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.evidence import Evidence, TensorRange
from amp_transpiler.precision.policy import Policy, Settled
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.program.program import Program
from amp_transpiler.targets import Target
from amp_transpiler.targets.releases import installed_version
from amp_transpiler.version import __version__

__all__ = ["Outcome", "Outcomes", "add_value", "in_words", "remembered_evidence", "settled_of_record"]

logger = logging.getLogger(__name__)

_RECORDS = Records("evidence")
_OUTCOMES = Records("outcome")
_FORMAT = 7  # raised when what is measured changes
_SEARCH = 7  # raised when a search comes to other outcomes


def remembered_evidence(
    prepared: Program,
    samples: Sequence[Mapping[str, Any]],
    words: Sequence[str],
    collect: Callable[[], Evidence],
) -> Evidence:
    """Return the evidence of runs, from the cache if they were made before.

    Args:
        prepared: the program that they are of.
        samples: its inputs.
        words: what else they depend on: the low format, the target.
        collect: makes the runs.
    """
    name = _name(prepared, samples, words)
    if (data := _RECORDS.get(name)) is not None and (known := _read(data)) is not None:
        logger.info("the evidence of %d samples comes from the cache", len(known.samples))
        return known
    evidence = collect()
    _RECORDS.put(name, json.dumps(dataclasses.asdict(evidence)).encode())
    return evidence


def _name(prepared: Program, samples: Sequence[Mapping[str, Any]], words: Sequence[str]) -> str:
    digest = new_digest()
    digest.update(repr((_FORMAT, __version__, installed_version(), np.__version__, *words)).encode())
    add_model(digest, prepared.model)
    for sample in samples:
        for name in sorted(sample):
            add_value(digest, name, sample[name])
    return digest.hexdigest()


def add_value(digest: Digest, name: str, value: Any) -> None:
    """Add an input to a digest: an array, or a list of arrays."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            add_value(digest, f"{name}[{index}]", item)
        return
    array = np.asarray(value)
    digest.update(f"{name} {array.dtype} {array.shape} ".encode())
    digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())


def _read(data: bytes) -> Evidence | None:
    """Return the evidence in a record; None if it cannot be read, which another version may have written."""
    try:
        record = json.loads(data)
        ranges = {name: TensorRange.of_record(range_record) for name, range_record in record.pop("ranges").items()}
        return Evidence(ranges=ranges, samples=tuple(record.pop("samples")), **record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("a record of evidence in the cache cannot be read, and is made anew: %s", error)
        return None


# ---- outcomes of searches ----


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a search. It is converted and compared again wherever it is used, so that nothing rests on it.

    Attributes:
        settled: node -> its precision, and why.
        repaired: nodes that were low at first and are float32 for the limits.
        shown: it went by the ranges that the data show, where rules without data are stricter; see `Policy.numerics`.
        excess: the error over the one that is allowed.
    """

    settled: Mapping[str, Settled]
    repaired: tuple[str, ...]
    shown: bool
    excess: float


class Outcomes:
    """What searches about a program have come to, one for each question.

    Args:
        prepared: the program.
        samples: its inputs.
        policy: the question, but for what runs have shown.
        words: what else it depends on.
    """

    def __init__(
        self, prepared: Program, samples: Sequence[Mapping[str, Any]], policy: Policy, words: Sequence[str]
    ) -> None:
        self._ask = (
            prepared,
            samples,
            (f"search {_SEARCH}", *words, in_words(dataclasses.replace(policy, evidence=None))),
        )
        self._name = ""

    def find(self) -> Outcome | None:
        """Return the outcome of an equal question; None if there is none."""
        folder = _OUTCOMES.folder
        if folder is None or not folder.exists():  # a digest of large weights takes its time
            return None
        data = _OUTCOMES.get(self._digest())
        try:
            record = None if data is None else json.loads(data)
            if record is None:
                return None
            settled = {name: settled_of_record(fields) for name, fields in record["settled"].items()}
            return Outcome(settled, tuple(record["repaired"]), bool(record["shown"]), float(record["excess"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("a record of a search in the cache cannot be read, and is made anew: %s", error)
            return None

    def keep(self, outcome: Outcome) -> None:
        """Keep an outcome for the next equal question."""
        if _OUTCOMES.folder is not None:
            _OUTCOMES.put(self._digest(), json.dumps(dataclasses.asdict(outcome)).encode())

    def _digest(self) -> str:
        if not self._name:
            self._name = _name(*self._ask)
        return self._name


def settled_of_record(record: Mapping[str, Any]) -> Settled:
    """Return the decision of a record, which `dataclasses.asdict` made."""
    return Settled(record["precision"], Reason.of_record(record["reason"]))


def in_words(value: Any) -> str:
    """Return all that a value holds, in an order that does not change from run to run."""
    if isinstance(value, Target):
        return f"{value.name} {value.ort}"
    if isinstance(value, LowFormat):
        return value.name
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{in_words(key)}: {in_words(item)}' for key, item in value.items()))}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(in_words, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(in_words, value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__}{in_words(fields)}"
    return repr(value)
