"""Offers losses for very many classes, which have parameters, as layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, wrap
from amp_transpiler.paddle.initial_values import Uniform
from amp_transpiler.paddle.nn.functional.common import linear
from amp_transpiler.paddle.nn.functional.many_classes import adaptive_log_softmax_with_loss, hsigmoid_loss
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.paddle.tensor.search import argmax
from amp_transpiler.program.program import Variable

__all__ = ["AdaptiveLogSoftmaxWithLoss", "HSigmoidLoss"]


class HSigmoidLoss(Layer):
    """The loss of a tree of binary decisions over the classes: `functional.hsigmoid_loss`.

    Args:
        feature_size: features of the input.
        num_classes: how many classes there are, at least 2; with a tree of the user's, how many decisions.
        weight_attr: of the decisions' vectors `.w_0`, [num_classes - 1, features]; uniform initial values.
        bias_attr: of their biases `.b_0`, [num_classes - 1, 1]; False for none.
        is_custom: whether calls give tables of the decisions and outcomes on each sample's way.
        is_sparse: no effect: gradients are dense.
        name: Paddle's, no effect.

    Raises:
        OptionError: there are fewer than two classes.
    """

    def __init__(
        self,
        feature_size: int,
        num_classes: int,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        is_custom: bool = False,
        is_sparse: bool = False,
        name: str | None = None,
    ) -> None:
        del is_sparse, name
        super().__init__()
        if num_classes < 2:
            raise OptionError(f"HSigmoidLoss: expected 2 classes or more, got {num_classes}")
        self._classes, self._custom = num_classes, is_custom
        decisions = num_classes if is_custom else num_classes - 1
        bound = 1.0 / math.sqrt(feature_size)
        self.weight = self._weight([decisions, feature_size], weight_attr, Uniform(-bound, bound))
        self.bias = self.create_parameter([decisions, 1], bias_attr, is_bias=True)

    def forward(
        self,
        input: Variable,  # noqa: A002  # Paddle's
        label: Variable,
        path_table: Variable | None = None,
        path_code: Variable | None = None,
    ) -> Variable:
        """Return the loss of each sample, [batch, 1].

        Raises:
            OptionError: a tree of the user's has no tables.
        """
        if self._custom and (path_table is None or path_code is None):
            raise OptionError("HSigmoidLoss: is_custom=True needs path_table and path_code in each call")
        return hsigmoid_loss(input, label, self._classes, self.weight, self.bias, path_table, path_code)


class AdaptiveLogSoftmaxWithLoss(Layer):
    """Puts classes in clusters by their frequency, rare ones with smaller vectors: an efficient softmax.

    Args:
        in_features: features of the input.
        n_classes: how many classes there are.
        cutoffs: the first class of each cluster, ascending.
        weight_attr: of all weights: `.w_0` of the head, [features, cutoffs[0] + clusters], then two of each cluster.
        bias_attr: of the head's bias; used with `head_bias`.
        div_value: by what the size of the vectors is divided from one cluster to the next.
        head_bias: whether the head has a bias.
        name: Paddle's, no effect.

    Raises:
        OptionError: the cutoffs do not ascend from 1 to below the number of classes.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        div_value: float = 4.0,
        head_bias: bool = False,
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        ends = [*cutoffs, n_classes]
        if not cutoffs or cutoffs[0] < 1 or any(a >= b for a, b in itertools.pairwise(ends)):
            raise OptionError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs must ascend from 1 to below {n_classes}, got {list(cutoffs)}"
            )
        self.cutoffs = ends
        self.head_weight = self._weight([in_features, ends[0] + len(cutoffs)], weight_attr)
        has_bias = head_bias and bias_attr is not False
        self.head_bias = self.create_parameter([ends[0] + len(cutoffs)], bias_attr, is_bias=True) if has_bias else None
        self.tail_weights: list[list[Variable]] = []
        for number, (first, last) in enumerate(itertools.pairwise(ends)):
            inner = max(1, int(in_features // div_value ** (number + 1)))
            pair = [self._weight(shape, weight_attr) for shape in ([in_features, inner], [inner, last - first])]
            for place, weight in enumerate(pair):
                setattr(self, f"tail_{number}_{place}", weight)
            self.tail_weights.append(pair)

    def forward(self, input: Variable, label: Variable) -> tuple[Variable, Variable]:  # noqa: A002  # Paddle's
        """Return the logarithm of the probability of each label, and minus its mean."""
        return adaptive_log_softmax_with_loss(
            input, label, self.head_weight, self.tail_weights, self.cutoffs, self.head_bias
        )

    def log_prob(self, input: Variable) -> Variable:  # noqa: A002  # Paddle's
        """Return the logarithms of the probabilities of all classes, [batch, classes]."""
        b, first = builder_of(input), self.cutoffs[0]
        head = b.op("LogSoftmax", [linear(input, self.head_weight, self.head_bias).value], {"axis": 1})
        parts = [b.slice(head, [0], [first], [1])]
        for number, (inner, outer) in enumerate(self.tail_weights):
            scores = b.op("LogSoftmax", [linear(linear(input, inner), outer).value], {"axis": 1})
            parts.append(b.add(b.slice(head, [first + number], [first + number + 1], [1]), scores))
        return wrap(input, b.concat(parts, 1))

    def predict(self, input: Variable) -> Variable:  # noqa: A002  # Paddle's
        """Return the most probable class of each sample, [batch]."""
        return argmax(self.log_prob(input), 1)


check_arguments(globals(), __all__)
