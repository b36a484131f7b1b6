"""Losses that nobody fetches: they stand in a step until it is lowered, and are left out then.

What lowers a loss also writes its gradient: which samples count is asked of the inputs of the last layer, and the last
layer gets more columns. A step without the loss would keep slower forms, and other roundings than the same step has
where the loss is fetched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import elements_of, is_float_tensor
from amp_transpiler.graph.walk import reads_of
from amp_transpiler.program.assemble import Assembled, prune
from amp_transpiler.program.program import Program

__all__ = ["leave_out", "unfetched_losses"]


def unfetched_losses(program: Program, fetch: Collection[str]) -> tuple[str, ...]:
    """Return the losses of a training program that are not fetched: its outputs of one number.

    Those that read something which the step does not need are left out: nobody may have fed it.
    """
    if not program.updates:
        return ()
    outputs = (name for name in program.outputs if name not in fetch and name not in program.persistables)
    values = ((name, program.value(name)) for name in outputs)
    losses = [(name, value) for name, value in values if is_float_tensor(value) and elements_of(value) == 1]
    if not losses:
        return ()
    needed = _inputs_of(program.value(name) for name in (*fetch, *program.updates.values()))
    return tuple(name for name, value in losses if _inputs_of([value]) <= needed)


def _inputs_of(values: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the inputs of a program that values are computed from."""
    reached = dict.fromkeys(values)
    waiting = list(reached)
    for value in waiting:  # which grows
        producer = value.producer()
        reads = () if producer is None else dict.fromkeys(reads_of(producer))
        new = [read for read in reads if read not in reached]
        reached |= dict.fromkeys(new)
        waiting += new
    return {value for value in reached if value.is_graph_input()}


def leave_out(assembled: Assembled, losses: Sequence[str]) -> Assembled:
    """Return a lowered step, which is changed, without losses and what only they need."""
    if not losses:
        return assembled
    fetches = {name: output for name, output in assembled.fetches.items() if name not in losses}
    read = {*fetches.values(), *assembled.updates.values()}
    unread = {assembled.fetches[name] for name in losses} - read
    graph = assembled.model.graph
    graph.outputs[:] = [value for value in graph.outputs if value.name not in unread]
    prune(assembled.model)
    inputs = {str(value.name) for value in graph.inputs}
    return dataclasses.replace(
        assembled,
        fetches=fetches,
        feeds=tuple(name for name in assembled.feeds if name in inputs),
        state=tuple(name for name in assembled.state if name in inputs),
    )
