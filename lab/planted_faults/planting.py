"""Draws a case, and proves that its fault bites in 16 bits and does not without the plant."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.errors import AmpError
from planted_faults.foreign import TOOLS, own, renamed
from planted_faults.kinds import KINDS, Kind
from planted_faults.plot import NoPlace, Plant, Plot
from planted_faults.rounding import Switched, first_alarm, float_nodes, rounded, smallest_cure
from planted_faults.running import Arrays, error_between, finite, low_outputs, opened, outputs_of
from planted_faults.sources import Source

__all__ = ["LEVEL", "LIMITS", "Case", "draw_case", "write"]

LEVEL = "O2"
LIMITS = {"float16": 0.01, "bfloat16": 0.05}  # bfloat16 has an eighth of the digits
DEVICE = "H100"
_FOREIGN, _RENAMED = 1 / 3, 1 / 2  # shares of cases
_MARGIN = 2.0  # a fault is this many times beyond the limit, and the rest this many times within it
_CURE_NODES = 40
_ATTEMPTS = 200


@dataclasses.dataclass(frozen=True)
class Case:
    """A planted fault.

    Attributes:
        float32: the model; None for a fault of training, whose program is built as the truth says.
        low: the foreign low model; None if the debugger converts.
        sample: what it fails on.
        truth: what `truth.json` says.
        repeated: why draws were repeated before this one: reason -> count.
    """

    float32: onnx.ModelProto | None
    low: onnx.ModelProto | None
    sample: Arrays
    truth: dict[str, Any]
    repeated: dict[str, int]


class _Unfit(Exception):
    """A plant that does not do what it is to do; the message says why, in few words."""


def draw_case(
    kind: str, seed: Sequence[int], models: Sequence[Sequence[Source]], without: Collection[str] = ()
) -> Case:
    """Plant a fault of a kind, at the first place of those drawn where it proves to be one.

    Args:
        kind: a key of `KINDS`.
        seed: of the draws; a case depends on nothing else.
        models: which models may be drawn, in groups that are drawn equally often.
        without: names of models that are not, since they have a fault of this kind.
    """
    draw = np.random.default_rng(list(seed))
    repeated: collections.Counter[str] = collections.Counter()
    for _ in range(_ATTEMPTS):
        group = models[int(draw.integers(len(models)))]
        source = group[int(draw.integers(len(group)))]
        if source.name in without:
            continue
        try:
            case = _attempt(kind, draw, source)
        except NoPlace:
            repeated["no place in the model"] += 1
        except _Unfit as reason:
            repeated[str(reason)] += 1
        else:
            case.truth["seed"] = list(seed)
            return dataclasses.replace(case, repeated=dict(repeated))
    raise RuntimeError(f"{kind}: no place among {_ATTEMPTS} draws: {dict(repeated)}")


def _attempt(name: str, draw: np.random.Generator, source: Source) -> Case:
    if source.fault:
        raise _Unfit(f"model is unfit: {source.fault}")
    kind = KINDS[name]
    dtype = kind.dtypes[int(draw.integers(len(kind.dtypes)))]
    tools = [tool for tool in kind.tools if dtype in TOOLS[tool][1]]
    is_foreign = kind.foreign or draw.random() < _FOREIGN
    converter = tools[int(draw.integers(len(tools)))] if is_foreign else ""
    plot = Plot(source, draw, dtype, converter)
    plant = kind.build(plot)
    reference = _float32_outputs(plot)
    _check_the_plant(plot, plant, reference)
    truth: dict[str, Any] = {
        "kind": name,
        "variant": plant.variant,
        "model": source.name,
        "dtype": dtype,
        "level": LEVEL,
        "foreign": is_foreign,
        "renamed": is_foreign and bool(draw.random() < _RENAMED),
        "converter": converter,
        "guilty": list(plant.guilty),
    }
    low = _low_model(kind, plot, plant, truth, reference)
    truth |= _cure(kind, plot, plant, reference)
    return Case(plot.model, low if is_foreign else None, plot.sample, truth, {})


def _float32_outputs(plot: Plot) -> Arrays:
    """Check that the planted model is valid and behaves in float32; return its outputs."""
    del plot.model.graph.value_info[:]
    onnx.checker.check_model(plot.model, full_check=True)
    reference = outputs_of(plot.model, plot.sample)
    if not finite(list(reference.values())):
        raise _Unfit("float32 is not finite")
    plain = outputs_of(plot.model, plot.sample, optimized=False)
    if error_between(reference, plain) > 1e-4:
        raise _Unfit("float32 itself is unsure")
    return reference


def _check_the_plant(plot: Plot, plant: Plant, reference: Arrays) -> None:
    """Check that the fault is that of the new nodes: with them in float32 all is well, with only them low it is not."""
    limit = LIMITS[plot.dtype]
    if (
        error_between(reference, outputs_of(rounded(plot.model, plot.dtype, plant.nodes), plot.sample))
        > limit / _MARGIN
    ):
        raise _Unfit("the rest of the model is beyond the limit by itself")
    if plant.low_only:
        return
    others = [name for name in float_nodes(plot.model) if name not in plant.nodes]
    if error_between(reference, outputs_of(rounded(plot.model, plot.dtype, others), plot.sample)) < _MARGIN * limit:
        raise _Unfit("the fault does not bite by itself")
    alarming = first_alarm(plot.model, rounded(plot.model, plot.dtype, others), plot.sample, plant.nodes)
    if alarming is not None and alarming not in plant.guilty:
        raise _Unfit("another node of the plant fails first")


def _check_the_device(plot: Plot) -> None:
    """Check that nothing but the plant is wrong on the device."""
    plain = low_outputs(TOOLS[plot.converter][0](plot.source.model, plot.dtype), plot.source.sample, DEVICE)
    if error_between(plot.source.reference, plain) > LIMITS[plot.dtype] / _MARGIN:
        raise _Unfit("the model itself is beyond the limit on the device")


def _check_file(low: onnx.ModelProto) -> None:
    """Check that a foreign low model is one that a user may have: valid, and opened where the CPU has its kernels."""
    try:
        onnx.checker.check_model(low, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as fault:
        raise _Unfit("the low model is invalid") from fault
    try:
        # Not optimized: 1.31.1 ends the process over float16 models of some transformers.
        opened(low, optimized=False)
    except RUN_ERRORS as fault:
        if "NOT_IMPLEMENTED" not in str(fault):  # the CPU has few kernels for bfloat16
            raise _Unfit("ONNX Runtime refuses the low model") from fault


def _low_model(kind: Kind, plot: Plot, plant: Plant, truth: dict[str, Any], reference: Arrays) -> onnx.ModelProto:
    """Make the low model, with its damage and its names, and check that the fault bites; add what is true of it."""
    try:
        low = TOOLS[plot.converter][0](plot.model, plot.dtype) if plot.converter else own(plot.model, plot.dtype)
        limit = LIMITS[plot.dtype]
        if kind.damages and error_between(reference, low_outputs(low, plot.sample)) > limit / _MARGIN:
            raise _Unfit("the low model is beyond the limit without the damage")
        guilty = kind.damage(low, plant, plot) if plot.converter else ()
        if plot.converter and not guilty:
            raise _Unfit("the tool has removed the guilty node")
        if plot.converter:
            _check_file(low)
        if truth["renamed"]:
            low, names = renamed(low)
            guilty = tuple(names[name] for name in guilty)
        error = error_between(reference, low_outputs(low, plot.sample))
        bites = error
        if kind.on_device:
            _check_the_device(plot)
            bites = error_between(reference, low_outputs(low, plot.sample, DEVICE))
            truth["error_on_device"] = _number(bites)
    except AmpError as refusal:
        raise _Unfit(f"amp_transpiler refuses it: {type(refusal).__name__}") from refusal
    except RUN_ERRORS as fault:
        raise _Unfit("ONNX Runtime does not run the emulation") from fault
    if bites < _MARGIN * limit:
        raise _Unfit("the fault does not bite")
    truth |= {"low_guilty": list(guilty) or None, "limit": limit, "error_without": _number(error)}
    return low


def _cure(kind: Kind, plot: Plot, plant: Plant, reference: Arrays) -> dict[str, Any]:
    """Search the smallest cure of a small model."""
    if kind.on_device or len(float_nodes(plot.model)) > _CURE_NODES:
        return {"cure": None}
    switched = Switched(plot.model, plot.dtype, plot.sample, reference)
    cure = smallest_cure(switched, LIMITS[plot.dtype], plant.nodes)
    if cure is None:
        return {"cure": None}
    cured = low_outputs(own(plot.model, plot.dtype, cure[0]), plot.sample)
    if error_between(reference, cured) > LIMITS[plot.dtype]:
        raise _Unfit("a conversion with the cure is not within the limit")
    return {"cure": cure[0], "error_with": _number(cure[1])}


def _number(error: float) -> float | str:
    return error if math.isfinite(error) else "infinite"  # JSON has no infinity


def write(case: Case, folder: pathlib.Path) -> None:
    """Write the files of a case into a new folder."""
    folder.mkdir(parents=True)
    if case.float32 is not None:
        onnx.save(case.float32, folder / "float32.onnx")
    if case.low is not None:
        onnx.save(case.low, folder / "low.onnx")
    np.savez(folder / "inputs.npz", **case.sample)  # type: ignore[arg-type]
    (folder / "truth.json").write_text(json.dumps(case.truth, indent=1) + "\n", encoding="utf-8")
