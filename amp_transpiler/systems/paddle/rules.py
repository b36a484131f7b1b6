"""Paddle's rules: the lists that hold at a level, promotion, and the gray rule."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import Rules, State
from amp_transpiler.systems.paddle.colours import Colour, colour
from amp_transpiler.systems.paddle.levels import Level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["PaddleRules"]


@dataclasses.dataclass(frozen=True, eq=False)
class PaddleRules(Rules):
    """The rules of Paddle's static AMP.

    Args:
        level: which lists hold.
        lists: white, black and gray operators.
        use_promote: Paddle's promotion: an operator that the lists leave open stays float32 if one of its inputs is
            float32, and runs in lower precision otherwise. Constants do not count at levels auto and O2.
    """

    level: Level
    lists: AutoMixedPrecisionLists
    use_promote: bool = dataclasses.field(default=False, kw_only=True)

    def can_lower(self, node: ir.Node) -> bool:
        """Whether the lists at the level, or promotion, ever make the operator low."""
        listed_colour = colour(node, self.lists, self.level).colour
        if listed_colour is Colour.UNLISTED:
            return self.use_promote or self.level.is_pure
        return listed_colour in (Colour.WHITE, Colour.GRAY)

    def raises(self, node: ir.Node) -> bool:
        """Whether the black list holds for the operator, which in Paddle casts up what is in 16 bits already."""
        if self.level.lists not in ("all", "lifted"):
            return False
        return colour(node, self.lists, self.level).colour in (Colour.BLACK, Colour.UNSUPPORTED)

    def separates_bias(self, node: ir.Node) -> bool:
        """Whether promotion keeps the addition of a bias in float32, after a convolution that is low."""
        promotes = self.use_promote and not self.level.is_pure
        return promotes and colour(node, self.lists, self.level).colour is Colour.WHITE

    def decide(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        """Decide by the lists at the level, then by promotion or the gray rule."""
        listed_colour, reason = colour(node, self.lists, self.level)
        if listed_colour in (Colour.BLACK, Colour.UNSUPPORTED):
            return Decision("high", reason)
        if listed_colour is Colour.WHITE:
            return Decision("low", reason, form)
        if self.use_promote:
            return self._promoted(node, form, state)
        if self.level.is_pure:
            return Decision("low", Reason("pure", {"level": self.level.name}), form)
        if listed_colour is Colour.GRAY and self.level.lists == "all":
            return _gray(node, form, state)
        return Decision("high", reason)

    def _promoted(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        """Decide by Paddle's promotion: one float32 input keeps the node float32. Parameters count except at O2."""
        for index in sorted(form.inputs):
            value = node.inputs[index]
            if value is None or (self.level.is_pure and state.is_parameter(value)):
                continue
            if state.leaning(value) != "low":
                return Decision("high", Reason("promoted", {"input": str(value.name)}))
        return Decision("low", Reason("promotion-low"), form)


def _gray(node: ir.Node, form: LowForm, state: State) -> Decision:
    """Decide by Paddle's documented gray rule: a black producer wins, else a white one, else the node stays."""
    # Since 2.5 Paddle's code lets the last input win, by the way its loop is written; its documents do not say so.
    producers = [value for value in node.inputs if is_float32(value)]
    leanings = {state.leaning(value): value.name for value in producers}
    if "high" in leanings:
        return Decision("high", Reason("gray-high", {"input": str(leanings["high"])}))
    if "low" in leanings:
        return Decision("low", Reason("gray-low", {"input": str(leanings["low"])}), form)
    return Decision("high", Reason("gray-neutral"), neutral=True)
