"""Regions: nodes that the user marked for low precision (`fp16_guard`) or to stay unchanged (`disable_amp`).

A node's metadata holds its regions, outermost first, joined by semicolons, so that files keep them.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol, TypeVar, overload

import onnx
import onnx_ir as ir

from amp_transpiler.errors import OptionError, visible
from amp_transpiler.graph.proto import proto_bodies, proto_graphs
from amp_transpiler.graph.user_patterns import Pattern, compile_pattern
from amp_transpiler.graph.walk import bodies

__all__ = [
    "DISABLE_AMP",
    "FP16_GUARD",
    "FUNCTION_KEY",
    "INCLUDE",
    "REGION_KEY",
    "current_region",
    "disable_amp",
    "drop_region",
    "enter",
    "enter_regions",
    "fp16_guard",
    "has_guard",
    "inside_region_of",
    "is_guarded",
    "is_kept",
    "mark_region",
    "outside_regions",
    "region_of",
]

FP16_GUARD: Literal["fp16_guard"] = "fp16_guard"
DISABLE_AMP: Literal["disable_amp"] = "disable_amp"
INCLUDE: Literal["include"] = "include"  # low by force, for one conversion: files do not keep it
KINDS = (FP16_GUARD, DISABLE_AMP)
REGION_KEY = "amp_transpiler.region"
FUNCTION_KEY = "amp_transpiler.function"  # metadata: the function of `nn.functional` that built the node

_F = TypeVar("_F", bound=Callable[..., Any])

_stack: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("amp_transpiler.regions", default=())


class _HasModel(Protocol):
    model: ir.Model


class _Region(contextlib.ContextDecorator):
    """One region: a context manager, or a decorator that enters it around every call."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tokens: list[contextvars.Token[tuple[str, ...]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_stack.set((*_stack.get(), self._kind)))

    def __exit__(self, *_: object) -> None:
        _stack.reset(self._tokens.pop())

    def __call__(self, func: _F) -> _F:
        _check_function(self._kind, func)
        return super().__call__(func)

    def _recreate_cm(self) -> _Region:
        return _Region(self._kind)


_RUN_LATER: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (inspect.iscoroutinefunction, "a coroutine function"),
    (inspect.isasyncgenfunction, "an asynchronous generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)


def _check_function(kind: str, function: Any) -> None:
    """Raise TypeError for a function whose code would run outside of a region around its call."""
    remedy = f"use `with amp_transpiler.{kind}():` inside"
    if not callable(function):
        raise TypeError(f"@{kind} decorates a function, got {function!r}: {remedy} the code that builds")
    call_method = type(function).__call__  # the code of a callable object
    for runs_later, kind_of_function in _RUN_LATER:
        if runs_later(function) or runs_later(call_method):
            raise TypeError(
                f"@{kind} ends when {function!r} returns, and the code of {kind_of_function} runs after that: "
                f"{remedy} it, around the code that builds"
            )


@overload
def fp16_guard() -> _Region: ...
@overload
def fp16_guard(function: _F) -> _F: ...
def fp16_guard(function: _F | None = None) -> _Region | _F:
    """Mark nodes that are built or loaded inside for low precision: where regions count, other nodes stay float32.

    Regions count under every policy and preset. With Paddle's policy, `decorate` heeds them at level O2 with its guard
    on, as Paddle does. A context manager (`with fp16_guard():`) and a decorator (`@fp16_guard` or `@fp16_guard()`).
    Gradients of nodes inside are inside too, so the optimizer may be outside, as with torch's autocast.

    Raises:
        TypeError: it decorates no function, or one whose code runs after the call: a coroutine or generator function.
    """
    return _Region(FP16_GUARD) if function is None else _Region(FP16_GUARD)(function)


@overload
def disable_amp() -> _Region: ...
@overload
def disable_amp(function: _F) -> _F: ...
def disable_amp(function: _F | None = None) -> _Region | _F:
    """Keep nodes that are built or loaded inside in their own precision; overrides any `fp16_guard`, outer or inner.

    A context manager (`with disable_amp():`) and a decorator (`@disable_amp` or `@disable_amp()`). Gradients of nodes
    inside are inside too.

    Raises:
        TypeError: it decorates no function, or one whose code runs after the call: a coroutine or generator function.
    """
    return _Region(DISABLE_AMP) if function is None else _Region(DISABLE_AMP)(function)


@contextlib.contextmanager
def inside_region_of(*nodes: ir.Node) -> Iterator[None]:
    """Put nodes that are built in this context into the regions that all of `nodes` share, besides the current ones.

    Args:
        nodes: nodes of any program; without nodes, nothing changes.
    """
    outer = _stack.get()
    shared = set(KINDS).intersection(*map(region_of, nodes)) if nodes else set()
    token = _stack.set((*outer, *(kind for kind in KINDS if kind in shared and kind not in outer)))
    try:
        yield
    finally:
        _stack.reset(token)


@contextlib.contextmanager
def outside_regions() -> Iterator[None]:
    """Keep nodes that are built in this context out of the current regions, for copies that have regions already."""
    token = _stack.set(())
    try:
        yield
    finally:
        _stack.reset(token)


def current_region() -> str:
    """Return the current regions in the form of a node's metadata; empty outside of all regions."""
    return ";".join(_stack.get())


def region_of(node: ir.Node) -> frozenset[str]:
    """Return the kinds of region that `node` is in, at any depth."""
    text = node.metadata_props.get(REGION_KEY)
    return frozenset(text.split(";")) if text else frozenset()


def is_guarded(node: ir.Node) -> bool:
    """Whether `node` is inside an `fp16_guard` that no `disable_amp` switches off."""
    region = region_of(node)
    return FP16_GUARD in region and DISABLE_AMP not in region


def is_kept(node: ir.Node, *, guarded: bool) -> bool:
    """Whether a region keeps `node` in its own precision.

    Args:
        node: the node.
        guarded: nodes outside of every `fp16_guard` are kept too.
    """
    region = region_of(node)
    return DISABLE_AMP in region or (guarded and FP16_GUARD not in region)


def has_guard(model: ir.Model) -> bool:
    """Whether any node of `model` is inside an `fp16_guard` region."""
    return any(FP16_GUARD in region_of(node) for node in _every_node(model))


def enter_regions(model: ir.Model) -> None:
    """Put all nodes of a model, in every scope, into the current regions, inside of those that they are in already."""
    inner = current_region()
    for node in _every_node(model) if inner else ():
        regions = node.metadata_props.get(REGION_KEY, "")
        if regions != inner and not regions.endswith(f";{inner}"):
            node.metadata_props[REGION_KEY] = f"{regions};{inner}" if regions else inner


def enter(node: ir.Node, outer: str) -> None:
    """Put a node and the regions that it is in into outer regions, which have the form of a node's metadata."""
    regions = node.metadata_props.get(REGION_KEY, "")
    if outer and regions != outer and not regions.startswith(f"{outer};"):
        node.metadata_props[REGION_KEY] = f"{outer};{regions}" if regions else outer


def _every_node(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def mark_region(program: _HasModel | ir.Model | onnx.ModelProto, kind: str, *, nodes: str) -> int:
    """Put the nodes whose name matches a pattern into a region, in place, and return their number.

    Every scope is searched: bodies of control flow and model-local functions too. The nodes inside the bodies of a
    matching node are marked, and counted, too.

    Args:
        program: the program, edited in place.
        kind: `fp16_guard` or `disable_amp`.
        nodes: a regular expression that matches anywhere in a node's name, or in an output's name if the node has none.

    Raises:
        OptionError: `kind` is no kind of region, `nodes` is no regular expression or matches no node.
    """
    if kind not in (*KINDS, INCLUDE):
        raise OptionError(f"unknown kind of region {kind!r}: expected {' or '.join(map(repr, KINDS))}")
    pattern = compile_pattern(nodes, "region")
    if isinstance(program, onnx.ModelProto):
        top = [*program.graph.node, *itertools.chain.from_iterable(f.node for f in program.functions)]
        marked = _mark_protos(top, pattern, kind, inside=False)
    else:
        model = program if isinstance(program, ir.Model) else program.model
        top_nodes = [*model.graph, *itertools.chain.from_iterable(model.functions.values())]
        marked = _mark_nodes(top_nodes, pattern, kind, inside=False)
    if not marked:
        raise OptionError(_nothing_matches(program, nodes))
    return marked


def drop_region(model: ir.Model, kind: str) -> None:
    """Take every node out of all regions of a kind, in place."""
    for node in model.graph.all_nodes():
        regions = node.metadata_props.get(REGION_KEY, "").split(";")
        if kind not in regions:
            continue
        if rest := [region for region in regions if region != kind]:
            node.metadata_props[REGION_KEY] = ";".join(rest)
        else:
            del node.metadata_props[REGION_KEY]


def _mark_nodes(nodes: Iterable[ir.Node], pattern: Pattern, kind: str, *, inside: bool) -> int:
    marked = 0
    for node in nodes:
        hit = inside or any(pattern.search(name) for name in _names_of(node))
        if hit:
            node.metadata_props[REGION_KEY] = _nested(node.metadata_props.get(REGION_KEY, ""), kind)
            marked += 1
        for _, body in bodies(node):
            marked += _mark_nodes(body, pattern, kind, inside=hit)
    return marked


def _mark_protos(nodes: Iterable[onnx.NodeProto], pattern: Pattern, kind: str, *, inside: bool) -> int:
    marked = 0
    for node in nodes:
        hit = inside or any(pattern.search(name) for name in _names_of(node))
        if hit:
            entry = next((e for e in node.metadata_props if e.key == REGION_KEY), None)
            if entry is None:
                entry = node.metadata_props.add(key=REGION_KEY)
            entry.value = _nested(entry.value, kind)
            marked += 1
        for body in proto_bodies(node):
            marked += _mark_protos(body.node, pattern, kind, inside=hit)
    return marked


def _nested(text: str, kind: str) -> str:
    outer = text.split(";") if text else []
    return text if outer and outer[-1] == kind else ";".join([*outer, kind])


def _names_of(node: ir.Node | onnx.NodeProto) -> list[str]:
    """Return the node's name, or the names of its outputs if it has none."""
    if node.name:
        return [node.name]
    outputs = node.output if isinstance(node, onnx.NodeProto) else (value.name for value in node.outputs)
    return [name for name in outputs if name]


def _nothing_matches(program: _HasModel | ir.Model | onnx.ModelProto, pattern: str) -> str:
    if isinstance(program, onnx.ModelProto):
        every: Iterable[ir.Node | onnx.NodeProto] = (
            node for graph in proto_graphs(program.graph) for node in graph.node
        )
    else:
        every = (program if isinstance(program, ir.Model) else program.model).graph.all_nodes()
    names = sorted({name for node in every for name in _names_of(node)})
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5) or names[:3]
    shown = ", ".join(f"'{visible(name, 60)}'" for name in near)
    hint = f"; nodes are named like {shown}" if near else "; the model has no nodes"
    return f"region pattern '{visible(pattern, 60)}' matches no node{hint}"
