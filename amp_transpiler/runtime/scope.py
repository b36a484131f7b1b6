"""`Scope`: persistable values by name, kept on the device that the program runs on."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import types
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import onnxruntime

from amp_transpiler.errors import InputError
from amp_transpiler.runtime.places import to_host
from amp_transpiler.runtime.stacks import Stack, member_of, pack
from amp_transpiler.runtime.values import is_extension, to_ort

__all__ = ["Scope", "ScopeVariable", "global_scope", "scope_guard"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """A value that is part of a stack."""

    stack: Stack
    index: int


class _MatrixKey:
    """The key of a stack's matrix among the values. Compared by identity, which runs no code of Python."""


_NONE: Mapping[Stack, onnxruntime.OrtValue] = types.MappingProxyType({})


class Scope(MutableMapping[str, np.ndarray]):
    """The values that persist between runs, by name. Reading returns a copy as an array; writing copies the array.

    A compiled step may read and replace many values as one matrix. They keep their names here: reading one copies its
    rows, and writing one makes all of the matrix single values again, until the step runs next.

    Several values are replaced at once, by `replace` and `update`: an interrupt leaves all of the old ones or all of
    the new ones.
    """

    def __init__(self) -> None:
        # Values and the matrices of stacks are in one dictionary, so that one call into C replaces both.
        self._values: dict[str | _MatrixKey, onnxruntime.OrtValue | _Member] = {}
        self._places: dict[Stack, _MatrixKey] = {}

    def __repr__(self) -> str:
        return f"Scope({len(self)} values)"

    def __getitem__(self, name: str) -> np.ndarray:
        value = self._values[name]
        return self._read(value) if isinstance(value, _Member) else np.array(to_host(value))

    def __setitem__(self, name: str, array: Any) -> None:  # raises an InputError where it holds no numbers
        self.hold(name, to_ort(_numbers(name, array)))

    def __delitem__(self, name: str) -> None:
        self._swap(self._apart([name]))
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._values if isinstance(name, str))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Set several values, all at once: nothing is set if one of them holds no numbers."""
        self.replace({name: to_ort(_numbers(name, array)) for name, array in dict(other, **named).items()})

    def held(self, name: str) -> onnxruntime.OrtValue:
        """Return the value in ONNX Runtime's form, without a copy unless it is part of a stack."""
        value = self._values[name]
        return to_ort(self._read(value)) if isinstance(value, _Member) else value

    def hold(self, name: str, value: onnxruntime.OrtValue) -> None:
        """Store a value of ONNX Runtime without a copy; nothing else may write to it afterwards."""
        if isinstance(self._values.get(name), _Member):
            self.replace({name: value})
        else:
            self._values[name] = value

    def replace(
        self, values: Mapping[str, onnxruntime.OrtValue], stacks: Mapping[Stack, onnxruntime.OrtValue] = _NONE
    ) -> None:
        """Store values, and matrices of stacks in place of their members, without copies and all at once.

        Args:
            values: the values by name; none is a member of one of the stacks.
            stacks: the matrix of each stack.
        """
        fresh = [stack for stack in stacks if not self.has_stack(stack)]
        new = self._apart([*values, *(name for stack in fresh for name in stack.members)])
        for stack in fresh:
            new.update({name: _Member(stack, index) for index, name in enumerate(stack.members)})
        new.update({self._places.setdefault(stack, _MatrixKey()): matrix for stack, matrix in stacks.items()})
        new.update(values)
        self._swap(new)

    def _swap(self, new: Mapping[str | _MatrixKey, onnxruntime.OrtValue | _Member]) -> None:
        """Replace values, all or none of them, whatever signal comes."""
        if not new:
            return
        old = [self._values.get(name) for name in new]  # which lets no code run when they are freed in between
        self._values.update(new)  # Python handles signals between its own instructions, never within this one
        del old
        for stack in [stack for stack in self._places if not self.has_stack(stack)]:
            self._values.pop(self._places.pop(stack), None)

    def shared_copy(self) -> Scope:
        """Return a scope with the same values, which are not copied: what is replaced in one stays in the other."""
        other = Scope()
        other._values, other._places = dict(self._values), dict(self._places)
        return other

    # Stacks.

    def has_stack(self, stack: Stack) -> bool:
        """Whether the members of a stack are one matrix."""
        held = self._values.get(stack.members[0])
        return isinstance(held, _Member) and held.stack == stack

    def pack(self, stack: Stack) -> onnxruntime.OrtValue:
        """Return the matrix of a stack, made of its members if they are single values."""
        if not self.has_stack(stack):
            self.hold_stack(stack, pack(stack, (to_host(self.held(name)) for name in stack.members)))
        return self._matrix(stack)

    def hold_stack(self, stack: Stack, matrix: onnxruntime.OrtValue) -> None:
        """Store the matrix of a stack without a copy, in place of its members."""
        self.replace({}, {stack: matrix})

    def _matrix(self, stack: Stack) -> onnxruntime.OrtValue:
        matrix = self._values[self._places[stack]]
        assert not isinstance(matrix, _Member)
        return matrix

    def _read(self, value: _Member) -> np.ndarray:
        return member_of(value.stack, self._matrix(value.stack), value.index)

    def _apart(self, names: Iterable[str]) -> dict[str | _MatrixKey, onnxruntime.OrtValue | _Member]:
        """Return, as single values, the members of the stacks that any of these names belongs to."""
        members = [value for name in names if isinstance(value := self._values.get(name), _Member)]
        return {
            name: to_ort(member_of(stack, self._matrix(stack), index))
            for stack in dict.fromkeys(member.stack for member in members)
            for index, name in enumerate(stack.members)
        }

    def find_var(self, name: str) -> ScopeVariable | None:
        """Return a handle on the value with this name, or None."""
        return ScopeVariable(self, name) if name in self._values else None

    def var(self, name: str) -> ScopeVariable:
        """Return a handle on a value, which need not exist yet."""
        return ScopeVariable(self, name)


def _numbers(name: str, content: Any) -> np.ndarray:
    """Return a copy of what a value is set to, as an array.

    Raises:
        InputError: it is no array of numbers that ONNX Runtime has a type for.
    """
    try:
        array = np.array(content, order="C")
    except (TypeError, ValueError) as error:  # rows of several lengths; a variable
        raise InputError(f"'{name}' is set to {content!r:.80}, which is no array of numbers: {error}") from error
    if array.dtype.kind not in "fiub" and not is_extension(array.dtype):
        raise InputError(
            f"'{name}' is set to {content!r:.80}, {array.dtype.name} values: expected real numbers or bool"
        )
    return array


class ScopeVariable:
    """A value of a scope, as Paddle hands it out: `scope.find_var(name).get_tensor()`."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self.name = name

    def get_tensor(self) -> ScopeVariable:
        """Return itself, which numpy reads as an array."""
        if self.name not in self._scope:
            raise InputError(f"the scope has no value for '{self.name}': run the startup program, or set it")
        return self

    def set(self, array: Any, place: object = None) -> None:  # noqa: ARG002  # Paddle's: values go where they are used
        """Replace the value."""
        self._scope[self.name] = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._scope[self.name], dtype=dtype)

    def _dtype(self) -> str:
        """Return the element type as numpy names it, as Paddle's own tests ask for it."""
        return str(self._scope[self.name].dtype.name)

    def shape(self) -> list[int]:
        """The value's dimensions."""
        return list(self._scope[self.name].shape)


_process_wide = Scope()
_current: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("amp_transpiler.scope", default=None)


def global_scope() -> Scope:
    """Return the current scope: that of the innermost `scope_guard`, or one for the whole process."""
    scope = _current.get()
    return _process_wide if scope is None else scope


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make `scope` the current scope in this context."""
    token = _current.set(scope)
    try:
        yield
    finally:
        _current.reset(token)
