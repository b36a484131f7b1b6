"""Runs a training program for some steps, and the same in float32 beside it: what each step computes, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.static.step_tensors import first_readers, forward_tensors, gradients_of, loss_scales_of
from amp_transpiler.paddle.static.tensor_checker import exempt
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.lowering import RANDOM_SEED, RANDOM_STEP
from amp_transpiler.runtime.places import to_host
from amp_transpiler.runtime.scope import Scope

__all__ = ["Feed", "Side", "first_bad", "largest", "parameters_read", "relative_error", "start_of", "tensors_read"]

Feed = Mapping[Any, Any]

_MASTER = re.compile(r"_fp32_master_\d+")


class Side:
    """Runs one program on a copy of a scope.

    Args:
        program: a training program.
        scope: where its values live; it stays as it is.
        executor: what runs it.
        loss: the variable to look at; the program's first output unless given.

    Attributes:
        program: a copy of the program.
        scope: the copy.
        loss: the loss's name.
        scales: the names of loss scales.
        tensors: the float values of the forward pass, without casts -> where each comes from.
        gradients: parameter -> name of its gradient, scaled as the backward pass makes it.
        parameters: parameter -> where it is read first.

    Raises:
        InputError: the program trains nothing, or names no loss.
    """

    def __init__(self, program: Program, scope: Scope, executor: Executor, loss: Variable | str | None) -> None:
        self.program, self.scope, self._executor = exempt(program.clone()), scope.shared_copy(), executor
        self._start = scope.shared_copy()
        if loss is None and not program.outputs:
            raise InputError("diagnose_training: the program names no loss: give loss=")
        self.loss = program.outputs[0] if loss is None else program.name_of(loss)
        program.value(self.loss)  # raises where there is none
        self.scales, self.gradients = loss_scales_of(program), gradients_of(program)
        if not self.gradients:
            raise InputError(f"diagnose_training: {program!r} trains nothing: call an optimizer's minimize(loss) first")
        self.tensors, self.parameters = forward_tensors(program), first_readers(program)

    def step(self, feed: Feed) -> dict[str, np.ndarray]:
        """Run a step, and return what it computes: loss, loss scales before it, forward pass and gradients."""
        scales = {name: np.array(self.scope[name]) for name in self.scales}
        return {**self._run(feed, self.scope), **scales}

    def gradients_at(self, feed: Feed, loss_scale: float | None) -> dict[str, np.ndarray]:
        """Return the gradients by parameter that the first step would have with another loss scale."""
        scope = self._start.shared_copy()
        for name in self.scales if loss_scale is not None else ():
            scope[name] = np.full_like(self.scope[name], loss_scale)
        values = self._run(feed, scope)
        return {parameter: values[gradient] for parameter, gradient in self.gradients.items()}

    def step_back(self, before: Scope, other: Scope) -> None:
        """Go back to the state before a step, as the program in another scope did; random masks go on as there."""
        for name in (RANDOM_SEED, RANDOM_STEP):
            if name in before and name in other:
                before[name] = other[name]
        self.scope = before

    def parameter(self, name: str, scope: Scope) -> np.ndarray:
        """Return the value of a parameter in a scope: its float32 master weight, if it has one."""
        masters = (other for other in scope if other.startswith(f"{name}_fp32_master_"))
        master = next((other for other in masters if _MASTER.fullmatch(other.removeprefix(name))), name)
        return np.asarray(scope[master])

    def _run(self, feed: Feed, scope: Scope) -> dict[str, np.ndarray]:
        names = list(dict.fromkeys([self.loss, *self.tensors, *self.gradients.values()]))
        # As values of the runtime: for arrays the executor warns of parameters that are lost, and these are copies.
        values = self._executor.run(self.program, feed, names, scope=scope, return_numpy=False, not_finite="allow")
        return {name: to_host(value) for name, value in zip(names, values, strict=True)}


def start_of(reference: Program, scope: Scope) -> Scope:
    """Return a scope for the program in float32, with the state of the other one: master weights, moments, masks.

    Raises:
        InputError: a value of the program in float32 has no counterpart.
    """
    arrays: dict[str, np.ndarray] = {}
    for name in sorted(scope, key=lambda name: _MASTER.search(name) is not None):  # a master weight replaces its copy
        arrays[_MASTER.sub("", name)] = np.asarray(scope[name])
    start = Scope()
    for name, persistable in reference.persistables.items():
        value = reference.value(name)
        array = arrays.get(name)
        if array is None:
            if persistable.driver is None:
                raise InputError(
                    f"diagnose_training: '{name}' of the reference has no counterpart in the scope: build both "
                    "programs with the same code, each under paddle.utils.unique_name.guard(), and run the "
                    "startup program"
                )
            continue
        start[name] = array if value.dtype is None else array.astype(value.dtype.numpy())
    return start


# ---- arrays ----


def largest(array: np.ndarray) -> float:
    """Return the largest magnitude; infinity where an element is not finite."""
    wide = np.abs(array.astype(np.float64))
    return float(wide.max(initial=0.0)) if np.isfinite(wide).all() else float("inf")


def relative_error(array: np.ndarray, exact: np.ndarray) -> float:
    """Return the norm of the difference over that of what is exact; infinity where only one of the two is finite."""
    low, wide = array.astype(np.float64), exact.astype(np.float64)
    finite = np.isfinite(wide)
    if low.shape != wide.shape or not np.array_equal(np.isfinite(low), finite):
        return float("inf")
    difference, norm = np.linalg.norm(low[finite] - wide[finite]), np.linalg.norm(wide[finite])
    if norm:
        return float(difference / norm)
    return float("inf") if difference else 0.0


# ---- the graph ----


def first_bad(program: Program, ends: Iterable[str], verdicts: Mapping[str, bool]) -> list[str]:
    """Return the bad values that lead to the end and read nothing bad, in the order of the program.

    Args:
        program: the program.
        ends: names of values to start from.
        verdicts: whether a value is bad; what is not there is looked through.
    """
    stack, seen, first = list(ends), set[str](), set[str]()
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        bad = [read for read in _known_reads(program, name, verdicts) if verdicts[read]]
        stack.extend(bad)
        if verdicts.get(name) and not bad:
            first.add(name)
    return [name for name in verdicts if name in first]


def _known_reads(program: Program, name: str, known: Mapping[str, bool]) -> Iterator[str]:
    """Yield the values that one is computed from, through those without a verdict."""
    stack, seen = [name], {name}
    while stack:
        for read in _reads(program, stack.pop()):
            if read in seen:
                continue
            seen.add(read)
            if read in known:
                yield read
            else:
                stack.append(read)


def parameters_read(side: Side, name: str) -> list[str]:
    """Return the parameters that the operator which makes a value reads, through casts."""
    verdicts = dict.fromkeys([*side.tensors, *side.gradients], False)
    return [read for read in _known_reads(side.program, name, verdicts) if read in side.gradients]


def tensors_read(side: Side, name: str) -> list[str]:
    """Return the tensors of the forward pass that the operator which makes a value reads, through casts."""
    return list(_known_reads(side.program, name, dict.fromkeys(side.tensors, False)))


def _reads(program: Program, name: str) -> Sequence[str]:
    value = program.find(name)
    node = None if value is None else value.producer()
    return [] if node is None else [str(read.name) for read in node.inputs if read is not None]
