"""`cond`, `case`, `switch_case` and `while_loop` build control flow inside a program, as ONNX's If and Loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import program_of
from amp_transpiler.paddle.framework.turns import in_turn
from amp_transpiler.program.program import Program, Variable

__all__ = ["case", "cond", "switch_case", "while_loop"]

Branch = Callable[[], Any]


def cond(
    pred: Variable,
    true_fn: Branch | None = None,
    false_fn: Branch | None = None,
    name: str | None = None,
    return_names: Sequence[str] | None = None,
) -> Any:
    """Return what `true_fn` returns if `pred` holds, else what `false_fn` returns: only one of them is computed.

    Gradients pass through both. Variables of the program are read inside as they are; what a branch makes beside its
    results is not known outside. Layers that update statistics and drawn numbers do not go into a branch.

    Args:
        pred: a bool variable of one element.
        true_fn: a function without arguments, called once now; None for one that returns None.
        false_fn: likewise. Both return variables and numbers in lists, tuples and dictionaries of the same structure.
        name: Paddle's, no effect.
        return_names: Paddle's, no effect.

    Raises:
        InputError: `pred` is no truth value, a branch updates what persists, or the results differ in kind.
    """
    del name, return_names
    program, condition = program_of(pred), _truth(pred, "cond: pred")
    then, yes = _branch(program, true_fn, "true_fn")
    other, no = _branch(program, false_fn, "false_fn")
    if yes.layout != no.layout:
        raise InputError(f"cond: true_fn returns {yes.layout}, false_fn returns {no.layout}: return the same structure")
    if not yes.values:
        return yes.rebuild([])
    for number, (a, b) in enumerate(zip(yes.values, no.values, strict=True)):
        if a.dtype != b.dtype:
            raise InputError(
                f"cond: result {number} is {a.dtype} in true_fn and {b.dtype} in false_fn: cast one of them"
            )
    branches = {"then_branch": then, "else_branch": other}
    results = program.builder().nodes("If", [condition], branches, outputs=len(yes.values))
    for value, a, b in zip(results, yes.values, no.values, strict=True):
        value.type, value.shape = a.type, _common_shape(a, b)
    return yes.rebuild([Variable(program, str(value.name)) for value in results])


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Branch]], default: Branch | None = None, name: str | None = None
) -> Any:
    """Return what the function beside the first true predicate returns, else what `default` does.

    Args:
        pred_fn_pairs: (bool variable, function) pairs.
        default: the function for none of them; the last one of the pairs unless given.
        name: Paddle's, no effect.

    Raises:
        InputError: see `cond`.
        OptionError: there is no pair.
    """
    del name
    pairs = list(pred_fn_pairs)
    if not pairs:
        raise OptionError("case: give at least one pair of a predicate and a function")
    if default is None:
        *pairs, (_, default) = pairs
    if not pairs:
        return default()
    (pred, function), *rest = pairs
    return cond(pred, function, (lambda: case(rest, default)) if rest else default)


def switch_case(
    branch_index: Variable,
    branch_fns: Mapping[int, Branch] | Sequence[Any],
    default: Branch | None = None,
    name: str | None = None,
) -> Any:
    """Return what the function of a number returns.

    Args:
        branch_index: a variable with one whole number.
        branch_fns: number -> function; or functions, or (number, function) pairs.
        default: the function for other numbers; that of the largest number unless given.
        name: Paddle's, no effect.

    Raises:
        InputError: see `cond`.
        OptionError: there is no function, or a number comes twice.
    """
    del name
    numbered = branch_fns.items() if isinstance(branch_fns, Mapping) else enumerate(branch_fns)
    pairs = [item[1] if isinstance(item[1], (tuple, list)) else item for item in numbered]
    numbers = [int(number) for number, _ in pairs]
    if not pairs or len(set(numbers)) < len(numbers):
        raise OptionError(f"switch_case: give functions with numbers that differ, got {numbers}")
    ordered = sorted(pairs, key=lambda pair: int(pair[0]))
    if default is None:
        default = ordered[-1][1]
    return case([(branch_index == int(number), function) for number, function in ordered], default)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Call `body` again and again as long as `cond` holds, both with the loop's variables.

    Args:
        cond: returns a bool variable of one element.
        body: returns the new variables, as many as it is given, of the same shapes and types.
        loop_vars: the first ones, at least one: variables of the program.
        is_test: Paddle's, no effect.
        name: Paddle's, no effect.

    Returns:
        The variables after the last call.

    Raises:
        InputError: `cond` returns no truth value, or `body` other variables than it is given; or it updates what
            persists.
    """
    del is_test, name
    variables: list[Any] = list(loop_vars) if isinstance(loop_vars, (list, tuple)) else [loop_vars]
    if not variables or not all(isinstance(item, Variable) for item in variables):
        raise InputError(f"while_loop: loop_vars must be a list of variables, got {loop_vars!r}")
    program = program_of(*variables)
    builder = program.builder()
    first = _truth(cond(*variables), "while_loop: what cond returns")
    graph = ir.Graph([], [], nodes=[], name=builder.names.fresh("loop_body"))
    iteration, running = (
        ir.Value(name=builder.names.fresh(label), type=ir.TensorType(dtype), shape=ir.Shape([]))
        for label, dtype in (("iteration", ir.DataType.INT64), ("running", ir.DataType.BOOL))
    )
    states = [_loop_state(item, builder.names.fresh("state")) for item in variables]
    graph.inputs.extend([iteration, running, *states])
    with _built(program, graph, "while_loop's body"), in_turn(program, iteration):
        program.found_inside(states)
        after = body(*(Variable(program, str(state.name)) for state in states))
        after = list(after) if isinstance(after, (list, tuple)) else [after]
        results = [_as_value(program, item) for item in after]
        _check_states(variables, results)
        again = _truth(cond(*(Variable(program, str(value.name)) for value in results)), "while_loop: cond's result")
        graph.outputs.extend(builder.op("Identity", [value]) for value in (again, *results))
    final = builder.nodes(
        "Loop", [None, first, *(item.value for item in variables)], {"body": graph}, outputs=len(variables)
    )
    for value, state in zip(final, states, strict=True):
        value.type, value.shape = state.type, None if state.shape is None else ir.Shape(state.shape)
    return [Variable(program, str(value.name)) for value in final]


def _loop_state(item: Variable, name: str) -> ir.Value:
    value = item.value
    return ir.Value(name=name, type=value.type, shape=None if value.shape is None else ir.Shape(value.shape))


def _check_states(variables: Sequence[Variable], results: Sequence[ir.Value]) -> None:
    if len(variables) != len(results):
        raise InputError(
            f"while_loop: body is given {len(variables)} variables and returns {len(results)}: return as many"
        )
    for item, after in zip(variables, results, strict=True):
        before = item.value
        if before.dtype != after.dtype or _differ(before, after):
            raise InputError(
                f"while_loop: '{item.name}' is {before.dtype} {before.shape} before the body and {after.dtype} "
                f"{after.shape} behind it: keep type and shape"
            )


def _differ(a: ir.Value, b: ir.Value) -> bool:
    """Whether two shapes are known to differ."""
    if a.shape is None or b.shape is None:
        return False
    pairs = list(zip(a.shape, b.shape, strict=False))
    return len(a.shape) != len(b.shape) or any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in pairs)


class _Results:
    """Holds what a branch returns: values, and the structure that they are in.

    Attributes:
        values: the values, in order.
        layout: the structure in words; `*` stands for a value.
    """

    def __init__(self, program: Program, returned: Any) -> None:
        self.values: list[ir.Value] = []
        self._returned = returned
        self.layout = self._read(program, returned)

    def _read(self, program: Program, item: Any) -> str:
        if item is None:
            return "None"
        if isinstance(item, (list, tuple)):
            inner = ", ".join(self._read(program, part) for part in item)
            return f"[{inner}]"
        if isinstance(item, Mapping):
            return "{" + ", ".join(f"{key}: {self._read(program, part)}" for key, part in item.items()) + "}"
        self.values.append(_as_value(program, item))
        return "*"

    def rebuild(self, variables: list[Variable]) -> Any:
        """Return the structure with variables in place of the values."""
        remaining = iter(variables)

        def put(item: Any) -> Any:
            if item is None:
                return None
            if isinstance(item, (list, tuple)):
                return type(item)(put(part) for part in item)
            if isinstance(item, Mapping):
                return {key: put(part) for key, part in item.items()}
            return next(remaining)

        return put(self._returned)


def _branch(program: Program, function: Branch | None, label: str) -> tuple[ir.Graph, _Results]:
    """Return the graph of a function's nodes, and what it returns."""
    builder = program.builder()
    graph = ir.Graph([], [], nodes=[], name=builder.names.fresh(label))
    with _built(program, graph, f"cond's {label}"):
        results = _Results(program, None if function is None else function())
        # What comes from outside, or twice, is not an output of its own.
        results.values = [builder.op("Identity", [value]) for value in results.values]
    graph.outputs.extend(results.values)
    return graph, results


@contextmanager
def _built(program: Program, graph: ir.Graph, what: str) -> Iterator[None]:
    """Append to a body, and refuse updates of what persists."""
    before = dict(program.updates)
    with program.inside(graph):
        yield
    new_updates = {name: update for name, update in program.updates.items() if before.get(name) != update}
    changed = sorted(
        name for name, update in new_updates.items() if program.find(update) is None
    )  # a value of the body
    if changed:
        program.updates = before
        raise InputError(
            f"{what} updates {', '.join(map(repr, changed))}, which would be lost: keep layers with running statistics "
            "and assignments to what persists outside, or build the layer with is_test=True"
        )


def _as_value(program: Program, item: Any) -> ir.Value:
    if isinstance(item, Variable):
        if item.program is not program:
            raise InputError(f"'{item.name}' is of another program than the condition: build in one program_guard")
        return item.value
    if isinstance(item, (bool, int, float, np.ndarray, np.generic)):
        return program.builder().constant(np.asarray(item))
    raise InputError(f"a branch returns variables and numbers, got {item!r}")


def _truth(item: Any, what: str) -> ir.Value:
    if not isinstance(item, Variable) or item.value.dtype != ir.DataType.BOOL:
        raise InputError(f"{what} must be a bool variable of one element, got {item!r}")
    value = item.value
    if any(size not in (1, -1) for size in item.shape):  # an open one is found out in the run
        raise InputError(f"{what} must have one element, and '{item.name}' is of shape {list(item.shape)}")
    return value if value.shape is not None and not len(value.shape) else item.program.builder().reshape(value, [])


def _common_shape(a: ir.Value, b: ir.Value) -> ir.Shape | None:
    """Return what is known of a shape in both branches."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return None
    return ir.Shape([x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)])


check_arguments(globals(), __all__)
