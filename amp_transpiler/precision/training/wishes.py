"""Checks the user's wishes about a training step: whether they make sense, and whether the program can meet them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.training_step import TrainingStep

__all__ = ["NO_STATE", "UNSCALED", "TrainingWishes"]

NO_STATE = (
    "the model computes gradients, but no output is known to replace an input: if it is a training step, name its "
    "states with --state IN=OUT, or their updates are rounded"
)

UNSCALED = (
    "gradients are computed in float16, where small ones become zero: convert with --loss-scaling, or to bfloat16"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWishes:
    """The options that only a training step has.

    Attributes:
        state: input -> output that replaces it.
        master_weights: True: float32 master weights are required; False: low parameters get none; None: low parameters
            get some, and everything else is its own.
        loss_scaling: scale the loss dynamically.
    """

    state: Mapping[str, str] = dataclasses.field(default_factory=dict)
    master_weights: bool | None = None
    loss_scaling: bool = False

    def check(self, low: str, *, copies: bool) -> None:
        """Refuse wishes that have no meaning whatever the program is.

        Args:
            low: the low format's name.
            copies: the request changes nothing.

        Raises:
            OptionError: one has none.
        """
        if copies and (self.state or self.master_weights is not None or self.loss_scaling):
            raise OptionError(
                "state, master weights and loss scaling have no effect where nothing is changed: drop them, or choose "
                "another level or preset"
            )
        if self.loss_scaling and low != "float16":
            raise OptionError(
                f"loss scaling is for float16: {low} has float32's range, and its gradients do not underflow; drop "
                "--loss-scaling, or convert with --dtype float16"
            )

    def warnings(self, step: TrainingStep | None, low: str) -> Iterator[str]:
        """Yield what the user should know about a prepared program.

        Raises:
            OptionError: master weights are required, and there is no parameter to be one of.
        """
        parameters = () if step is None else step.parameters
        if self.master_weights and not parameters:
            raise OptionError(
                "--master-weights: no trained parameter was found, that is an input that the forward pass reads as a "
                "weight and an output that is it plus a function of its gradient; name the pairs with --state IN=OUT"
            )
        if self.loss_scaling and (step is None or not step.gradients):
            yield "--loss-scaling: no gradients were found, so there is nothing to scale"
        elif low == "float16" and step is not None and step.gradients and not self.loss_scaling and not step.loss_scale:
            yield UNSCALED
