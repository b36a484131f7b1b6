"""Layers as objects against torch: values, and gradients of inputs and parameters, all of them in one program."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from amp_transpiler.paddle import nn
from amp_transpiler.paddle.framework.backward import gradients
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
tn = torch.nn

IMAGE, SEQUENCE, ROWS, VOLUME, TEXT = (2, 4, 6, 5), (2, 4, 7), (3, 6), (2, 4, 5, 4, 6), (2, 5, 8)
LABELS = np.array([1, 0, 5], np.int64)
POSITIVE = np.random.default_rng(2).uniform(0.1, 1.0, IMAGE).astype(np.float32)
SIGNS = np.array([1, -1, 1], np.float32)


@dataclasses.dataclass
class Row:
    """A layer, torch's counterpart (a module, or a function of the inputs), and the inputs: shapes or arrays."""

    ours: object
    theirs: object
    inputs: list
    turned: bool = False  # two-dimensional parameters are transposed in torch
    of: object = None  # what of the result is compared


def rows_of(ours, theirs, *inputs, turned=False, of=None):
    return Row(ours, theirs, list(inputs), turned, of)


R = rows_of
LAYERS = {
    # with parameters
    "Linear": R(lambda: nn.Linear(6, 3), lambda: tn.Linear(6, 3), ROWS, turned=True),
    "Linear without bias": R(
        lambda: nn.Linear(8, 3, bias_attr=False), lambda: tn.Linear(8, 3, False), TEXT, turned=True
    ),
    "Embedding": R(lambda: nn.Embedding(9, 4), lambda: tn.Embedding(9, 4), LABELS),
    "Embedding with padding": R(
        lambda: nn.Embedding(9, 4, padding_idx=5), lambda: PaddedEmbedding(9, 4, padding_idx=5), LABELS
    ),
    "Bilinear": R(lambda: nn.Bilinear(6, 6, 4), lambda: tn.Bilinear(6, 6, 4), ROWS, ROWS),
    "Conv1D": R(lambda: nn.Conv1D(4, 6, 3, padding=1, groups=2), lambda: tn.Conv1d(4, 6, 3, 1, 1, 1, 2), SEQUENCE),
    "Conv2D": R(lambda: nn.Conv2D(4, 6, [3, 2], 2, 1), lambda: tn.Conv2d(4, 6, (3, 2), 2, 1), IMAGE),
    "Conv2D reflecting": R(
        lambda: nn.Conv2D(4, 6, 3, padding=[2, 1], padding_mode="reflect"),
        lambda: tn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="reflect"),
        IMAGE,
    ),
    "Conv3D": R(lambda: nn.Conv3D(4, 6, 2, bias_attr=False), lambda: tn.Conv3d(4, 6, 2, bias=False), VOLUME),
    "Conv1DTranspose": R(lambda: nn.Conv1DTranspose(4, 6, 3, 2), lambda: tn.ConvTranspose1d(4, 6, 3, 2), SEQUENCE),
    "Conv2DTranspose": R(
        lambda: nn.Conv2DTranspose(4, 6, 3, 2, 1, 1), lambda: tn.ConvTranspose2d(4, 6, 3, 2, 1, 1), IMAGE
    ),
    "Conv3DTranspose": R(lambda: nn.Conv3DTranspose(4, 3, 2), lambda: tn.ConvTranspose3d(4, 3, 2), VOLUME),
    "BatchNorm1D": R(lambda: nn.BatchNorm1D(6), lambda: tn.BatchNorm1d(6), ROWS),
    "BatchNorm1D of sequences": R(lambda: nn.BatchNorm1D(4), lambda: tn.BatchNorm1d(4), SEQUENCE),
    "BatchNorm2D": R(lambda: nn.BatchNorm2D(4), lambda: tn.BatchNorm2d(4), IMAGE),
    "BatchNorm2D for inference": R(lambda: nn.BatchNorm2D(4).eval(), lambda: tn.BatchNorm2d(4).eval(), IMAGE),
    "BatchNorm3D": R(lambda: nn.BatchNorm3D(4), lambda: tn.BatchNorm3d(4), VOLUME),
    "BatchNorm": R(lambda: nn.BatchNorm(4, act="relu"), lambda: tn.Sequential(tn.BatchNorm2d(4), tn.ReLU()), IMAGE),
    "SyncBatchNorm": R(lambda: nn.SyncBatchNorm(4), lambda: tn.BatchNorm2d(4), IMAGE),
    "LayerNorm": R(lambda: nn.LayerNorm(8), lambda: tn.LayerNorm(8), TEXT),
    "GroupNorm": R(lambda: nn.GroupNorm(2, 4), lambda: tn.GroupNorm(2, 4), IMAGE),
    "InstanceNorm1D": R(lambda: nn.InstanceNorm1D(4), lambda: tn.InstanceNorm1d(4, affine=True), SEQUENCE),
    "InstanceNorm2D": R(lambda: nn.InstanceNorm2D(4), lambda: tn.InstanceNorm2d(4, affine=True), IMAGE),
    "InstanceNorm3D": R(lambda: nn.InstanceNorm3D(4), lambda: tn.InstanceNorm3d(4, affine=True), VOLUME),
    "PReLU": R(lambda: nn.PReLU(4, 0.1), lambda: tn.PReLU(4, 0.1), IMAGE),
    # shapes
    "Flatten": R(nn.Flatten, tn.Flatten, IMAGE),
    "Flatten in the middle": R(lambda: nn.Flatten(1, 2), lambda: tn.Flatten(1, 2), IMAGE),
    "Unflatten": R(lambda: nn.Unflatten(1, [2, -1]), lambda: tn.Unflatten(1, (2, 3)), ROWS),
    "Identity": R(nn.Identity, tn.Identity, ROWS),
    "Pad1D": R(lambda: nn.Pad1D([1, 2]), lambda: tn.ConstantPad1d((1, 2), 0.0), SEQUENCE),
    "Pad2D": R(lambda: nn.Pad2D(1, value=2.0), lambda: tn.ConstantPad2d(1, 2.0), IMAGE),
    "Pad3D": R(lambda: nn.Pad3D(1), lambda: tn.ConstantPad3d(1, 0.0), VOLUME),
    "ZeroPad2D": R(lambda: nn.ZeroPad2D([1, 2, 0, 1]), lambda: tn.ZeroPad2d((1, 2, 0, 1)), IMAGE),
    "ReflectionPad2D": R(lambda: nn.ReflectionPad2D([1, 2, 3, 1]), lambda: tn.ReflectionPad2d((1, 2, 3, 1)), IMAGE),
    "ReplicationPad1D": R(lambda: nn.ReplicationPad1D(2), lambda: tn.ReplicationPad1d(2), SEQUENCE),
    "ConstantPad1D": R(lambda: nn.ConstantPad1D(2, 1.5), lambda: tn.ConstantPad1d(2, 1.5), SEQUENCE),
    "Upsample": R(lambda: nn.Upsample(scale_factor=2), lambda: tn.Upsample(scale_factor=2), IMAGE),
    "UpsamplingBilinear2D": R(lambda: nn.UpsamplingBilinear2D([9, 8]), lambda: tn.UpsamplingBilinear2d((9, 8)), IMAGE),
    "UpsamplingNearest2D": R(lambda: nn.UpsamplingNearest2D([12, 10]), lambda: tn.UpsamplingNearest2d((12, 10)), IMAGE),
    "PixelShuffle": R(lambda: nn.PixelShuffle(2), lambda: tn.PixelShuffle(2), IMAGE),
    "PixelUnshuffle": R(lambda: nn.PixelUnshuffle(2), lambda: tn.PixelUnshuffle(2), (2, 4, 6, 4)),
    "ChannelShuffle": R(lambda: nn.ChannelShuffle(2), lambda: tn.ChannelShuffle(2), IMAGE),
    "Unfold": R(lambda: nn.Unfold(3, 1, 1, 2), lambda: tn.Unfold(3, 1, 1, 2), IMAGE),
    "Fold": R(lambda: nn.Fold([5, 4], 2), lambda: tn.Fold((5, 4), 2), (2, 12, 12)),
    "CosineSimilarity": R(lambda: nn.CosineSimilarity(1), lambda: tn.CosineSimilarity(1), ROWS, ROWS),
    "PairwiseDistance": R(nn.PairwiseDistance, tn.PairwiseDistance, ROWS, ROWS),
    "Dropout for inference": R(lambda: nn.Dropout(0.5).eval(), tn.Identity, ROWS),
    "Dropout2D for inference": R(lambda: nn.Dropout2D(0.5).eval(), tn.Identity, IMAGE),
    "LocalResponseNorm": R(lambda: nn.LocalResponseNorm(3), lambda: tn.LocalResponseNorm(3), IMAGE),
    # pooling
    "AvgPool1D": R(lambda: nn.AvgPool1D(2), lambda: tn.AvgPool1d(2), SEQUENCE),
    "AvgPool2D": R(lambda: nn.AvgPool2D(2, 1), lambda: tn.AvgPool2d(2, 1), IMAGE),
    "AvgPool3D": R(lambda: nn.AvgPool3D(2), lambda: tn.AvgPool3d(2), VOLUME),
    "MaxPool1D": R(lambda: nn.MaxPool1D(3, 2, 1), lambda: tn.MaxPool1d(3, 2, 1), SEQUENCE),
    "MaxPool2D": R(lambda: nn.MaxPool2D(2, ceil_mode=True), lambda: tn.MaxPool2d(2, ceil_mode=True), IMAGE),
    "MaxPool3D": R(lambda: nn.MaxPool3D(2), lambda: tn.MaxPool3d(2), VOLUME),
    "AdaptiveAvgPool1D": R(lambda: nn.AdaptiveAvgPool1D(3), lambda: tn.AdaptiveAvgPool1d(3), SEQUENCE),
    "AdaptiveAvgPool2D": R(lambda: nn.AdaptiveAvgPool2D([3, 2]), lambda: tn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "AdaptiveAvgPool3D": R(lambda: nn.AdaptiveAvgPool3D(2), lambda: tn.AdaptiveAvgPool3d(2), VOLUME),
    "AdaptiveMaxPool1D": R(lambda: nn.AdaptiveMaxPool1D(3), lambda: tn.AdaptiveMaxPool1d(3), SEQUENCE),
    "AdaptiveMaxPool2D": R(lambda: nn.AdaptiveMaxPool2D([3, 2]), lambda: tn.AdaptiveMaxPool2d((3, 2)), IMAGE),
    "AdaptiveMaxPool3D": R(lambda: nn.AdaptiveMaxPool3D(2), lambda: tn.AdaptiveMaxPool3d(2), VOLUME),
    # containers
    "Sequential": R(
        lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), ("last", nn.Linear(4, 2))),
        lambda: tn.Sequential(tn.Linear(6, 4), tn.ReLU(), tn.Linear(4, 2)),
        ROWS,
        turned=True,
    ),
    # transformers; torch has query, key and value in one matrix, so only results of our own parts are compared there
    "TransformerEncoderLayer": R(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0), lambda: TorchEncoderLayer(8, 2, 16), TEXT, turned=True
    ),
    # recurrence, by ONNX's operators; torch has the same parameters in the same order
    "LSTM": R(lambda: nn.LSTM(8, 3), lambda: tn.LSTM(8, 3, batch_first=True), TEXT, of=lambda r: r[0]),
    "LSTM's last state": R(lambda: nn.LSTM(8, 3), lambda: tn.LSTM(8, 3, batch_first=True), TEXT, of=lambda r: r[1][1]),
    "LSTM of two layers, both ways": R(
        lambda: nn.LSTM(8, 3, 2, "bidirect"),
        lambda: tn.LSTM(8, 3, 2, batch_first=True, bidirectional=True),
        TEXT,
        of=lambda r: r[0],
    ),
    "GRU": R(lambda: nn.GRU(8, 3, 2), lambda: tn.GRU(8, 3, 2, batch_first=True), TEXT, of=lambda r: r[0]),
    "GRU's last states": R(lambda: nn.GRU(8, 3, 2), lambda: tn.GRU(8, 3, 2, batch_first=True), TEXT, of=lambda r: r[1]),
    "SimpleRNN": R(
        lambda: nn.SimpleRNN(8, 3, activation="relu"),
        lambda: tn.RNN(8, 3, nonlinearity="relu", batch_first=True),
        TEXT,
        of=lambda r: r[0],
    ),
    "LSTMCell": R(
        lambda: nn.LSTMCell(6, 3),
        lambda: tn.LSTMCell(6, 3),
        ROWS,
        of=lambda r: r[1][1] if len(r[0].shape) == 2 and isinstance(r[1], tuple) else r[1],
    ),
    "GRUCell": R(
        lambda: nn.GRUCell(6, 3), lambda: tn.GRUCell(6, 3), ROWS, of=lambda r: r[0] if isinstance(r, tuple) else r
    ),
    "SimpleRNNCell": R(
        lambda: nn.SimpleRNNCell(6, 3), lambda: tn.RNNCell(6, 3), ROWS, of=lambda r: r[0] if isinstance(r, tuple) else r
    ),
}
PLAIN = (
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish ReLU ReLU6 SELU Sigmoid "
    "Softplus Softshrink Softsign Tanh Tanhshrink"
)
LAYERS |= {name: R(getattr(nn, name), getattr(tn, name), ROWS) for name in PLAIN.split()}
LAYERS |= {
    "Silu": R(nn.Silu, tn.SiLU, ROWS),
    "Swish": R(nn.Swish, tn.SiLU, ROWS),
    "Softmax": R(nn.Softmax, lambda: tn.Softmax(-1), ROWS),
    "LogSoftmax": R(lambda: nn.LogSoftmax(0), lambda: tn.LogSoftmax(0), ROWS),
    "Softmax2D": R(nn.Softmax2D, tn.Softmax2d, IMAGE),
    "ThresholdedReLU": R(lambda: nn.ThresholdedReLU(0.4), lambda: tn.Threshold(0.4, 0.0), ROWS),
    "Maxout": R(lambda: nn.Maxout(2), lambda: lambda x: x.reshape(2, 2, 2, 6, 5).amax(2), IMAGE),
    "LeakyReLU steep": R(lambda: nn.LeakyReLU(0.3), lambda: tn.LeakyReLU(0.3), ROWS),
}
PROBABILITIES = np.array([[0.2, 0.7, 0.4], [0.9, 0.1, 0.5]], np.float32)
TRUTHS = np.array([[0, 1, 1], [1, 0, 1]], np.float32)
LAYERS |= {
    "MSELoss": R(nn.MSELoss, tn.MSELoss, ROWS, ROWS),
    "L1Loss": R(lambda: nn.L1Loss("sum"), lambda: tn.L1Loss(reduction="sum"), ROWS, ROWS),
    "SmoothL1Loss": R(nn.SmoothL1Loss, tn.HuberLoss, ROWS, ROWS),
    "CrossEntropyLoss": R(nn.CrossEntropyLoss, tn.CrossEntropyLoss, ROWS, LABELS),
    "NLLLoss": R(nn.NLLLoss, tn.NLLLoss, ROWS, LABELS),
    "BCELoss": R(nn.BCELoss, tn.BCELoss, PROBABILITIES, TRUTHS),
    "BCEWithLogitsLoss": R(nn.BCEWithLogitsLoss, tn.BCEWithLogitsLoss, PROBABILITIES, TRUTHS),
    "KLDivLoss": R(
        lambda: nn.KLDivLoss("sum"), lambda: tn.KLDivLoss(reduction="sum"), ROWS, PROBABILITIES.repeat(3).reshape(3, 6)
    ),
    "MarginRankingLoss": R(lambda: nn.MarginRankingLoss(0.3), lambda: tn.MarginRankingLoss(0.3), (3,), (3,), SIGNS),
    "HingeEmbeddingLoss": R(nn.HingeEmbeddingLoss, tn.HingeEmbeddingLoss, (3,), SIGNS),
    "CosineEmbeddingLoss": R(
        lambda: nn.CosineEmbeddingLoss(0.2), lambda: tn.CosineEmbeddingLoss(0.2), ROWS, ROWS, SIGNS
    ),
    "SoftMarginLoss": R(nn.SoftMarginLoss, tn.SoftMarginLoss, (3,), SIGNS),
    "MultiLabelSoftMarginLoss": R(nn.MultiLabelSoftMarginLoss, tn.MultiLabelSoftMarginLoss, PROBABILITIES, TRUTHS),
    "MultiMarginLoss": R(nn.MultiMarginLoss, tn.MultiMarginLoss, ROWS, LABELS),
    "PoissonNLLLoss": R(nn.PoissonNLLLoss, tn.PoissonNLLLoss, PROBABILITIES, TRUTHS),
    "GaussianNLLLoss": R(nn.GaussianNLLLoss, tn.GaussianNLLLoss, PROBABILITIES, TRUTHS, PROBABILITIES),
    "TripletMarginLoss": R(nn.TripletMarginLoss, tn.TripletMarginLoss, ROWS, ROWS, ROWS),
    "TripletMarginWithDistanceLoss": R(
        nn.TripletMarginWithDistanceLoss, tn.TripletMarginWithDistanceLoss, ROWS, ROWS, ROWS
    ),
}
LAYERS |= {
    "CTCLoss": R(
        nn.CTCLoss,
        lambda: lambda x, *rest: tn.CTCLoss()(x.log_softmax(2), *rest),
        (6, 2, 5),
        np.array([[1, 2, 2], [3, 1, 0]], np.int32),
        np.array([6, 5], np.int64),
        np.array([3, 2], np.int64),
    ),
    "MultiLabelMarginLoss": R(
        nn.MultiLabelMarginLoss, tn.MultiLabelMarginLoss, ROWS, np.array([[1, 3, -1, 0, 0, 0]] * 3, np.int64)
    ),
    "LPPool1D": R(lambda: nn.LPPool1D(2, 3), lambda: tn.LPPool1d(2, 3), SEQUENCE),
    "LPPool2D": R(
        lambda: nn.LPPool2D(3, 2),
        lambda: tn.LPPool2d(3, 2),
        POSITIVE,
    ),
    "RReLU for inference": R(lambda: nn.RReLU(0.1, 0.3).eval(), lambda: tn.LeakyReLU(0.2), ROWS),
    "AlphaDropout for inference": R(lambda: nn.AlphaDropout().eval(), tn.Identity, ROWS),
    "Dropout3D for inference": R(lambda: nn.Dropout3D().eval(), tn.Identity, VOLUME),
}
SIDES = {"1D": ([2, 1], SEQUENCE), "2D": ([1, 2, 0, 1], IMAGE), "3D": ([1, 2, 0, 1, 2, 1], VOLUME)}
LAYERS |= {
    f"{kind}Pad{size}": R(
        functools.partial(getattr(nn, f"{kind}Pad{size}"), sides),
        functools.partial(getattr(tn, f"{kind}Pad{size.lower()}"), sides),
        shape,
    )
    for size, (sides, shape) in SIDES.items()
    for kind in ("Zero", "Reflection", "Replication", "Circular")
}
LAYERS |= {
    "ConstantPad2D": R(lambda: nn.ConstantPad2D(1, 1.5), lambda: tn.ConstantPad2d(1, 1.5), IMAGE),
    "ConstantPad3D": R(lambda: nn.ConstantPad3D(1, 1.5), lambda: tn.ConstantPad3d(1, 1.5), VOLUME),
    "FeatureAlphaDropout for inference": R(lambda: nn.FeatureAlphaDropout().eval(), tn.Identity, ROWS),
    "MultiHeadAttention": R(lambda: nn.MultiHeadAttention(8, 2), lambda: TorchAttention(8, 2), TEXT, turned=True),
    "TransformerEncoder": R(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2, nn.LayerNorm(8)),
        lambda: tn.Sequential(TorchEncoderLayer(8, 2, 16), TorchEncoderLayer(8, 2, 16), tn.LayerNorm(8)),
        TEXT,
        turned=True,
    ),
    "TransformerDecoderLayer": R(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0), lambda: TorchDecoderLayer(8, 2, 16), TEXT, TEXT, turned=True
    ),
    "TransformerDecoder": R(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2),
        lambda: TorchDecoder([TorchDecoderLayer(8, 2, 16), TorchDecoderLayer(8, 2, 16)]),
        TEXT,
        TEXT,
        turned=True,
    ),
    "Transformer": R(
        lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0), lambda: TorchTransformer(8, 2, 16), TEXT, TEXT, turned=True
    ),
    "RNN": R(lambda: nn.RNN(nn.GRUCell(8, 3)), lambda: tn.GRU(8, 3, batch_first=True), TEXT, of=lambda r: r[0]),
    "BiRNN": R(
        lambda: nn.BiRNN(nn.LSTMCell(8, 3), nn.LSTMCell(8, 3)),
        lambda: tn.LSTM(8, 3, batch_first=True, bidirectional=True),
        TEXT,
        of=lambda r: r[0],
    ),
}
"""What torch has no counterpart for, and what draws random numbers, is tested below, or with the functions."""


class PaddedEmbedding(tn.Embedding):
    """An embedding whose padding reads as zeros whatever the table holds, as Paddle's does."""

    def forward(self, x):
        return super().forward(x) * (x != self.padding_idx)[:, None]


class TorchAttention(tn.Module):
    """Attention of several heads, of parts, in the order of ours."""

    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (tn.Linear(size, size) for _ in range(4))

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        parts = zip((self.q, self.k, self.v), (x, memory, memory), strict=True)
        q, k, v = (part(tensor).unflatten(2, (self.heads, -1)).transpose(1, 2) for part, tensor in parts)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TorchEncoderLayer(tn.Module):
    """An encoder layer of parts, in the order of ours."""

    def __init__(self, size, heads, inner):
        super().__init__()
        self.attention = TorchAttention(size, heads)
        self.linear1, self.linear2 = tn.Linear(size, inner), tn.Linear(inner, size)
        self.norm1, self.norm2 = tn.LayerNorm(size), tn.LayerNorm(size)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.linear2(torch.relu(self.linear1(x))))


class TorchDecoderLayer(tn.Module):
    """A decoder layer of parts, in the order of ours."""

    def __init__(self, size, heads, inner):
        super().__init__()
        self.own, self.cross = TorchAttention(size, heads), TorchAttention(size, heads)
        self.linear1, self.linear2 = tn.Linear(size, inner), tn.Linear(inner, size)
        self.norm1, self.norm2, self.norm3 = (tn.LayerNorm(size) for _ in range(3))

    def forward(self, x, memory):
        x = self.norm1(x + self.own(x))
        x = self.norm2(x + self.cross(x, memory))
        return self.norm3(x + self.linear2(torch.relu(self.linear1(x))))


class TorchDecoder(tn.Module):
    """Decoder layers, one after another."""

    def __init__(self, layers):
        super().__init__()
        self.layers = tn.ModuleList(layers)

    def forward(self, x, memory):
        for layer in self.layers:
            x = layer(x, memory)
        return x


class TorchTransformer(tn.Module):
    """An encoder layer and a decoder layer."""

    def __init__(self, size, heads, inner):
        super().__init__()
        self.encoder, self.decoder = TorchEncoderLayer(size, heads, inner), TorchDecoderLayer(size, heads, inner)

    def forward(self, source, target):
        return self.decoder(target, self.encoder(source))


def arrays(name):
    random = np.random.default_rng(sum(map(ord, name)))
    shapes = LAYERS[name].inputs
    return [
        shape if isinstance(shape, np.ndarray) else random.normal(size=shape).astype(np.float32) for shape in shapes
    ]


def _trains(x):
    return x.dtype == np.float32 and not any(x is fixed for fixed in (SIGNS, TRUTHS))


@pytest.fixture(scope="module")
def results():
    """Name of a row -> (value, gradients of the inputs that have one, gradients of parameters, values of those)."""
    main, startup, scope = Program(), Program(), Scope()
    built, feeds = {}, {}
    with program_guard(main, startup), unique_name.guard():
        for name in LAYERS:
            layer, feeds_of = LAYERS[name].ours(), arrays(name)
            inputs = [data(f"{name}.{n}", x.shape, x.dtype.name) for n, x in enumerate(feeds_of)]
            feeds |= {x.name: array for x, array in zip(inputs, feeds_of, strict=True)}
            result = layer(*inputs)
            of = LAYERS[name].of
            result = result if of is None else of(result)
            wanted = [x for x, array in zip(inputs, feeds_of, strict=True) if _trains(array)] + layer.parameters()
            for x in wanted:
                x.stop_gradient = False
            square = main.builder().mul(result.value, result.value)  # a gradient that is not the same everywhere
            built[name] = (result, main.var(square.name), wanted, [p.name for p in layer.parameters()])
        # All at once: each call walks through the whole program, and copies it to undo what it cannot finish.
        sources = [x for _, _, wanted, _ in built.values() for x in wanted]
        slopes = gradients([square for _, square, wanted, _ in built.values() if wanted], sources)
    of_source = dict(zip((x.name for x in sources), slopes, strict=True))
    fetch, layout = [], {}
    for name, (result, _, wanted, parameters) in built.items():
        layout[name] = (len(fetch), len(wanted), len(parameters), parameters)
        fetch += [result, *(of_source[x.name] for x in wanted)]
    executor = Executor(CPUPlace())
    executor.run(startup, scope=scope)
    random = np.random.default_rng(3)
    for parameter in main.all_parameters():  # scales and biases are not left at 1 and 0
        value = scope[parameter.name]
        scope[parameter.name] = (value + 0.1 * random.normal(size=value.shape)).astype(np.float32)
    kept_values = {parameter.name: np.array(scope[parameter.name]) for parameter in main.all_parameters()}
    values = executor.run(main, feeds, fetch, scope=scope)
    return {
        name: (
            values[at],
            values[at + 1 : at + 1 + count - theirs],
            values[at + 1 + count - theirs : at + 1 + count],
            [kept_values[p] for p in parameters],
        )
        for name, (at, count, theirs, parameters) in layout.items()
    }


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_torch_does(results, name):
    row = LAYERS[name]
    value, of_inputs, of_parameters, parameters = results[name]
    theirs = row.theirs()
    own_parameters = list(theirs.parameters()) if isinstance(theirs, tn.Module) else []
    assert len(own_parameters) == len(parameters)
    with torch.no_grad():
        for parameter, array in zip(own_parameters, parameters, strict=True):
            turned = array.T if row.turned and array.ndim == 2 else array
            parameter.copy_(torch.tensor(turned).reshape(parameter.shape))
    inputs = [torch.tensor(x, requires_grad=_trains(x)) for x in arrays(name)]
    result = theirs(*inputs)
    result = result if row.of is None else row.of(result)
    np.testing.assert_allclose(value, result.detach().numpy().reshape(value.shape), rtol=2e-5, atol=2e-5)
    (result * result).sum().backward()
    wanted = [x.grad.numpy() for x in inputs if x.requires_grad] + [p.grad.numpy() for p in own_parameters]
    for ours, expected in zip([*of_inputs, *of_parameters], wanted, strict=True):
        turned = expected.T if row.turned and ours.ndim == 2 and ours.shape != expected.shape else expected
        if row.turned and ours.ndim == 2 and len(parameters) and any(ours is p for p in of_parameters):
            turned = expected.T
        np.testing.assert_allclose(ours, turned.reshape(ours.shape), rtol=1e-4, atol=1e-4)
