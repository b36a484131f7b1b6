"""A conversion in float32's stead on an emulated device: its error in every draw, at several levels of noise."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

import amp_transpiler as amp
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.passes.device_arithmetic.noise import DRAW, TF32
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.program.program import Program
from amp_transpiler.targets.arithmetic import DeviceArithmetic, KernelRow, arithmetic_of
from amp_transpiler.verification.device_draws import DRAWS
from gpu.compare import apart

__all__ = ["PRODUCT_LEVELS", "RECURRENT_LEVELS", "TABLE", "Levels", "at_levels", "measured"]

Record: TypeAlias = dict[str, Any]
Levels: TypeAlias = tuple[float, float]
"""Half units of noise of products and of recurrent layers."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "DeformConv", "Einsum", "FusedMatMul", "Gemm", "MatMul"})
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
PRODUCT_LEVELS = (0.01, 0.05, 0.25)
RECURRENT_LEVELS = (2.0, 4.0, 8.0)
TABLE: Mapping[str, Levels] = MappingProxyType({"float16": (0.05, 4.0), "bfloat16": (0.01, 4.0)})
"""Format -> the levels of the table; tests/lab/test_bench_arithmetic.py compares."""


def at_levels(arithmetic: DeviceArithmetic, levels: Levels) -> DeviceArithmetic:
    """Return an arithmetic whose products and recurrent layers have another noise; scaled sums keep theirs."""
    return dataclasses.replace(
        arithmetic,
        rows={key: tuple(_at_levels(row, levels) for row in rows) for key, rows in arithmetic.rows.items()},
    )


def _at_levels(row: KernelRow, levels: Levels) -> KernelRow:
    operator = row.operator.rpartition("::")[2]
    if operator in PRODUCTS and 0.0 < row.noise < 1.0:
        return dataclasses.replace(row, noise=levels[0])
    if operator in RECURRENT and row.noise:
        return dataclasses.replace(row, noise=levels[1])
    return row


def measured(source: pathlib.Path, conversion: pathlib.Path, feeds: Mapping[str, Any], *, grid: bool) -> Record:
    """Return the errors of a conversion against its source: emulated once, and in every draw.

    Args:
        source: the float32 model.
        conversion: the low one.
        feeds: the inputs.
        grid: whether the draws are made at every level of noise, or at the table's alone.
    """
    low = load(conversion)
    dtype = "bfloat16" if conversion.stem.endswith("bfloat16") else "float16"
    wide = _outputs(load(source), feeds)
    record: Record = {"emulated": apart(wide, _outputs(amp.emulate(low), feeds))["error"], "errors": []}
    shapes = {name: value.shape for name, value in feeds.items() if isinstance(value, np.ndarray)}
    for levels in _levels(low, dtype) if grid else [TABLE[dtype]]:
        simulation = simulated(low, at_levels(arithmetic_of("H100", "1.31"), levels), shapes, draws=True)
        record["unmeasured"] = list(simulation.unmeasured)
        with amp.Session(amp.emulate(simulation.program), amp.CPUPlace(), emulate=False) as session:
            turns = [
                _run(session, {**feeds, DRAW: np.array(draw, np.float32), TF32: np.array(1, np.float32)})
                for draw in range(DRAWS)
            ]
        record["errors"].append([*levels, [apart(wide, outputs)["error"] for outputs in turns]])
    return record


def _levels(low: Program, dtype: str) -> Iterator[Levels]:
    """Yield the levels that make a difference to a program: those of what it does not have are the table's."""
    names = {node.op_type for node in all_nodes(low.model) if any(value.dtype in LOW_DTYPES for value in node.outputs)}
    product, recurrent = TABLE[dtype]
    products = PRODUCT_LEVELS if names & PRODUCTS else (product,)
    return itertools.product(products, RECURRENT_LEVELS if names & RECURRENT else (recurrent,))


def _outputs(program: Program, feeds: Mapping[str, Any]) -> list[Any]:
    with amp.Session(program, amp.CPUPlace(), emulate=False) as session:
        return _run(session, feeds)


def _run(session: amp.Session, feeds: Mapping[str, Any]) -> list[Any]:
    names = {info.name for info in session.inputs}
    return session.run({name: value for name, value in feeds.items() if name in names})
