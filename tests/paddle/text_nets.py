"""Training programs made from ONNX text, with weights that a test can look up by name."""

import numpy as np

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.paddle.utils import unique_name
from tests.paddle import nets
from tests.support import array, parse

IMAGES = "(float[n,3,8,8] x) => (float[n,2] y)"
CONVOLUTIONS = f"""{IMAGES} {{
    [conv1] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
    [norm] n1 = BatchNormalization (c1, scale, shift, mean, var)
    [relu] r1 = Relu (n1)
    [pool] p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
    [conv2] c2 = Conv <pads = [1, 1, 1, 1]> (p1, w2, b2)
    [relu2] r2 = Relu (c2)
    [flat] f = Flatten (r2)
    [gemm] y = Gemm (f, w3, b3)
}}"""


def convolution_weights():
    """Weights of `CONVOLUTIONS`."""
    return {
        "w1": array(4, 3, 3, 3, seed=1, scale=0.3),
        "b1": array(4, seed=2, scale=0.1),
        "scale": np.ones(4, np.float32),
        "shift": np.zeros(4, np.float32),
        "mean": np.zeros(4, np.float32),
        "var": np.ones(4, np.float32),
        "w2": array(4, 4, 3, 3, seed=3, scale=0.3),
        "b2": array(4, seed=4, scale=0.1),
        "w3": array(64, 2, seed=5, scale=0.2),
        "b3": array(2, seed=6, scale=0.1),
    }


def image_batches(count, rows=4):
    """Feeds of `CONVOLUTIONS`; the target follows from the image."""
    for seed in range(count):
        x = array(rows, 3, 8, 8, seed=seed)
        yield {"x": x, "target": np.stack([x.mean((1, 2, 3)), x[:, 0].std((1, 2))], 1).astype(np.float32)}


def squared_error(main, output, target):
    """Append `mean((output - target)^2)`."""
    off = output - target
    return static.Variable(main, str(main.builder().mean((off * off).value, keepdims=False).name))


def loaded(text, weights, guard=None, opset=18):
    """A trainable program, with its startup program; nodes that match `guard` are inside fp16_guard."""
    startup = static.Program()
    program = amp.load(parse(text, opset=opset, **weights))
    if guard is not None:
        amp.mark_region(program, "fp16_guard", nodes=guard)
    return static.from_onnx(program, startup_program=startup), startup


def trainer(
    optimizer, text=CONVOLUTIONS, weights=None, *, guard=None, target=(None, 2), out="y", opset=18, **decorated
):
    """A started net that learns `out` by squared error; decorated only where `decorated` says something."""
    main, startup = loaded(text, convolution_weights() if weights is None else weights, guard, opset)
    with unique_name.guard(), static.program_guard(main, startup):
        loss = squared_error(main, main.var(out), static.data("target", target))
        if decorated:
            optimizer = static.amp.decorate(optimizer, **decorated)
        optimizer.minimize(loss, startup)
    return nets.Net(main, startup, loss, optimizer).start()


def losses(net, batches):
    """The loss of every step over batches."""
    return [net.step(feed)[0].item() for feed in batches]


def kind(net, name):
    """Element type of the first output of the forward node of this name."""
    [node] = [node for node in nets.nodes(net.main, role="forward") if node.name == name]
    return nets.makes(node)[0]
