"""Attention of torch's own modules, exported here: as many are fused as the module has, whatever the exporter.

What is counted knows nothing of the matcher: modules of torch before the export, operators of ONNX Runtime after it.
"""

import functools
import io
import itertools
import logging
import warnings

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.fusion.fuse_attention import FuseAttention
from amp_transpiler.passes.manager import run_pass
from tests.support import run

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")  # exporters need it

WIDTH, HEADS, BATCH, QUERIES, KEYS = 32, 4, 3, 5, 7
EXPORTERS = ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)]
SELF, CROSS = "com.microsoft::Attention", "com.microsoft::MultiHeadAttention"


class Attend(torch.nn.Module):
    """One MultiheadAttention, whose masks are inputs by name."""

    def __init__(self, names, *, batch_first, weights):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)
        self.names, self.weights = names, weights

    def forward(self, *values):
        values = dict(zip(self.names, values, strict=True))
        query, memory = values.pop("query"), values.pop("memory", None)
        memory = query if memory is None else memory
        return self.attention(query, memory, memory, need_weights=self.weights, **values)[0]


def padding(keys):
    mask = torch.zeros(BATCH, keys, dtype=torch.bool)
    mask[1, -2:] = True
    return mask


def as_numbers(mask):
    return torch.zeros(mask.shape).masked_fill(mask, float("-inf"))


def future(keys):
    return torch.triu(torch.ones(QUERIES, keys, dtype=torch.bool), 1)


MASKS = {
    "no mask": lambda keys: {},
    "padding, truths": lambda keys: {"key_padding_mask": padding(keys)},
    "padding, numbers": lambda keys: {"key_padding_mask": as_numbers(padding(keys))},
    "a mask, truths": lambda keys: {"attn_mask": future(keys)},
    "a mask, numbers": lambda keys: {"attn_mask": torch.randn(QUERIES, keys)},
    "both": lambda keys: {"key_padding_mask": padding(keys), "attn_mask": future(keys)},
}


def exported(module, feeds, exporter, batch_axes):
    """Return the export of a module with an open number of samples, and what torch computes."""
    torch.backends.mha.set_fastpath_enabled(False)  # a kernel of torch's that no exporter knows
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            computed = module(*feeds.values())
            expected = (
                [each.detach().numpy() for each in computed]
                if isinstance(computed, tuple)
                else computed.detach().numpy()
            )
            return _export(module, feeds, exporter, batch_axes), expected
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def _export(module, feeds, exporter, batch_axes):
    values, names = tuple(feeds.values()), list(feeds)
    if exporter == "torchscript":
        file = io.BytesIO()
        axes = {name: {axis: "batch"} for name, axis in batch_axes.items()}
        torch.onnx.export(module, values, file, input_names=names, dynamic_axes=axes, opset_version=17, dynamo=False)
        return onnx.load_from_string(file.getvalue())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = (tuple({batch_axes[name]: batch} if name in batch_axes else {} for name in names),)
    program = torch.onnx.export(module, values, input_names=names, dynamic_shapes=shapes, dynamo=True, verbose=False)
    return program.model_proto


def fused(proto):
    program = plain_copy(amp.load(proto))
    run_pass(FuseAttention(), program.model)
    return program, [f"{node.domain}::{node.op_type}" for node in program.model.graph if node.domain]


def assert_close(expected, computed):
    assert np.isfinite(expected).all()
    assert np.linalg.norm(expected - computed) <= 1e-5 * np.linalg.norm(expected)


class SideBySide(torch.nn.Module):
    """Several modules in one, each with inputs and an output of its own."""

    def __init__(self, cases):
        super().__init__()
        self.cases = torch.nn.ModuleList(case.module for case in cases)
        self.counts = [len(case.feeds) for case in cases]

    def forward(self, *values):
        ends = list(itertools.accumulate(self.counts))
        starts = [0, *ends[:-1]]
        return tuple(module(*values[start:end]) for module, start, end in zip(self.cases, starts, ends, strict=True))


class Case:
    """One module, with the values that it is fed and their axes of samples."""

    def __init__(self, *, batch_first, weights, crosses, mask):
        torch.manual_seed(7)
        keys, batch = (KEYS if crosses else QUERIES), (0 if batch_first else 1)
        rows = {"query": QUERIES, **({"memory": KEYS} if crosses else {})}
        self.feeds = {
            name: torch.randn(*((BATCH, length) if batch_first else (length, BATCH)), WIDTH)
            for name, length in rows.items()
        }
        self.feeds |= MASKS[mask](keys)
        axes = {**dict.fromkeys(rows, batch), "key_padding_mask": 0}
        self.axes = {name: axes[name] for name in self.feeds if name in axes}
        self.module = Attend(list(self.feeds), batch_first=batch_first, weights=weights).eval()


@functools.cache
def exported_together(batch_first, weights):
    """Return, for each mask of both kinds of attention, its part of one export by dynamo, and what torch computes.

    An export by dynamo takes seconds, of which most are for what every export needs.
    """
    keys = list(itertools.product([False, True], MASKS))
    cases = [Case(batch_first=batch_first, weights=weights, crosses=crosses, mask=mask) for crosses, mask in keys]
    named = [(f"{place}.{name}", case, name) for place, case in enumerate(cases) for name in case.feeds]
    feeds = {whole: case.feeds[name] for whole, case, name in named}
    axes = {whole: case.axes[name] for whole, case, name in named if name in case.axes}
    proto, expected = exported(SideBySide(cases), feeds, "dynamo", axes)
    extractor = onnx.utils.Extractor(proto)
    parts = {}
    for place, (key, case, output) in enumerate(zip(keys, cases, proto.graph.output, strict=True)):
        inputs = [f"{place}.{name}" for name in case.feeds]
        parts[key] = extractor.extract_model(inputs, [output.name]), expected[place]
    return parts


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("crosses", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("weights", [False, True], ids=["by one function", "by two products"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
def test_one_attention_of_torch_is_one_operator(batch_first, weights, crosses, mask, exporter):
    case = Case(batch_first=batch_first, weights=weights, crosses=crosses, mask=mask)
    if exporter == "dynamo":
        proto, expected = exported_together(batch_first, weights)[crosses, mask]
    else:
        proto, expected = exported(case.module, case.feeds, exporter, case.axes)
    program, operators = fused(proto)
    assert operators == [CROSS if crosses else SELF]
    values = [value.numpy() for value in case.feeds.values()]
    names = [value.name for value in proto.graph.input]
    (computed,) = run(program, dict(zip(names, values, strict=True))).values()
    assert_close(expected, computed)


class Encoder(torch.nn.Module):
    """A TransformerEncoder and a TransformerDecoder that reads it."""

    def __init__(self, *, batch_first, norm_first):
        super().__init__()
        sizes = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 64, "dropout": 0.0}
        sizes |= {"batch_first": batch_first, "norm_first": norm_first}
        encoder = torch.nn.TransformerEncoderLayer(**sizes)
        self.encoder = torch.nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
        self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**sizes), 2)

    def forward(self, *values):
        source, target, mask = values
        memory = self.encoder(source, src_key_padding_mask=mask)
        return self.decoder(target, memory, memory_key_padding_mask=mask)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
def test_as_many_operators_as_modules(batch_first, norm_first, exporter):
    torch.manual_seed(8)
    module = Encoder(batch_first=batch_first, norm_first=norm_first).eval()
    lengths = {"source": KEYS, "target": QUERIES}
    feeds = {
        name: torch.randn(*((BATCH, length) if batch_first else (length, BATCH)), WIDTH)
        for name, length in lengths.items()
    }
    feeds["mask"] = padding(KEYS)
    batch = 0 if batch_first else 1
    proto, expected = exported(module, feeds, exporter, {"source": batch, "target": batch, "mask": 0})
    program, operators = fused(proto)
    attentions = [each for each in module.modules() if isinstance(each, torch.nn.MultiheadAttention)]
    assert len(operators) == len(attentions) == 6
    assert operators.count(CROSS) == len(module.decoder.layers)
    (computed,) = run(program, {name: value.numpy() for name, value in feeds.items()}).values()
    assert_close(expected, computed)
