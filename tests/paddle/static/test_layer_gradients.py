"""Layers of `static.nn`, which make their own parameters: values and gradients of inputs and parameters as torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle import static

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
TF = torch.nn.functional

IMAGE, VOLUME, ROWS = (2, 4, 6, 5), (2, 4, 5, 4, 6), (3, 6)
IDS = np.array([[1, 0], [5, 1]])


def spectral(weight):
    """The weight over its largest singular value: what iteration comes to, and the gradient that it passes."""
    matrix = weight.flatten(1)
    left, _, right = torch.linalg.svd(matrix.detach())
    return weight / (left[:, 0] @ matrix @ right[0])


# name -> (ours, torch's function of the inputs and of the parameters in the order in which they are made, inputs)
LAYERS = {
    "fc": (
        lambda x: static.nn.fc(x, 4, activation="relu"),
        lambda x, w, b: torch.relu(x @ w + b),
        [ROWS],
    ),
    "fc of flattened images": (
        lambda x: static.nn.fc(x, 4),
        lambda x, w, b: x.flatten(1) @ w + b,
        [IMAGE],
    ),
    "embedding": (lambda i: static.nn.embedding(i, [7, 3]), TF.embedding, [IDS]),
    "batch_norm": (
        static.nn.batch_norm,
        lambda x, w, b: TF.batch_norm(x, None, None, w, b, training=True),
        [IMAGE],
    ),
    "layer_norm": (
        lambda x: static.nn.layer_norm(x, begin_norm_axis=2),
        lambda x, w, b: TF.layer_norm(x, (6, 5), w.reshape(6, 5), b.reshape(6, 5)),
        [IMAGE],
    ),
    "group_norm": (lambda x: static.nn.group_norm(x, 2), lambda x, w, b: TF.group_norm(x, 2, w, b), [IMAGE]),
    "instance_norm": (
        static.nn.instance_norm,
        lambda x, w, b: TF.instance_norm(x, weight=w, bias=b),
        [IMAGE],
    ),
    "prelu": (lambda x: static.nn.prelu(x, "channel"), lambda x, w: TF.prelu(x, w.flatten()), [IMAGE]),
    "conv2d": (
        lambda x: static.nn.conv2d(x, 6, 3, 2, 1, groups=2),
        lambda x, w, b: TF.conv2d(x, w, b, 2, 1, groups=2),
        [IMAGE],
    ),
    "conv3d": (lambda x: static.nn.conv3d(x, 3, 2), TF.conv3d, [VOLUME]),
    "conv2d_transpose": (
        lambda x: static.nn.conv2d_transpose(x, 3, None, 3, 1, 2),
        lambda x, w, b: TF.conv_transpose2d(x, w, b, 2, 1),
        [IMAGE],
    ),
    "conv3d_transpose": (
        lambda x: static.nn.conv3d_transpose(x, 3, None, 2, stride=2),
        lambda x, w, b: TF.conv_transpose3d(x, w, b, 2),
        [VOLUME],
    ),
    "bilinear_tensor_product": (
        lambda x, y: static.nn.bilinear_tensor_product(x, y, 4),
        lambda x, y, w, b: TF.bilinear(x, y, w, b.flatten()),
        [(3, 6), (3, 5)],
    ),
    "row_conv": (
        lambda x: static.nn.row_conv(x, 2),
        lambda x, w: sum(TF.pad(x, (0, 0, 0, 2))[:, step : step + 5] * w[step] for step in range(3)),
        [(2, 5, 3)],
    ),
    "spectral_norm": (lambda w: static.nn.spectral_norm(w, power_iters=200), spectral, [(4, 3, 2)]),
}


@pytest.mark.usefixtures("fresh_programs")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_torchs_values_and_gradients(name):
    ours, theirs, shapes = LAYERS[name]
    random = np.random.default_rng(5)
    arrays = [x if isinstance(x, np.ndarray) else random.normal(size=x).astype(np.float32) for x in shapes]
    inputs = [static.data(f"x{n}", x.shape, x.dtype.name) for n, x in enumerate(arrays)]
    floats = [x for x in inputs if x.dtype == "float32"]
    for x in floats:
        x.stop_gradient = False
    result = ours(*inputs)
    parameters = [p for p in static.default_main_program().all_parameters() if p.trainable]
    all_slopes = static.gradients([paddle.sum(result * result)], [*floats, *parameters])
    executor = static.Executor(paddle.CPUPlace())
    executor.run(static.default_startup_program())
    scope = static.global_scope()
    for parameter in parameters:  # scales and biases are not left at 1 and 0
        value = np.asarray(scope[parameter.name])
        scope[parameter.name] = (value + 0.1 * random.normal(size=value.shape)).astype(np.float32)
    values = [np.array(scope[parameter.name]) for parameter in parameters]
    feeds = {x.name: array for x, array in zip(inputs, arrays, strict=True)}
    value, *slopes = executor.run(feed=feeds, fetch_list=[result, *all_slopes])

    tensors = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in (*arrays, *values)]
    wanted = theirs(*tensors)
    np.testing.assert_allclose(value, wanted.detach().numpy(), rtol=1e-4, atol=1e-4)
    (wanted * wanted).sum().backward()
    for slope, tensor in zip(slopes, [t for t in tensors if t.requires_grad], strict=True):
        np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=2e-3, atol=2e-3)
