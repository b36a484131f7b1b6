"""`convert_model` and the queries of its lists: MXNet 2's conversion of a model for inference, on ONNX programs."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from amp_transpiler.conversion import prepare_and_convert
from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import LowFormat, dtype_name, low_format, parse_dtype
from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.graph.regions import DISABLE_AMP, has_guard, is_kept, mark_region
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.vocabulary import unknown_operators
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.program.program import Program
from amp_transpiler.systems.mxnet.lists import (
    LOSSES,
    USE_FP32_PARAMS,
    Condition,
    MxnetLists,
    default_mxnet_lists,
    like_mxnet_name,
)
from amp_transpiler.systems.mxnet.rules import MxnetRules
from amp_transpiler.targets import CUDA

__all__ = [
    "convert_model",
    "list_conditional_fp32_ops",
    "list_fp32_ops",
    "list_loss_output_functions",
    "list_lp16_fp32_ops",
    "list_lp16_ops",
    "list_lp16_use_fp32_params",
    "list_widest_type_cast",
]

logger = logging.getLogger(__name__)


def list_lp16_ops(target_dtype: str = "float16") -> list[str]:
    """Return the operators that are always low: the default of `target_dtype_ops`."""
    return sorted(default_mxnet_lists(target_dtype).target)


def list_fp32_ops(target_dtype: str = "float16") -> list[str]:
    """Return the operators that stay as written: the default of `fp32_ops`."""
    return sorted(default_mxnet_lists(target_dtype).fp32)


def list_lp16_fp32_ops(target_dtype: str = "float16") -> list[str]:
    """Return the neutral operators: low if any of their float inputs is available in lower precision."""
    return sorted(default_mxnet_lists(target_dtype).neutral)


def list_conditional_fp32_ops(target_dtype: str = "float16") -> list[tuple[str, str, list[str]]]:
    """Return the default of `conditional_fp32_ops`: (operator, attribute, values)."""
    return [(op, name, list(values)) for op, name, values in default_mxnet_lists(target_dtype).conditional]


def list_widest_type_cast(target_dtype: str = "float16") -> list[str]:
    """Return the operators that work in the widest type of their inputs."""
    return sorted(default_mxnet_lists(target_dtype).widest)


def list_loss_output_functions(target_dtype: str = "float16") -> list[str]:
    """Return the operators whose result is a loss."""
    low_format(target_dtype)
    return list(LOSSES)


def list_lp16_use_fp32_params(target_dtype: str = "float16") -> dict[str, list[str]]:
    """Return, by operator, the inputs that stay float32 in a low node if the target has a kernel for that.

    ONNX Runtime's CUDA provider has none for BatchNormalization, so `convert_model` rounds its parameters, except in
    training programs.
    """
    low_format(target_dtype)
    return {operator: list(inputs.values()) for operator, inputs in USE_FP32_PARAMS.items()}


def convert_model(
    program: Program | ir.Model | onnx.ModelProto | str | os.PathLike[str],
    input_dtypes: Mapping[str, Any] | None = None,
    target_dtype: str = "float16",
    target_dtype_ops: Collection[str] | None = None,
    fp32_ops: Collection[str] | None = None,
    conditional_fp32_ops: Collection[tuple[str, str, Sequence[str]]] | None = None,
    excluded_sym_names: Collection[str] = (),
    cast_params_offline: bool = False,
    **obsolete: Any,
) -> Program:
    """Return a copy of the program in mixed precision, by MXNet's rules.

    A list that you give replaces MXNet's: operators only on the replaced list become neutral, and operators on yours
    leave the other default lists. Graph outputs keep their types. Nodes excluded by name are in a `disable_amp` region
    of the result, so that later conversions leave them alone as well.

    Args:
        program: the program. It is not changed; functions are inlined in the copy.
        input_dtypes: graph input -> element type: the program's own, or `target_dtype` for a float32 input. An input
            that declares no type takes any; `target_dtype` makes it a float32 input that becomes low. Inputs that are
            not named keep their types.
        target_dtype: `float16` or `bfloat16`.
        target_dtype_ops: operators that are low.
        fp32_ops: operators that stay as written.
        conditional_fp32_ops: (operator, attribute, values): a node stays as written if its attribute, or the default,
            has one of the values. Values are text: strings unchanged, numbers in decimal, lists as `[1,2]`. Other nodes
            of the operator follow its list; an operator on the default fp32 list becomes neutral.
        excluded_sym_names: nodes that stay as written, with all nodes in their bodies. Unknown names are warned of.
        cast_params_offline: store a constant low if every node that reads it wants it low. Otherwise constants of more
            than one element stay float32 and are cast at run time.
        obsolete: arguments of MXNet's earlier `convert_model`: an error that names what replaced them.

    Raises:
        OptionError: (a ValueError) an argument has another form, an operator is on two of the given lists, or is
            neither on one of MXNet's lists nor in the program, or a node lacks the attribute of a condition.
        TypeError: an unknown argument, such as one that MXNet's `convert_model` had before.
        ModelError: the program is not valid.
    """
    if obsolete:
        _refuse_obsolete(obsolete)
    low = low_format(target_dtype)
    source = load(program, _source_types(input_dtypes, low))
    tables = _tables(source.model, low, target_dtype_ops, fp32_ops, conditional_fp32_ops)
    excluded = _names(excluded_sym_names, "excluded_sym_names") or ()
    policy = Policy(
        low=low,
        target=CUDA,
        rules=MxnetRules(low, UserLists(), tables),
        low_io=_low_inputs(source, input_dtypes, low),
        constants="whole" if cast_params_offline else "runtime",
    )
    work = source.clone()
    _exclude(work, excluded)
    assignment = prepare_and_convert(work, policy).assignment
    _report_unlisted(work, assignment, tables)
    _warn_of_refusals(assignment, tables, guarded=has_guard(work.model))
    return work


def _refuse_obsolete(names: Collection[str]) -> None:
    """Name what replaced arguments of MXNet's earlier `convert_model`."""
    remedies = {
        "cast_optional_params": "MXNet's pull request 20753 renamed it to cast_params_offline",
        "data_names": "input_dtypes, a dict, names the inputs now",
        "arg_params": "an ONNX model holds its parameters: leave it out",
        "aux_params": "an ONNX model holds its parameters: leave it out",
        "param_dtypes": "an ONNX model states the types of its parameters: leave it out",
        "sym": "the model is the first argument, program",
    }
    faults = [f"{name!r}: {remedies[name]}" if name in remedies else f"{name!r}" for name in names]
    raise TypeError(f"convert_model has no argument {'; '.join(faults)}")


def _tables(
    model: ir.Model,
    low: LowFormat,
    target_dtype_ops: Collection[str] | None,
    fp32_ops: Collection[str] | None,
    conditional_fp32_ops: Collection[tuple[str, str, Sequence[str]]] | None,
) -> MxnetLists:
    """Return the lists in effect, after checking the given ones against the program."""
    defaults = default_mxnet_lists(low.name)
    target = _names(target_dtype_ops, "target_dtype_ops")
    fp32 = _names(fp32_ops, "fp32_ops")
    conditions = _conditions(conditional_fp32_ops)
    _refuse_overlaps(target, fp32, conditions)
    listed = [*(target or ()), *(fp32 or ()), *(operator for operator, _, _ in conditions or ())]
    _refuse_illegal(listed, defaults, _operators(model))
    return _replaced(defaults, target, fp32, conditions)


# ---- arguments ----


def _names(names: Collection[str] | None, argument: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str):
        raise OptionError(f"{argument}: expected a list of names, got the string {names!r}; write [{names!r}]")
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise OptionError(f"{argument}: expected a list, tuple or set of strings, got {names!r}")
    return tuple(dict.fromkeys(name.removeprefix("ai.onnx::") for name in names))


def _conditions(entries: Collection[tuple[str, str, Sequence[str]]] | None) -> tuple[Condition, ...] | None:
    if entries is None:
        return None
    if not isinstance(entries, (list, tuple, set, frozenset)):
        raise OptionError(f"conditional_fp32_ops: expected a list of (operator, attribute, values), got {entries!r}")
    return tuple(map(_condition, entries))


def _condition(entry: object) -> Condition:
    match entry:
        case (str(operator), str(attribute), [*values]) if all(isinstance(value, str) for value in values):
            return operator.removeprefix("ai.onnx::"), attribute, tuple(map(str, values))
    raise OptionError(
        f"conditional_fp32_ops: expected (operator, attribute, list of values), all of them strings, got {entry!r}; "
        "write for example ('Gelu', 'approximate', ['tanh'])"
    )


def _refuse_overlaps(
    target: Collection[str] | None, fp32: Collection[str] | None, conditions: Collection[Condition] | None
) -> None:
    """Refuse an operator on two of the user's lists. Against a default list, the user's list wins."""
    lists = {
        "target_dtype_ops": set(target or ()),
        "fp32_ops": set(fp32 or ()),
        "conditional_fp32_ops": {condition[0] for condition in conditions or ()},
    }
    for first, second in (
        ("target_dtype_ops", "fp32_ops"),
        ("target_dtype_ops", "conditional_fp32_ops"),
        ("fp32_ops", "conditional_fp32_ops"),
    ):
        if both := sorted(lists[first] & lists[second]):
            raise OptionError(f"{', '.join(both)} in both {first} and {second}; leave it in one of them")


def _refuse_illegal(names: Collection[str], defaults: MxnetLists, present: set[str]) -> None:
    """Refuse an operator that is neither on a default list, nor a finer class of one that is, nor in the program."""
    legal = defaults.operators | present
    illegal = [name for name in names if name not in legal and not _is_class(name, legal)]
    if not illegal:
        return
    near = dict(unknown_operators(illegal, present))
    faults = []
    for name in illegal:
        hints = list(dict.fromkeys((*like_mxnet_name(name)[:3], *near.get(name, ()))))
        hints = [hint for hint in hints if hint in legal]
        faults.append(f"{name!r} (did you mean {' or '.join(hints)}?)" if hints else repr(name))
    raise OptionError(
        f"illegal operators: {', '.join(faults)}: on none of MXNet's lists and not in the program; see list_lp16_ops, "
        "list_fp32_ops, list_widest_type_cast and list_lp16_fp32_ops for the names"
    )


def _is_class(name: str, legal: Collection[str]) -> bool:
    """Whether `name` is a finer class of a legal operator."""
    return "[" in name and name.partition("[")[0] in legal and not unknown_operators([name], ())


def _operators(model: ir.Model) -> set[str]:
    """Return the operators and finer classes of a program, with its functions."""
    nodes = list(_every_node(model))
    return {operator_name(node) for node in nodes} | {operator_class(node) for node in nodes}


def _every_node(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _replaced(
    defaults: MxnetLists,
    target: Collection[str] | None,
    fp32: Collection[str] | None,
    conditions: tuple[Condition, ...] | None,
) -> MxnetLists:
    """Return the default lists with the given ones in their place; operators that no list has any more are neutral."""
    named = {*(target or ()), *(fp32 or ())}
    freed = {operator for operator, _, _ in conditions or ()} & (defaults.fp32 - named)
    taken = {key for key in defaults.operators if key in named or key.partition("[")[0] in named}
    new_target = frozenset(target) if target is not None else defaults.target - taken
    new_fp32 = frozenset(fp32) if fp32 is not None else defaults.fp32 - taken - freed
    dropped = (defaults.target | defaults.fp32) - taken - new_target - new_fp32
    return MxnetLists(
        new_target,
        new_fp32,
        defaults.widest - taken,
        (defaults.neutral - taken) | dropped,
        conditions if conditions is not None else tuple(c for c in defaults.conditional if c[0] not in named),
    )


def _source_types(dtypes: Mapping[str, Any] | None, low: LowFormat) -> dict[str, str]:
    """Return the types, before conversion, of inputs that declare none."""
    if not isinstance(dtypes, Mapping):
        return {}  # refused later, with the names of the inputs at hand
    return {name: "float32" if parse_dtype(dtype) == low.dtype else dtype for name, dtype in dtypes.items()}


def _low_inputs(program: Program, dtypes: Mapping[str, Any] | None, low: LowFormat) -> frozenset[str]:
    """Return the graph inputs that become low."""
    if dtypes is None:
        return frozenset()
    if not isinstance(dtypes, Mapping):
        raise OptionError(f"input_dtypes: expected a dict of input name -> dtype, got {dtypes!r}")
    graph = program.model.graph
    inputs = {str(v.name): v.dtype for v in graph.inputs if v.name not in program.persistables}
    lowered = set()
    for name, dtype in dtypes.items():
        if name not in inputs:
            raise OptionError(
                f"input_dtypes names '{name}', which is no input: {', '.join(inputs) or 'the program has none'}"
            )
        wanted, declared = parse_dtype(dtype), inputs[name]
        if wanted == declared:
            continue
        if declared != ir.DataType.FLOAT or wanted != low.dtype:
            may = f"{_name(declared)} or {low.name}" if declared == ir.DataType.FLOAT else _name(declared)
            raise OptionError(f"input_dtypes: input '{name}' is {_name(declared)}: expected {may}, got {_name(wanted)}")
        if any(value.name == name for value in graph.outputs):
            raise OptionError(f"input_dtypes: input '{name}' is also an output, and outputs keep their types")
        lowered.add(name)
    return frozenset(lowered)


def _name(dtype: ir.DataType | None) -> str:
    return "no tensor" if dtype is None else dtype_name(dtype)


# ---- the program ----


def _exclude(program: Program, names: Collection[str]) -> None:
    """Put the named nodes into a disable_amp region, in place."""
    handles = {str(n) for node in _every_node(program.model) for n in ([node.name] if node.name else _outputs(node))}
    for name in sorted(set(names) - handles):
        logger.warning("excluded_sym_names: the program has no node '%s'", name)
    if excluded := sorted(set(names) & handles):
        mark_region(program, DISABLE_AMP, nodes=rf"\A(?:{'|'.join(map(re.escape, excluded))})\Z")


def _outputs(node: ir.Node) -> list[str | None]:
    return [value.name for value in node.outputs]


def _warn_of_refusals(assignment: Assignment, tables: MxnetLists, *, guarded: bool) -> None:
    """Warn, as MXNet does, of target operators that stay as written because they cannot be low."""
    refused: dict[str, Reason] = {}
    for node, decision in assignment.decisions.items():
        no_form = decision.precision == "high" and tables.key_of(node) in tables.target
        if no_form and not is_kept(node, guarded=guarded):
            refused.setdefault(operator_name(node), decision.reason)
    for operator, reason in refused.items():
        logger.warning("%s is on the target list but stays as written: %s", operator, reason)


def _report_unlisted(program: Program, assignment: Assignment, tables: MxnetLists) -> None:
    decided = assignment.decisions.items()
    names = {operator_name(node) for node, decision in decided if decision.precision != "untouched"}
    if unlisted := sorted(names - tables.operators):
        program.notes.append(f"on none of MXNet's lists, so neutral: {', '.join(unlisted)}")
        logger.info("on none of MXNet's lists, so neutral: %s", ", ".join(unlisted))
