"""Options that name inputs, outputs, values or operators, looked up in the program at hand.

An exact name wins; any other text is a pattern that must match a whole name.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import AMP_DTYPES, FLOAT32
from amp_transpiler.graph.name_matching import did_you_mean, is_pattern, matching_names
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.vocabulary import finer_classes, known_operator, near_operators, paddle_names, vocabulary
from amp_transpiler.precision.limits import Limits
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.program.program import Program
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["DeclaredPorts", "IoTypes", "declared_ports", "limits_by_output", "low_inputs_and_outputs", "resolved_lists"]

if TYPE_CHECKING:
    from amp_transpiler.precision.custom_types import PortTypes

IoTypes = bool | str | Collection[str] | Mapping[str, Literal["keep", "low"]]
"""Which inputs and outputs keep their types: all, none, those named; or name -> `keep` or `low`, the others kept."""


def low_inputs_and_outputs(
    program: Program, wanted: IoTypes, dtype: str, *, with_float64: bool = False
) -> frozenset[str]:
    """Return the names of the graph inputs and outputs that change to the new format.

    Args:
        program: the program; persistable values of a training program do not count.
        wanted: the user's `keep_io_types`.
        dtype: the new format, for messages.
        with_float64: float64 becomes float32 first, so that it counts.

    Raises:
        OptionError: a name or pattern matches nothing, or a value that is no float.
    """
    graph = program.model.graph
    values = {str(value.name): value for value in (*graph.inputs, *graph.outputs)}
    names = values.keys() - program.persistables.keys()
    if isinstance(wanted, bool):
        return frozenset() if wanted else frozenset(names)
    if isinstance(wanted, Mapping):
        return _by_name(wanted, values, names, dtype, AMP_DTYPES | ({ir.DataType.DOUBLE} if with_float64 else set()))
    kept_names: set[str] = set()
    for text in (wanted,) if isinstance(wanted, str) else wanted:
        matches = matching_names(text, names, "keep_io_types")
        if not matches:
            every = ", ".join(sorted(names))
            raise OptionError(
                f"keep_io_types names '{text}', which is no input or output{did_you_mean(text, names)}: {every}"
            )
        kept_names.update(matches)
    return frozenset(names - kept_names)


def _by_name(
    wanted: Mapping[str, Literal["keep", "low"]],
    values: Mapping[str, ir.Value],
    names: AbstractSet[str],
    dtype: str,
    changing: Collection[ir.DataType],
) -> frozenset[str]:
    """Go through the entries in order: a later one has the last word about a name."""
    low: set[str] = set()
    for text, kind in wanted.items():
        if kind not in ("keep", "low"):
            raise OptionError(f"--io-types {text}={kind}: expected 'keep' or 'low'")
        option = f"--io-types {text}={kind}"
        matches = matching_names(text, sorted(names), option)
        if not matches:
            raise OptionError(
                f"{option}: the model has no input or output {text!r}{did_you_mean(text, names)}; "
                f"it has {', '.join(sorted(names))}"
            )
        if kind == "keep":
            low.difference_update(matches)
            continue
        floats = [name for name in matches if values[name].dtype in (None, *changing)]
        if not floats:
            raise OptionError(
                f"{option}: {matches[0]!r} is {values[matches[0]].dtype}; "
                f"only 16-bit floats and float32, and with --float64 float32 also float64, can become {dtype}"
            )
        low.update(floats)
    return frozenset(low)


def limits_by_output(program: Program, limits: Limits) -> Limits:
    """Return the limits with names of outputs in place of patterns; a later entry has the last word about a name.

    Raises:
        OptionError: a name or pattern matches no output.
    """
    names = [str(value.name) for value in program.model.graph.outputs]
    by_output: dict[str, float] = {}
    for text, tolerance in limits.outputs.items():
        matching = matching_names(text, names, "tolerance")
        if not matching:
            every = ", ".join(names) or "none"
            raise OptionError(f"tolerance names '{text}', which is no output{did_you_mean(text, names)}: {every}")
        by_output |= dict.fromkeys(matching, tolerance)
    return dataclasses.replace(limits, outputs=by_output)


class DeclaredPorts(TypedDict):
    """What a user says about single inputs and outputs of operators, as `Policy` has it.

    Attributes:
        custom_types: operator without a schema -> the types of its inputs and outputs.
        float32_inputs: operator -> the inputs, by index, that stay float32.
    """

    custom_types: Mapping[str, PortTypes]
    float32_inputs: Mapping[str, frozenset[int]]


def declared_ports(program: Program, policy: Policy, custom_op_types: Any, float32_inputs: Any) -> DeclaredPorts:
    """Return what the user says about single inputs and outputs, by the operators of a program.

    Args:
        program: the program.
        policy: how is decided.
        custom_op_types: the user's, as `transpile` takes them.
        float32_inputs: the user's, likewise.

    Raises:
        OptionError: they have no meaning for this policy, or do not fit the program.
    """
    declared = DeclaredPorts(custom_types={}, float32_inputs={})
    for name, value in (("custom_op_types", custom_op_types), ("float32_inputs", float32_inputs)):
        if value and (policy.low is FLOAT32 or policy.copies):
            what = "everything becomes float32" if policy.low is FLOAT32 else "nothing is changed"
            raise OptionError(f"{name} has no meaning where {what}: drop it, or choose another dtype, level or preset")
    if custom_op_types:
        from amp_transpiler.precision.custom_nodes import custom_types_in, mark_plugins  # few models have them

        declared["custom_types"] = custom_types_in(program.model, custom_op_types, policy.low)
        mark_plugins(program.model, declared["custom_types"])
    if float32_inputs:
        from amp_transpiler.precision.float32_inputs import inputs_in  # few calls have them

        declared["float32_inputs"] = inputs_in(program.model, float32_inputs)
    return declared


def resolved_lists(lists: UserLists | None, program: Program, dtype: str) -> AutoMixedPrecisionLists | None:
    """Return the lists with operators and values of this program in place of patterns; None for the default lists.

    Args:
        lists: Paddle's lists, in which plain names that nothing is known by have no effect; or names as on the command
            line, where they are errors.
        program: the program.
        dtype: the low format.

    Raises:
        OptionError: a pattern, or a name from the command line, matches nothing.
    """
    if lists is None:
        return None
    if isinstance(lists, AutoMixedPrecisionLists):
        options, strict = ("custom_white_list", "custom_black_list", "custom_black_varnames"), False
    else:
        options, strict = ("--white", "--black", "--black-var"), True
    operators = _Operators(program.model)
    white = operators.named(lists.custom_white_list, options[0], strict)
    black = operators.named(lists.custom_black_list, options[1], strict)
    values = _values(lists.black_varnames, program, options[2], strict)
    if isinstance(lists, AutoMixedPrecisionLists):
        return lists.replaced(white, black, values)
    if both := sorted(white & black):
        raise OptionError(f"operator {both[0]!r} is both in --white and in --black; drop one of the two")
    resolved = AutoMixedPrecisionLists(
        filter(known_operator, sorted(white)), filter(known_operator, sorted(black)), values, dtype
    )
    # The constructor would warn about operators that only this model knows.
    custom_white, custom_black = ({name for name in names if not known_operator(name)} for names in (white, black))
    return resolved.replaced(
        resolved.custom_white_list | custom_white, resolved.custom_black_list | custom_black, values
    )


class _Operators:
    """Looks operators up, in ONNX's vocabulary and in the model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @functools.cached_property
    def _present(self) -> frozenset[str]:
        functions = (function.all_nodes() for function in self._model.functions.values())
        return frozenset(map(operator_name, itertools.chain(self._model.graph.all_nodes(), *functions)))

    def named(self, names: Iterable[str], option: str, strict: bool) -> frozenset[str]:
        """Return the operators that `names` and patterns stand for."""
        return frozenset(operator for name in sorted(names) for operator in self._of(name, option, strict))

    def _of(self, name: str, option: str, strict: bool) -> list[str]:
        plain = name.removeprefix("ai.onnx::")
        if known_operator(name) or plain in self._present:
            return [plain]
        if matches := matching_names(name, sorted(vocabulary() | self._present), option):
            meant = [operator for match in matches for operator in paddle_names().get(match, (match,))]
            return [*meant, *(finer for operator in meant for finer in finer_classes().get(operator, ()))]
        if not (strict or is_pattern(name)):
            return [name]  # the lists warned of it
        near = near_operators(name, self._present)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; names are ONNX's, for example Conv"
        raise OptionError(f"{option} {name}: no operator of ONNX, no known alias, and not in the model{hint}")


def _values(names: Iterable[str], program: Program, option: str, strict: bool) -> frozenset[str]:
    """Return the values that names and patterns stand for."""
    if not names:
        return frozenset()
    known = set(_value_names(program.model))
    chosen: set[str] = set()
    for name in sorted(names):
        matches = matching_names(name, known, option) if strict or name in known or is_pattern(name) else []
        # A function's values get their last names when it is inlined.
        if not matches and (strict or is_pattern(name)) and not program.model.functions:
            raise OptionError(f"{option} {name}: the model has no value of that name{did_you_mean(name, known)}")
        chosen.update(matches or [name])
    return frozenset(chosen)


def _value_names(model: ir.Model) -> Iterator[str]:
    for scope in scopes(model):
        yield from (str(value.name) for value in scope.graph.inputs)
        yield from map(str, scope.graph.initializers)
        yield from (str(value.name) for node in scope.graph for value in node.outputs)
    for function in model.functions.values():
        yield from (str(value.name) for node in function.all_nodes() for value in node.outputs)
