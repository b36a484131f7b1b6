"""Checks one model: a function a rule."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from amp_transpiler.cli.check.finding import RULES, Finding
from amp_transpiler.cli.check.twins import other_interface, overflowing_weight, source_of, stale_because, twins_of
from amp_transpiler.errors import AmpError, innermost_text
from amp_transpiler.files.loading import load
from amp_transpiler.files.model_file import is_lfs_pointer
from amp_transpiler.graph.checker import checker_fault, fault_in_words
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.tensors import initializer_tensors
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import faults
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.verification.structure import LoadResult, check_load

if TYPE_CHECKING:
    from amp_transpiler.program.program import Program

__all__ = ["examine"]

_GAIN = 1.1  # a prediction is no measurement: less is not worth a word
_FLOATS = frozenset({ir.DataType.FLOAT, *LOW_DTYPES})
_BLOCK = 1 << 22  # elements looked at together


@dataclasses.dataclass(frozen=True)
class _Model:
    path: pathlib.Path
    program: Program
    device: str

    @functools.cached_property
    def fault(self) -> str:
        """What onnx.checker says; empty if the model is valid."""
        fault = checker_fault(self.program.model)
        return fault_in_words(fault).removesuffix("; export the model anew") if fault else ""

    @functools.cached_property
    def opened(self) -> LoadResult:
        """How ONNX Runtime received the model."""
        return check_load(self.path, load(self.path))

    @property
    def opens(self) -> bool:
        """Whether ONNX Runtime opens the model, itself or emulated."""
        return self.opened.outcome in ("loaded", "emulated")


def examine(path: pathlib.Path, device: str, ignored: frozenset[str]) -> Iterator[Finding]:
    """Yield what is found about one model, worst things first.

    Args:
        path: the file.
        device: where times are predicted for.
        ignored: names of rules that are left out.
    """
    if is_lfs_pointer(path):
        if "lfs-pointer" not in ignored:
            yield _finding(path, "lfs-pointer", "holds the address of the model, not the model")
        return
    try:
        model = _Model(path, load(path), device)
    except AmpError as error:
        if "unreadable" not in ignored:
            yield Finding(str(path), "unreadable", str(error).removeprefix(f"{path}: "))
        return
    for rule, look in _LOOKS.items():
        if rule in ignored:
            continue
        finding = _looked(look, rule, model)
        if finding is not None:
            yield finding
            if finding.rule in _STRUCTURE:
                return


def _looked(look: Callable[[_Model], str], rule: str, model: _Model) -> Finding | None:
    try:
        said = look(model)
    except AmpError as error:
        return Finding(str(model.path), "invalid", str(error).removeprefix(f"{model.path}: "))
    except Exception as error:  # noqa: BLE001 - the other models still get their turn
        return _finding(model.path, "internal", f"{type(error).__name__}: {innermost_text(error)}")
    return _finding(model.path, rule, said) if said else None


def _finding(path: pathlib.Path, rule: str, said: str) -> Finding:
    return Finding(str(path), rule, f"{said}; {RULES[rule].remedy}")


# ---- looks: what is said about a model; empty: nothing is wrong ----


def _mixed_types(model: _Model) -> str:
    program = load(model.path)  # types are filled in, which the other looks must not see
    propagate_types(program.model)
    return next((fault.splitlines()[0] for fault in faults(program.model)), "")


def _invalid(model: _Model) -> str:
    return model.fault if model.fault and not model.opens else ""


def _refused(model: _Model) -> str:
    """A kernel that this machine lacks is no fault of the model."""
    return model.opened.detail if model.opened.outcome == "refused" else ""


def _doubtful(model: _Model) -> str:
    return model.fault


def _not_finite(model: _Model) -> str:
    for tensor in initializer_tensors(model.program.model):
        if tensor.dtype in _FLOATS:
            flat = tensor.numpy().reshape(-1)
            for start in range(0, flat.size, _BLOCK):
                if np.isnan(flat[start : start + _BLOCK].astype(np.float32)).any():
                    return f"weight '{tensor.name}' holds NaN"
    return ""


def _stale(model: _Model) -> str:
    source = source_of(model.path)
    if source is None:
        return ""
    why = stale_because(load(source), model.program)
    return f"is not made from {source.name}: {why}" if why else ""


def _other_interface(model: _Model) -> str:
    source = source_of(model.path)
    if source is None or not (why := other_interface(load(source), model.program)):
        return ""
    return f"is beside {source.name}, but {why}"


def _overflow(model: _Model) -> str:
    source = source_of(model.path)
    name = None if source is None else overflowing_weight(load(source), model.program)
    return "" if name is None else f"weight '{name}' has infinite elements that are finite in float32"


def _slower(model: _Model) -> str:
    from amp_transpiler.verification.difference import compare_models

    source = source_of(model.path)
    if source is None:
        return ""
    difference = compare_models(source, model.path, device=model.device, run=False)
    before, after = difference.first.milliseconds, difference.second.milliseconds
    if after < _GAIN * before:
        return ""
    return f"predicted {after:.3g} ms on {model.device}, {source.name} {before:.3g} ms"


def _pays(model: _Model) -> str:
    from amp_transpiler.pipeline import transpile

    if source_of(model.path) is not None or twins_of(model.path) or has_low_values(model.program):
        return ""
    report = transpile(load(model.path), verify=False, device=model.device)
    before, after = report.predicted_ms
    if not report.low_nodes or before is None or after is None or before < _GAIN * after:
        return ""
    return f"float16 is predicted {before / after:.1f} times as fast on {model.device}"


_LOOKS: dict[str, Callable[[_Model], str]] = {
    "mixed-types": _mixed_types,
    "invalid": _invalid,
    "refused": _refused,
    "stale": _stale,
    "overflow": _overflow,
    "doubtful": _doubtful,
    "other-interface": _other_interface,
    "not-finite": _not_finite,
    "slower": _slower,
    "pays": _pays,
}
_STRUCTURE = frozenset({"mixed-types", "invalid", "refused", "internal"})  # behind these nothing else is looked at
