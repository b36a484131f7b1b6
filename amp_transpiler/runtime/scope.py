"""`Scope`: persistable values by name, kept on the device that the program runs on."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, MutableMapping
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


class Scope(MutableMapping[str, np.ndarray]):
    """The values that persist between runs, by name. Reading returns a copy as an array; writing copies the array.

    A compiled step may read and replace many values as one matrix. They keep their names here: reading one copies its
    rows, and writing one makes all of the matrix single values again, until the step runs next.
    """

    def __init__(self) -> None:
        self._values: dict[str, onnxruntime.OrtValue | _Member] = {}
        self._stacks: dict[Stack, onnxruntime.OrtValue] = {}

    def __repr__(self) -> str:
        return f"Scope({len(self._values)} values)"

    def __getitem__(self, name: str) -> np.ndarray:
        value = self._values[name]
        return self._read(value) if isinstance(value, _Member) else np.array(to_host(value))

    def __setitem__(self, name: str, array: Any) -> None:  # raises an InputError where it holds no numbers
        self.hold(name, to_ort(_numbers(name, array)))

    def __delitem__(self, name: str) -> None:
        self._take_apart(name)
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def held(self, name: str) -> onnxruntime.OrtValue:
        """Return the value in ONNX Runtime's form, without a copy unless it is part of a stack."""
        value = self._values[name]
        return to_ort(self._read(value)) if isinstance(value, _Member) else value

    def hold(self, name: str, value: onnxruntime.OrtValue) -> None:
        """Store a value of ONNX Runtime without a copy; nothing else may write to it afterwards."""
        self._take_apart(name)
        self._values[name] = value

    # Stacks.

    def has_stack(self, stack: Stack) -> bool:
        """Whether the members of a stack are one matrix."""
        return stack in self._stacks

    def pack(self, stack: Stack) -> onnxruntime.OrtValue:
        """Return the matrix of a stack, made of its members if they are single values."""
        if stack not in self._stacks:
            matrix = pack(stack, (to_host(self.held(name)) for name in stack.members))
            self.hold_stack(stack, matrix)
        return self._stacks[stack]

    def hold_stack(self, stack: Stack, matrix: onnxruntime.OrtValue) -> None:
        """Store the matrix of a stack without a copy, in place of its members."""
        if stack not in self._stacks:
            for index, name in enumerate(stack.members):
                self._take_apart(name)
                self._values[name] = _Member(stack, index)
        self._stacks[stack] = matrix

    def _read(self, value: _Member) -> np.ndarray:
        return member_of(value.stack, self._stacks[value.stack], value.index)

    def _take_apart(self, name: str) -> None:
        """Make the members of the stack that a value belongs to, if any, single values."""
        value = self._values.get(name)
        if not isinstance(value, _Member):
            return
        matrix = self._stacks.pop(value.stack)
        for index, member in enumerate(value.stack.members):
            self._values[member] = to_ort(member_of(value.stack, matrix, index))

    def find_var(self, name: str) -> ScopeVariable | None:
        """Return a handle on the value with this name, or None."""
        return ScopeVariable(self, name) if name in self._values else None

    def var(self, name: str) -> ScopeVariable:
        """Return a handle on a value, which need not exist yet."""
        return ScopeVariable(self, name)


def _numbers(name: str, given: Any) -> np.ndarray:
    """Return a copy of what a value is set to, as an array.

    Raises:
        InputError: it is no array of numbers that ONNX Runtime has a type for.
    """
    try:
        array = np.array(given, order="C")
    except (TypeError, ValueError) as error:  # rows of several lengths; a variable
        raise InputError(f"'{name}' is set to {given!r:.80}, which is no array of numbers: {error}") from error
    if array.dtype.kind not in "fiub" and not is_extension(array.dtype):
        raise InputError(f"'{name}' is set to {given!r:.80}, {array.dtype.name} values: expected real numbers or bool")
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
    found = _current.get()
    return _process_wide if found is None else found


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make `scope` the current scope in this context."""
    token = _current.set(scope)
    try:
        yield
    finally:
        _current.reset(token)
