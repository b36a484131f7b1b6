"""The options that name inputs, values or operators of the model, checked against it."""

from __future__ import annotations

import difflib
import itertools
import pathlib
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from amp_transpiler.cli.options import Options
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.loading import load
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.vocabulary import known_operator, unknown_operators
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["amp_lists", "kept_io_types"]


def kept_io_types(model: pathlib.Path, options: Options) -> bool | frozenset[str]:
    """Return `keep_io_types` of `transpile`: True, False, or the names of this model that stay float32.

    Raises:
        OptionError: `--io-types` names no float32 input or output.
    """
    if isinstance(options.io_types, bool):
        return options.io_types
    graph = load(model).model.graph
    values = {str(value.name): value for value in (*graph.inputs, *graph.outputs)}
    for name in sorted(options.io_types):
        if name not in values:
            raise OptionError(
                f"--io-types {name}=low: {model} has no input or output {name!r}{_did_you_mean(name, values)}; "
                f"it has {', '.join(sorted(values))}"
            )
        if values[name].dtype != ir.DataType.FLOAT:
            raise OptionError(
                f"--io-types {name}=low: {name!r} is {values[name].dtype}; only float32 can become {options.low_dtype}"
            )
    return frozenset(values) - options.io_types


def amp_lists(model: pathlib.Path, options: Options) -> AutoMixedPrecisionLists | None:
    """Return the lists that `--white`, `--black` and `--black-var` describe; None without any of them.

    Raises:
        OptionError: a name is no operator of ONNX, no alias, and no operator or value of this model.
    """
    if not (options.white or options.black or options.black_var):
        return None
    contents = load(model).model
    for option, names in (("--white", options.white), ("--black", options.black)):
        _check_operators(option, names, contents, model)
    _check_values(options.black_var, contents, model)
    lists = AutoMixedPrecisionLists(
        custom_white_list=set(filter(known_operator, options.white)),
        custom_black_list=set(filter(known_operator, options.black)),
        custom_black_varnames=set(options.black_var),
        dtype=options.low_dtype,
    )
    _add_custom_operators(lists, options)
    return lists


def _add_custom_operators(lists: AutoMixedPrecisionLists, options: Options) -> None:
    """List operators that only this model knows; the constructor would warn about them as misspelled."""
    white = frozenset(name for name in options.white if not known_operator(name))
    black = frozenset(name for name in options.black if not known_operator(name))
    lists.custom_white_list |= white
    lists.white_list |= white
    lists.custom_black_list |= black
    lists.black_list |= black
    lists.unsupported_list |= black


def _check_operators(option: str, names: Sequence[str], model: ir.Model, path: pathlib.Path) -> None:
    nodes = itertools.chain(model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))
    operators = {f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes}
    for name, near in unknown_operators(names, operators):
        hint = f"; did you mean {' or '.join(near)}?" if near else "; names are ONNX's, for example Conv"
        raise OptionError(f"{option} {name}: no operator of ONNX, no known alias, and not in {path}{hint}")


def _check_values(names: Sequence[str], model: ir.Model, path: pathlib.Path) -> None:
    """Raise OptionError for a value that the model does not have: naming it would silently do nothing."""
    if not names or model.functions:
        return  # A function's values get their names when it is inlined.
    known: set[str] = set()
    for scope in scopes(model):
        known.update(str(value.name) for value in scope.graph.inputs)
        known.update(scope.graph.initializers)
        known.update(str(value.name) for node in scope.graph for value in node.outputs)
    for name in names:
        if name not in known:
            raise OptionError(f"--black-var {name}: {path} has no value of that name{_did_you_mean(name, known)}")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""
