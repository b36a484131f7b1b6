"""The update of a step shared out among ranks: each computes that of some parameters and keeps their state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.walk import reads_of
from amp_transpiler.program.assemble import Assembled
from amp_transpiler.runtime.distributed.cut_step import StepPart

__all__ = ["Share", "restricted", "share_updates"]


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """A state that one rank updates.

    Attributes:
        name: its name.
        owner: that rank.
        dtype: its element type.
        shape: its shape.
        spread: whether every rank needs it after each step, as parameters are; the other ranks drop what is not.
    """

    name: str
    owner: int
    dtype: ir.DataType
    shape: tuple[int, ...]
    spread: bool


def share_updates(parts: Sequence[StepPart], parameters: Collection[str], ranks: int) -> tuple[Share, ...]:
    """Share out the updates of a step that was cut, so that ranks have about equally many numbers.

    States that are updated from each other, such as a parameter, its master and its moments, stay together. All ranks
    update single numbers, such as loss scales and counters, and stacks of single numbers; these are not listed.

    Args:
        parts: the step; its last part is the optimizer.
        parameters: names that other programs may read.
        ranks: how many ranks there are.
    """
    last = parts[-1].assembled
    outputs = {str(value.name): value for value in last.model.graph.outputs}
    new_values = {name: outputs[output] for name, output in last.updates.items()}
    numbers = {stack.name for stack in last.stacks if set(stack.sizes) == {1}}
    large = {name: v for name, v in new_values.items() if is_static(v) and _size(v) > 1 and name not in numbers}
    reads = {name: _states_behind(value) for name, value in new_values.items()}
    read = {name for part in parts[:-1] for name in part.assembled.state}
    read |= {name for other, names in reads.items() if other not in large for name in names}
    groups = _together({name: reads[name] & large.keys() for name in large})
    loads, owners = [0] * ranks, {}
    for group in sorted(groups, key=lambda group: (-sum(_size(large[name]) for name in group), group)):
        rank = loads.index(min(loads))
        loads[rank] += sum(_size(large[name]) for name in group)
        owners.update(dict.fromkeys(group, rank))
    return tuple(
        Share(name, owners[name], v.dtype or ir.DataType.FLOAT, shape_of(v), name in read or name in parameters)
        for name, v in large.items()
    )


def restricted(assembled: Assembled, left_out: Collection[str]) -> Assembled | None:
    """Return a step without the updates of some states, and without what only these need; None if nothing is left."""
    updates = {name: output for name, output in assembled.updates.items() if name not in left_out}
    wanted = {*updates.values(), *assembled.fetches.values()}
    remaining = [value for value in assembled.model.graph.outputs if value.name in wanted]
    if not remaining:
        return None
    whole = assembled.model
    graph = ir.convenience.extract(whole.graph, list(whole.graph.inputs), remaining)
    for value in list(graph.inputs):
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)
    model = ir.Model(graph, ir_version=whole.ir_version, functions=list(whole.functions.values()))
    names = {value.name for value in graph.inputs}
    state = tuple(name for name in assembled.state if name in names)
    return dataclasses.replace(assembled, model=model, state=state, updates=updates)


def _states_behind(value: ir.Value) -> set[str]:
    """Return the names of the inputs that a value depends on."""
    pending, seen = [value], {value}
    names = set()
    while pending:
        node = (current := pending.pop()).producer()
        if node is None:
            names.add(str(current.name))
        for read in () if node is None else reads_of(node):
            if read not in seen:
                seen.add(read)
                pending.append(read)
    return names


def _together(links: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Return the connected groups of names, each sorted."""
    group = {name: {name} for name in links}
    for name, others in links.items():
        for other in others:
            if group[other] is not group[name]:
                joined = group[name] | group[other]
                for member in joined:
                    group[member] = joined
    return [tuple(sorted(members)) for members in {id(members): members for members in group.values()}.values()]


def _size(value: ir.Value) -> int:
    return math.prod(shape_of(value))
