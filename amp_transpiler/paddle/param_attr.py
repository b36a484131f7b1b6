"""`ParamAttr`: name, initial value and treatment of a parameter that a layer creates."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.initial_values import Initializer
from amp_transpiler.paddle.regularizer import WeightDecayRegularizer

__all__ = ["Attr", "ParamAttr", "WeightNormParamAttr"]


@dataclasses.dataclass(frozen=True, slots=True)
class ParamAttr:
    """Name, initial value and treatment of a parameter.

    Attributes:
        name: its name; layers that give the same name share the parameter. None for a name derived from the layer's.
        initializer: computes the initial value; the layer's default unless given.
        learning_rate: factor on the optimizer's learning rate.
        regularizer: weight decay of this parameter, instead of the optimizer's.
        trainable: whether an optimizer updates it.
        need_clip: whether its gradient is clipped.
    """

    name: str | None = None
    initializer: Initializer | None = None
    learning_rate: float = 1.0
    regularizer: WeightDecayRegularizer | None = None
    trainable: bool = True
    need_clip: bool = True

    @classmethod
    def parse(cls, attr: Attr) -> ParamAttr | None:
        """Return the `ParamAttr` that a layer's argument stands for; None for False, which leaves the parameter out.

        Args:
            attr: None or True for the defaults, False, a name, an initializer, a regularizer, or a `ParamAttr`.

        Raises:
            OptionError: it is something else.
        """
        if attr is False:
            return None
        if attr is None or attr is True:
            return cls()
        if isinstance(attr, cls):
            return attr
        if isinstance(attr, str):
            return cls(name=attr)
        if isinstance(attr, Initializer):
            return cls(initializer=attr)
        if isinstance(attr, WeightDecayRegularizer):
            return cls(regularizer=attr)
        raise OptionError(
            f"a parameter's attribute must be a ParamAttr, a name, an initializer, a regularizer, None or False, "
            f"got {attr!r}"
        )


@dataclasses.dataclass(frozen=True)
class WeightNormParamAttr(ParamAttr):
    """A weight of `static.nn` layers as a direction and a length, which are trained apart: `length * v / |v|`.

    The parameters are `NAME_v`, which starts as the weight would, and `NAME_g`, the norms of `NAME_v` at first.

    Attributes:
        dim: the axis whose slices have a length each; None for one length of all.
        do_model_average: Paddle's, no effect.
    """

    dim: int | None = None
    do_model_average: bool = False

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: WeightDecayRegularizer | None = None,
        trainable: bool = True,
        do_model_average: bool = False,
        need_clip: bool = True,
    ) -> None:
        ParamAttr.__init__(self, name, initializer, learning_rate, regularizer, trainable, need_clip)
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "do_model_average", do_model_average)


Attr: TypeAlias = "ParamAttr | str | Initializer | WeightDecayRegularizer | bool | None"


check_arguments(globals(), __all__)
