"""Many functions in one program and one run: values and gradients, beside torch's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from amp_transpiler.paddle.framework.backward import gradients
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope, scope_guard

__all__ = ["Case", "Found", "case", "close", "compute", "expected", "family_test"]


@dataclasses.dataclass(frozen=True, eq=False)  # a case is only equal to itself, so that what it expects is cached
class Case:
    """One use of a function.

    Attributes:
        ours: makes variables of variables.
        theirs: makes torch's tensors of tensors.
        inputs: arrays; floats among them are differentiated by.
        fixed: whether it needs sizes that are known.
        differentiable: whether the gradients are compared.
        tolerance: relative and absolute.
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    fixed: bool = False
    differentiable: bool = True
    tolerance: float = 2e-5


def case(ours, theirs, *inputs, fixed=False, differentiable=True, tolerance=2e-5) -> Case:
    """Return a case."""
    return Case(ours, theirs, inputs, fixed, differentiable, tolerance)


@dataclasses.dataclass
class Found:
    """What a case computed: its results, and the gradients of its float inputs (None where there is none)."""

    values: list[np.ndarray]
    gradients: list[np.ndarray | None]
    shapes: list[tuple[int, ...]]
    dtypes: list[str]


def _several(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _weights(shape: Sequence[int]) -> np.ndarray:
    """The gradient to start from: numbers that differ."""
    return np.cos(np.arange(int(np.prod(shape))) + 0.5).reshape(shape).astype(np.float32)


def compute(cases: Mapping[str, Case], *, free: bool, dtype: str | None = None) -> dict[str, Found]:
    """Build all cases into one program and run it once.

    Args:
        cases: name -> case; those that need known sizes are left out with `free`.
        free: whether the sizes of the inputs are left open.
        dtype: the type that float inputs are cast to first.
    """
    feeds, results, starts, asked = {}, {}, [], {}
    main = Program()
    with program_guard(main, Program()), unique_name.guard(), scope_guard(Scope()):
        for number, (name, row) in enumerate(cases.items()):
            if free and row.fixed:
                continue
            inputs = []
            for index, array in enumerate(row.inputs):
                label = f"x{number}_{index}"
                shape = [f"{label}_{axis}" if free else size for axis, size in enumerate(array.shape)]
                variable = data(label, shape, array.dtype)
                variable.stop_gradient = array.dtype.kind != "f"
                feeds[label] = array
                inputs.append(variable)
            used = [
                x.astype(dtype) if dtype and a.dtype.kind == "f" else x for x, a in zip(inputs, row.inputs, strict=True)
            ]
            results[name] = _several(row.ours(*used))
            asked[name] = [x for x, array in zip(inputs, row.inputs, strict=True) if array.dtype.kind == "f"]
            if row.differentiable:
                for result in results[name]:
                    if result.dtype in ("float32", "float16", "bfloat16", "float64"):
                        label = f"seed_{result.name}"
                        sizes = [f"{label}_{i}" if size < 0 else size for i, size in enumerate(result.shape)]
                        seed = data(label, sizes, result.dtype)
                        starts.append((result, seed, row, name))
        grads: dict[str, Any] = {}
        if starts:
            wanted = [x for row in asked.values() for x in row]
            slopes = gradients([s[0] for s in starts], wanted, [s[1] for s in starts])
            grads = {x.name: g for x, g in zip(wanted, slopes, strict=True)}
        executor = Executor(CPUPlace())
        shapes = {name: _torch_shapes(cases[name]) for name in results}
        for result, seed, _, name in starts:
            position = [v.name for v in results[name]].index(result.name)
            feeds[seed.name] = _weights(shapes[name][position]).astype(result.value.dtype.numpy())
        fetch = [v for row in results.values() for v in row]
        fetched_grads = [g for g in grads.values() if g is not None]
        values = executor.run(main, feeds, [*fetch, *fetched_grads])
    by_name = {v.name: value for v, value in zip([*fetch, *fetched_grads], values, strict=True)}
    return {
        name: Found(
            [by_name[v.name] for v in row],
            [None if (g := grads.get(x.name)) is None else by_name[g.name] for x in asked[name]],
            [v.shape for v in row],
            [v.dtype for v in row],
        )
        for name, row in results.items()
    }


def _torch_shapes(row: Case) -> list[tuple[int, ...]]:
    return [value.shape for value in expected(row)[0]]


@functools.cache  # known and free sizes, and the shapes of gradients to start from, ask for the same
def expected(row: Case) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """Return torch's results and gradients; they are shared, so nobody writes to them."""
    import torch

    tensors = [torch.from_numpy(np.array(array)) for array in row.inputs]
    leaves = [t.requires_grad_(row.differentiable) for t in tensors if t.is_floating_point()]
    results = [torch.as_tensor(value) for value in _several(row.theirs(*tensors))]
    seeds = [(v, torch.from_numpy(_weights(v.shape)).to(v.dtype)) for v in results if v.is_floating_point()]
    slopes: Sequence[Any] = [None] * len(leaves)
    tracked = [(v, s) for v, s in seeds if v.requires_grad]
    if row.differentiable and tracked and leaves:
        slopes = torch.autograd.grad([v for v, _ in tracked], leaves, [s for _, s in tracked], allow_unused=True)
    return [v.detach().numpy() for v in results], [None if g is None else g.numpy() for g in slopes]


def close(found: Found, row: Case, *, dtypes: bool = True) -> None:
    """Compare results and gradients with torch's.

    Raises:
        AssertionError: they differ.
    """
    values, grads = expected(row)
    assert len(found.values) == len(values)
    for got, want, shape, dtype in zip(found.values, values, found.shapes, found.dtypes, strict=True):
        assert got.shape == want.shape
        assert len(shape) == got.ndim
        assert all(size in (-1, real) for size, real in zip(shape, got.shape, strict=True)), (shape, got.shape)
        assert str(got.dtype) == dtype
        if dtypes:
            assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(want.dtype), want, rtol=row.tolerance, atol=row.tolerance, equal_nan=True)
    if not row.differentiable:
        return
    for got, want in zip(found.gradients, grads, strict=True):
        if want is None:
            assert got is None or not got.any()
            continue
        if got is None:
            assert not want.any(), "there is no gradient"
            continue
        np.testing.assert_allclose(got, want, rtol=10 * row.tolerance, atol=10 * row.tolerance)


def family_test(cases: Mapping[str, Case]) -> Callable[..., None]:
    """Return the test of a module's CASES: each against torch, with known sizes, and with free ones unless fixed."""
    pairs = [(name, free) for name, row in cases.items() for free in ((False,) if row.fixed else (False, True))]
    labels = [f"{name}-{'free' if free else 'known'} sizes" for name, free in pairs]

    @pytest.mark.parametrize(("name", "free"), pairs, ids=labels)
    def test(computed: Callable[[bool], Mapping[str, Found]], name: str, free: bool) -> None:
        close(computed(free)[name], cases[name])

    return test
