"""Offers losses as layers."""

from __future__ import annotations

from amp_transpiler.paddle.nn.layer.function_layer import FunctionLayer

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "RNNTLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]


class BCELoss(FunctionLayer):
    """Binary cross entropy of probabilities: `functional.binary_cross_entropy`."""

    function = "binary_cross_entropy"
    tensors = 2


class BCEWithLogitsLoss(FunctionLayer):
    """Binary cross entropy of scores: `functional.binary_cross_entropy_with_logits`."""

    function = "binary_cross_entropy_with_logits"
    tensors = 2


class CosineEmbeddingLoss(FunctionLayer):
    """Takes 1 less the cosine of like pairs, of others what is above a margin: `functional.cosine_embedding_loss`."""

    function = "cosine_embedding_loss"
    tensors = 3


class CTCLoss(FunctionLayer):
    """Connectionist temporal classification: `functional.ctc_loss`.

    Called with log probabilities, labels and the lengths of both.
    """

    function = "ctc_loss"
    tensors = 4


class CrossEntropyLoss(FunctionLayer):
    """The negative logarithm of the probability of the labels: `functional.cross_entropy`."""

    function = "cross_entropy"
    tensors = 2


class GaussianNLLLoss(FunctionLayer):
    """The negative log likelihood of a normal distribution: `functional.gaussian_nll_loss`.

    Called with means, labels and variances.
    """

    function = "gaussian_nll_loss"
    tensors = 3


class HingeEmbeddingLoss(FunctionLayer):
    """Takes distances of like pairs, and what those of others lack of a margin: `functional.hinge_embedding_loss`."""

    function = "hinge_embedding_loss"
    tensors = 2


class KLDivLoss(FunctionLayer):
    """The Kullback-Leibler divergence: `functional.kl_div`."""

    function = "kl_div"
    tensors = 2


class L1Loss(FunctionLayer):
    """The absolute difference: `functional.l1_loss`."""

    function = "l1_loss"
    tensors = 2


class MarginRankingLoss(FunctionLayer):
    """Takes by how much the wrong one of two leads; called with both and labels: `functional.margin_ranking_loss`."""

    function = "margin_ranking_loss"
    tensors = 3


class MSELoss(FunctionLayer):
    """The squared difference: `functional.mse_loss`."""

    function = "mse_loss"
    tensors = 2


class MultiLabelMarginLoss(FunctionLayer):
    """Margins between the classes that hold and the others: `functional.multi_label_margin_loss`."""

    function = "multi_label_margin_loss"
    tensors = 2


class MultiLabelSoftMarginLoss(FunctionLayer):
    """The mean of each class's binary cross entropy: `functional.multi_label_soft_margin_loss`."""

    function = "multi_label_soft_margin_loss"
    tensors = 2


class MultiMarginLoss(FunctionLayer):
    """Takes by how much other classes come near the label's: `functional.multi_margin_loss`."""

    function = "multi_margin_loss"
    tensors = 2


class NLLLoss(FunctionLayer):
    """Minus the value at each label: `functional.nll_loss`."""

    function = "nll_loss"
    tensors = 2


class PoissonNLLLoss(FunctionLayer):
    """The negative log likelihood of Poisson distributions: `functional.poisson_nll_loss`."""

    function = "poisson_nll_loss"
    tensors = 2


class RNNTLoss(FunctionLayer):
    """The loss of recurrent transducers; called with scores, labels and both lengths: `functional.rnnt_loss`."""

    function = "rnnt_loss"
    tensors = 4


class SmoothL1Loss(FunctionLayer):
    """Squared near 0, absolute beyond `delta`: `functional.smooth_l1_loss`."""

    function = "smooth_l1_loss"
    tensors = 2


class SoftMarginLoss(FunctionLayer):
    """`log(1 + exp(-label * input))`: `functional.soft_margin_loss`."""

    function = "soft_margin_loss"
    tensors = 2


class TripletMarginLoss(FunctionLayer):
    """Takes by how much the positive is not a margin nearer than the negative: `functional.triplet_margin_loss`."""

    function = "triplet_margin_loss"
    tensors = 3


class TripletMarginWithDistanceLoss(FunctionLayer):
    """Computes a triplet loss with the user's distance: `functional.triplet_margin_with_distance_loss`."""

    function = "triplet_margin_with_distance_loss"
    tensors = 3
