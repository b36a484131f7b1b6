"""The members that a program has because Paddle's `static.Program` has them. What they do lies in `paddle/`.

A program is of one class, so that every program of `amp.load` or `transpile` has them. `hooks` says who does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from amp_transpiler.errors import OptionError
from amp_transpiler.program.hooks import scope_values, static_program

if TYPE_CHECKING:
    from amp_transpiler.program.blocks import Block, Operator

__all__ = ["Mode", "StaticProgram"]

Mode: TypeAlias = Literal["all", "param", "opt"]


class StaticProgram:
    """Blocks of operators and the state dictionary of a program, as Paddle's `static.Program` has them."""

    def global_block(self) -> Self:
        """Return the program itself: an ONNX program's main graph is its global block."""
        return self

    current_block = global_block

    @property
    def blocks(self) -> list[Block]:
        """The main graph and the bodies of its control flow, as Paddle's operators: to look at, not to edit."""
        return static_program().blocks_of(self)

    @property
    def num_blocks(self) -> int:
        """The number of blocks: 1 without control flow."""
        return len(self.blocks)

    def block(self, index: int) -> Block:
        """Return a block; 0 is the main graph."""
        return self.blocks[index]

    @property
    def ops(self) -> Sequence[Operator]:
        """The main graph as Paddle's operators: `program.global_block().ops`."""
        return self.blocks[0].ops

    def state_dict(self, mode: Mode = "all", scope: Any = None) -> dict[str, np.ndarray]:
        """Return the persistable values by name, as `paddle.save` writes them.

        Args:
            mode: "all"; "param" for parameters and statistics; "opt" for the optimizer's state.
            scope: where they live; the global scope unless given.

        Raises:
            InputError: the scope lacks a value.
            OptionError: the mode is another word.
        """
        if mode not in ("all", "param", "opt"):
            raise OptionError(f"state_dict: mode must be 'all', 'param' or 'opt', got {mode!r}")
        return scope_values().program_state(self, mode, scope, None)

    def set_state_dict(self, state_dict: Mapping[str, Any], scope: Any = None) -> None:
        """Set those persistable values that a dictionary has, as `static.set_program_state` does.

        Args:
            state_dict: name -> array, such as `paddle.load` returns.
            scope: where they go; the global scope unless given.

        Raises:
            InputError: a value has another shape or kind of number, or the startup program has not run in the scope.
        """
        scope_values().set_program_state(self, state_dict, scope)
