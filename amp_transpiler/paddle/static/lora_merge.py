"""`merge_lora` adds low-rank pairs to the weights that they stand beside."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import is_used
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.static.io import set_program_state
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.paddle.master_weights import master_name

__all__ = ["Pair", "mark_pair", "merge_lora"]

_KEY = "amp_transpiler.lora"  # metadata of the Add of a pair's product: the pair
_PASSED = frozenset({"Cast", "Identity", "Transpose"})


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Describes a low-rank pair beside a weight.

    Attributes:
        weight: its name.
        scale: what the pair's product is multiplied by.
        turned: whether the weight is [out, in].
        groups: of a convolution.
    """

    weight: str
    scale: float
    turned: bool
    groups: int

    def delta(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return what the pair adds to the weight, in float64."""
        down, up = first.astype(np.float64), second.astype(np.float64)
        if down.ndim == 2:
            product = self.scale * (down @ up)
            return product.T if self.turned else product
        rank = up.shape[1]
        columns = up.reshape(self.groups, -1, rank)
        rows = down.reshape(self.groups, rank, -1)
        return self.scale * (columns @ rows).reshape(up.shape[0], *down.shape[1:])


def mark_pair(added: ir.Value, pair: Pair) -> None:
    """Mark the sum of a product and its pair with the pair."""
    node = added.producer()
    assert node is not None  # it is the sum
    node.metadata_props[_KEY] = json.dumps(dataclasses.asdict(pair))


def merge_lora(program: Program, scope: Scope | None = None) -> Program:
    """Add the pairs of `add_lora` to their weights, and return an inference program without pairs.

    The weights change in the scope, and the second matrix of each pair becomes zero there: `program` computes what it
    did, and may be trained on. A weight of 16 bits is rounded to them, and its float32 master weight is not.

        merged = paddle.static.merge_lora(program)
        paddle.static.save_inference_model("merged", [x], [y], exe, program=merged)

    Args:
        program: a program that `add_lora` was called for.
        scope: where the values live; the global scope unless given.

    Raises:
        InputError: there are no pairs, the scope lacks values, or a weight is also read by something without a pair,
            such as an embedding, which would change.
    """
    held = global_scope() if scope is None else scope
    pairs = dict(_pairs(program))
    if not pairs:
        raise InputError(f"merge_lora: {program!r} has no adapters: call add_lora first")
    changed: dict[str, np.ndarray] = {}
    constants: dict[str, np.ndarray] = {}
    by_weight: dict[str, Pair] = {}
    for pair in pairs.values():
        if by_weight.setdefault(pair.weight, pair) != pair:
            raise InputError(f"merge_lora: '{pair.weight}' is multiplied by as it is, and turned: it cannot be merged")
    for name, pair in by_weight.items():
        _check_readers(program, name, set(pairs))
        delta = pair.delta(*(_exact(program, held, f"{name}.lora_{end}") for end in "AB"))
        changed[f"{name}.lora_B"] = np.zeros_like(_held(held, f"{name}.lora_B"))
        if name not in program.persistables:
            constant = program.value(name).const_value
            assert constant is not None  # it is a weight
            constants[name] = _added(constant.numpy(), delta)
            continue
        for stored_name in (name, master_name(name)):
            if stored_name in program.persistables:
                changed[stored_name] = _added(_held(held, stored_name), delta)
    masters = {master_name(f"{name}.lora_B") for name in by_weight}
    changed |= {name: np.zeros_like(_held(held, name)) for name in masters if name in program.persistables}
    merged = _without_pairs(program)
    set_program_state(program, changed, held)
    for edited in (program, merged):
        for name, array in constants.items():
            value = edited.value(name)
            value.const_value = ir.Tensor(array, dtype=value.dtype, name=name)
        edited.touch()
    return merged


def _pairs(program: Program) -> Iterator[tuple[ir.Node, Pair]]:
    for node in program.model.graph:
        if text := node.metadata_props.get(_KEY):
            yield node, Pair(**json.loads(text))


def _held(scope: Scope, name: str) -> np.ndarray:
    if name not in scope:
        raise InputError(f"merge_lora: the scope has no value for '{name}': run the startup program first")
    return np.asarray(scope[name])


def _exact(program: Program, scope: Scope, name: str) -> np.ndarray:
    master = master_name(name)
    return _held(scope, master if master in program.persistables and master in scope else name)


def _added(array: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return the sum of a weight and what is added, in the weight's element type."""
    return np.asarray((array.astype(np.float64) + delta).astype(np.float32)).astype(array.dtype)


def _check_readers(program: Program, weight: str, sums: set[ir.Node]) -> None:
    """Raise InputError if something reads a weight that has no pair, which a merge would change."""
    stack = [program.value(weight)]
    while stack:
        for use in stack.pop().uses():
            node = use.node
            if node.op_type in _PASSED:
                stack.extend(node.outputs)
            elif role_of(node) == "forward" and not _leads_to(node, sums):
                raise InputError(
                    f"merge_lora: '{weight}' is read by {node.op_type} '{node.name}' too, which has no pair and would "
                    "change: keep the pair"
                )


def _leads_to(node: ir.Node, sums: set[ir.Node]) -> bool:
    """Whether a product goes, perhaps through casts, to the sum with its pair."""
    readers = {use.node for value in node.outputs for use in value.uses()}
    return any(reader in sums or (reader.op_type in _PASSED and _leads_to(reader, sums)) for reader in readers)


def _without_pairs(program: Program) -> Program:
    merged = program.clone(for_test=True)
    graph = merged.model.graph
    for node, pair in list(_pairs(merged)):
        product, new = node.inputs[0], node.outputs[0]
        assert product is not None  # the sum adds to it
        ir.convenience.replace_all_uses_with(new, product, replace_graph_outputs=True)
        name, new.name = new.name, f"{new.name}__pair"
        product.name = name  # what readers and Variables know
        low_rank = None if node.inputs[1] is None else node.inputs[1].producer()
        graph.remove(node, safe=True)
        if low_rank is not None:
            remove_unread(low_rank)
        for end in "AB":
            merged.persistables.pop(f"{pair.weight}.lora_{end}", None)
    for value in [value for value in graph.inputs if str(value.name).endswith((".lora_A", ".lora_B"))]:
        if not is_used(value):
            graph.inputs.remove(value)
    merged.touch()
    return merged


check_arguments(globals(), __all__)
