"""Keeps verified conversions in the user's cache: the same question again need only be converted, and its file opened.

A question is named by a digest of all that its answer depends on: the source with its weights, the data, every option,
and the versions of what ran. An answer counts only if the conversion gives the same program, weights included.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from amp_transpiler.files.digest import Digest, add_model, new_digest
from amp_transpiler.files.user_cache import Records
from amp_transpiler.graph.proto import to_proto_without_weights
from amp_transpiler.precision.evidence import Evidence, TensorRange
from amp_transpiler.precision.policy import Objective, Policy, Settled
from amp_transpiler.program.program import Program
from amp_transpiler.report import DeviceDraws, DeviceMeasurement, OutputComparison, Verdict
from amp_transpiler.report.facts import Comparison, FileCheck, Findings
from amp_transpiler.report.verdict import Judgement
from amp_transpiler.targets.releases import installed_version
from amp_transpiler.verification.evidence_cache import add_value, in_words, settled_of_record
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.version import __version__

__all__ = ["Answer", "Question", "digest_of"]

logger = logging.getLogger(__name__)

_RECORDS = Records("verified")
_NOT_CHECKED = Judgement(Verdict.NOT_CHECKED)
_FORMAT = 10  # raised when what is verified changes
_BLOCK = 1 << 20
_NOTE = "compared and run before: the same model, data, options and versions gave this result; --no-cache does it again"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A conversion that was searched for, compared and checked.

    Attributes:
        settled: node -> its precision, and why.
        objective: what it aims at within them; see `Policy`.
        repaired: nodes that were low at first and are float32 for the limits.
        shown: it went by the ranges that the data show; see `Policy.numerics`.
        result: the digest of the converted program.
        outputs: the comparison of every output.
        evidence: what runs said about the program, as far as reports show it.
        headroom: how many times a range had to fit; None if none was known.
        verdict, notes, warnings: of the comparison.
        checks, final_verdict, final_notes, final_warnings: of the written file.
        measured: what a device computed with it; None where none did.
        draws: what a device may make of it; None where that was not emulated.
        gains: its errors at other levels of the data.
        by_default: its errors in ONNX Runtime's default session.
    """

    settled: Mapping[str, Settled]
    objective: Objective
    repaired: tuple[str, ...]
    shown: bool
    result: str
    outputs: Mapping[str, OutputComparison]
    evidence: Evidence
    headroom: float | None
    verdict: Judgement
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    checks: tuple[str, ...] = ()
    final_verdict: Judgement = _NOT_CHECKED
    final_notes: tuple[str, ...] = ()
    final_warnings: tuple[str, ...] = ()
    measured: DeviceMeasurement | None = None
    draws: DeviceDraws | None = None
    gains: Mapping[str, float] = dataclasses.field(default_factory=dict)
    by_default: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def comparison(self) -> Comparison:
        """What runs showed."""
        return Comparison(
            self.outputs,
            self.repaired,
            headroom=self.headroom,
            draws=self.draws,
            gains=self.gains,
            by_default=self.by_default,
        )

    @property
    def findings(self) -> Findings:
        """What that tells the user."""
        return Findings(self.verdict, (*self.notes, _NOTE), self.warnings)

    @property
    def file_check(self) -> FileCheck:
        """What the checks of the written file showed."""
        findings = Findings(self.final_verdict, self.final_notes, self.final_warnings)
        return FileCheck(self.checks, self.measured, findings)


class Question:
    """A question about one model.

    Args:
        source: the program as the user gave it.
        prepared: the same as it is decided about, with the user's regions.
        inputs: the data; None for made-up inputs.
        policy: every option that decides.
        words: what else the answer depends on.
    """

    def __init__(
        self, source: Program, prepared: Program, inputs: Inputs | None, policy: Policy, words: tuple[str, ...]
    ) -> None:
        self._ask = source, prepared, inputs, policy, words
        self._name: str | None = None

    def find(self) -> Answer | None:
        """Return the answer that was given before; None if there is none."""
        folder = _RECORDS.folder
        if folder is None or not folder.exists():  # a digest of large weights takes its time
            return None
        data = _RECORDS.get(name) if (name := self._digest()) else None
        if data is None:
            return None
        try:
            return _answer(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("a record of a verified conversion in the cache cannot be read: %s", error)
            return None

    def keep(self, answer: Answer) -> None:
        """Keep an answer for the next equal question."""
        if _RECORDS.folder is not None and (name := self._digest()):
            _RECORDS.put(name, json.dumps(dataclasses.asdict(answer)).encode())

    def _digest(self) -> str:
        """Return the name of the question; empty if its data cannot be read twice."""
        if self._name is None:
            source, prepared, inputs, policy, words = self._ask
            digest = new_digest()
            versions = (_FORMAT, __version__, installed_version(), np.__version__)
            digest.update(repr((*versions, *words, in_words(dataclasses.replace(policy, evidence=None)))).encode())
            if _add_inputs(digest, inputs):
                digest.update(to_proto_without_weights(prepared.model).SerializeToString(deterministic=True))
                add_model(digest, source.model)
                self._name = digest.hexdigest()
            else:
                self._name = ""
        return self._name


def digest_of(program: Program) -> str:
    """Return the digest of a program with its weights."""
    digest = new_digest()
    add_model(digest, program.model)
    return digest.hexdigest()


def _add_inputs(digest: Digest, inputs: Inputs | None) -> bool:
    """Add the user's data to a digest; False if they may be read only once, or hold what has no digest."""
    if inputs is None:
        return True
    if isinstance(inputs, (str, os.PathLike)):
        path = pathlib.Path(inputs)
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        return all(_add_file(digest, file, str(file.relative_to(path))) for file in files)
    if isinstance(inputs, Mapping):
        samples: list[Any] | tuple[Any, ...] = [inputs]
    else:
        samples = inputs if isinstance(inputs, (list, tuple)) else []
    for sample in samples:
        if not isinstance(sample, Mapping) or not all(isinstance(array, np.ndarray) for array in sample.values()):
            return False
        for name in sorted(map(str, sample)):
            add_value(digest, name, sample[name])
    return bool(samples)


def _add_file(digest: Digest, file: pathlib.Path, name: str) -> bool:
    try:
        if not file.is_file():  # a pipe gives its data once, and whoever reads for good refuses it
            return False
        with file.open("rb") as stream:
            digest.update(f"{name} {os.fstat(stream.fileno()).st_size} ".encode())
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError:  # whoever reads it for good says so
        return False
    return True


def _answer(record: dict[str, Any]) -> Answer:
    evidence = record.pop("evidence")
    ranges = {name: TensorRange.of_record(range_record) for name, range_record in evidence.pop("ranges").items()}
    measured, draws = record.pop("measured"), record.pop("draws")
    record |= {name: tuple(value) for name, value in record.items() if isinstance(value, list)}
    record["settled"] = {name: settled_of_record(fields) for name, fields in record["settled"].items()}
    record["evidence"] = Evidence(ranges=ranges, samples=tuple(evidence.pop("samples")), **evidence)
    record["outputs"] = _rows(record["outputs"])
    for name in ("verdict", "final_verdict"):
        record[name] = Judgement(Verdict(record[name]["word"]), record[name]["basis"])
    return Answer(
        **record,
        measured=None if measured is None else _measured(measured),
        draws=None if draws is None else _draws(draws),
    )


def _rows(record: Mapping[str, Any]) -> dict[str, OutputComparison]:
    return {name: OutputComparison(**{**row, "shape": tuple(row["shape"])}) for name, row in record.items()}


def _draws(record: Mapping[str, Any]) -> DeviceDraws:
    errors = {name: tuple(values) for name, values in record["errors"].items()}
    return DeviceDraws(**{**record, "errors": errors, "unmeasured": tuple(record["unmeasured"])})


def _measured(record: Mapping[str, Any]) -> DeviceMeasurement:
    lists = {name: tuple(record[name]) for name in ("sessions", "contradictions")}
    return DeviceMeasurement(**{**record, **lists, "outputs": _rows(record["outputs"])})
