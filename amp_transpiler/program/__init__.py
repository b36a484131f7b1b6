"""Programs: a model with its state, its training algorithm and what is fetched of it."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.program.program import Program as Program, Variable as Variable
else:
    __getattr__, __dir__ = lazy_names(__name__)
