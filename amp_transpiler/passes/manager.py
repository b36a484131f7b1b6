"""A manager that runs passes, and types and verifies the model after each one that changed it.

The base classes are those of `onnx_ir.passes`. Its own manager is not used: it checks unmodified models too, which
would cost a walk for every pass that has nothing to do, and it wraps errors in `PassError`, which would hide from a
user that it is the model or an option that is wrong.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
from collections.abc import Callable, Iterable, Set as AbstractSet
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from amp_transpiler.errors import VerificationError
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.schema import type_string

__all__ = ["Pass", "PassFor", "PassManager", "PassResult", "run_pass"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class PassResult(ir.passes.PassResult):
    """The result of a pass.

    Attributes:
        model: the model, edited in place.
        modified: whether the model would be written to other bytes now. It is exact: only modified models are verified.
        count: how many nodes or values were edited; each pass says which it counts.
        notes: sentences for the report.
    """

    count: int = 0
    notes: tuple[str, ...] = ()


Result = TypeVar("Result", bound=PassResult)


class Pass(ir.passes.InPlacePass, Generic[Result]):
    """An in-place edit of a model.

    A pass decides nothing: decisions are its arguments. `requires` checks what it relies on, `ensures` what it
    promises. Errors reach the caller as they are.
    """

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> Result:
        """Edit the model under the contract; it is neither typed nor verified afterwards (see `run_pass`)."""
        model = model_or_result.model if isinstance(model_or_result, ir.passes.PassResult) else model_or_result
        self.requires(model)
        result = self.call(model)
        self.ensures(model)
        return result

    @abc.abstractmethod
    def call(self, model: ir.Model) -> Result:
        """Edit `model` in place."""

    @property
    def name(self) -> str:
        """The name of the pass in errors and logs."""
        return type(self).__name__


@dataclasses.dataclass(frozen=True, slots=True)
class PassFor:
    """A pass that edits only around nodes of some operators: `PassManager` leaves it out for a model without any.

    Attributes:
        operators: their names, of any domain.
        make: returns the pass. Where it takes the class from a package, as `passes.FillSums`, the pass's module is
            imported only then.
    """

    operators: AbstractSet[str]
    make: Callable[[], Pass[Any]]


def run_pass(pass_: Pass[Result], model: ir.Model) -> Result:
    """Run one pass on a typed model; if it changed the model, type the model again and verify it.

    Raises:
        VerificationError: the pass left the model ill typed; the message names it.
    """
    result = pass_(model)
    if result.modified:
        verify(model, pass_.name, _retype(model, pass_.name))
    logger.debug("%s: %s", pass_.name, f"{result.count} edits" if result.modified else "nothing to do")
    return result


def _retype(model: ir.Model, after: str) -> list[ir.Node] | None:
    """Type the model again, as `propagate_types` does. Outputs must keep the types that the pass declared."""
    declared = [(value, type_string(value.type)) for value in model.graph.outputs]
    examples = propagate_types(model)
    for value, text in declared:
        computed = type_string(value.type)
        if text is not None and computed != text:
            raise VerificationError(
                f"after {after}: output '{value.name}' is declared {text}, but {computed} is computed"
            )
    return examples


class PassManager:
    """A list of passes to run in order, a `PassFor` only on a model with one of its operators.

    Args:
        passes: the passes.
        typed: the models are typed and valid. Set it to False for passes over a model as it was loaded: its types may
            be wrong, and that is no fault of a pass.
    """

    def __init__(self, passes: Iterable[Pass[Any] | PassFor], *, typed: bool = True) -> None:
        self.passes = tuple(passes)
        self._typed = typed

    def __call__(self, model: ir.Model) -> PassResult:
        """Run the passes on `model`, in place.

        Returns:
            Whether any pass modified the model, all their edits and all their notes.

        Raises:
            VerificationError: a pass left the model ill typed; the message names it.
        """
        total = PassResult(model, modified=False)
        present: set[str] | None = None  # one walk for all passes up to the next edit
        for entry in self.passes:
            if isinstance(entry, PassFor):
                present = {node.op_type for node in all_nodes(model)} if present is None else present
                if present.isdisjoint(entry.operators):
                    continue
            pass_ = entry.make() if isinstance(entry, PassFor) else entry
            result = run_pass(pass_, model) if self._typed else pass_(model)
            present = None if result.modified else present
            total.modified |= result.modified
            total.count += result.count
            total.notes += result.notes
        return total
