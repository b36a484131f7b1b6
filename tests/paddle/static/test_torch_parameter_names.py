"""The parameters that `from_onnx` trains of torch's exports, by both exporters, against `named_parameters`."""

from __future__ import annotations

import collections
import io
import logging

import numpy as np
import onnx
import pytest

from amp_transpiler import static
from amp_transpiler.paddle.static.onnx_import import from_onnx

torch = pytest.importorskip("torch")
nn = torch.nn


class Scaled(nn.Module):
    """A residual branch with a learnt scale, and channel statistics written out."""

    def __init__(self):
        super().__init__()
        self.conv, self.gamma = nn.Conv2d(3, 4, 3, padding=1), nn.Parameter(torch.rand(4, 1, 1))
        self.scale, self.shift = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))

    def forward(self, x):
        h = self.conv(x)
        centred = h - h.mean(1, keepdim=True)
        h = h + self.gamma * (centred / torch.sqrt((centred * centred).mean(1, keepdim=True) + 1e-6))
        return self.scale[:, None, None] * h + self.shift[:, None, None]


class Prepared(nn.Module):
    """An image that is normalised with buffers, which no training changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.rand(3, 1, 1))
        self.register_buffer("std", torch.rand(3, 1, 1) + 0.5)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv((x - self.mean) / self.std)


def after_convolution(*layers):
    return lambda: nn.Sequential(nn.Conv2d(3, 8, 3), *(make() for make in layers))


MODULES = {
    "group norm": after_convolution(lambda: nn.GroupNorm(4, 8)),
    "affine instance norm": after_convolution(lambda: nn.InstanceNorm2d(8, affine=True)),
    "instance norm": after_convolution(lambda: nn.InstanceNorm2d(8)),
    "two batch norms": lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.PReLU()),
    "scale and norm written out": Scaled,
    "prepared image": Prepared,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
}
# What an exporter folds into one constant: its numbers are no parameter's, and the layer still trains.
FOLDED = {"weight norm"}


def exported(module, exporter):
    if exporter == "dynamo":
        pytest.importorskip("onnxscript", reason="torch's newer exporter needs onnxscript")
    buffer, x = io.BytesIO(), torch.randn(2, 3, 6, 6)
    logging.disable(logging.WARNING)
    try:
        if exporter == "dynamo":
            torch.onnx.export(module, (x,), dynamo=True, verbose=False).save(buffer)
        else:
            torch.onnx.export(module, (x,), buffer, dynamo=False, opset_version=17)
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load_from_string(buffer.getvalue())


def numbers(array):
    """The numbers of a tensor in order of size: the same after a transposition or a reshape."""
    return np.sort(np.asarray(array, np.float32).reshape(-1)).tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", MODULES)
def test_the_parameters_are_torchs(name, exporter):
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model = exported(module, exporter)
    main = from_onnx(model, static.Program())
    held = {tensor.name: numbers(onnx.numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    trained = collections.Counter(held.get(p.name, p.name) for p in main.all_parameters())
    wanted = {numbers(p.detach().numpy()): n for n, p in module.named_parameters()}
    missed = [n for key, n in wanted.items() if key not in trained]
    invented = [p.name for p in main.all_parameters() if held.get(p.name) not in wanted]
    if name in FOLDED and (missed or invented):
        assert len(invented) == 1
        assert len(missed) == 2
        return
    assert not missed
    assert not invented
