"""Whole networks: the calls and casts that `torch.autocast("cuda")` dispatches, against the file of policy `torch`.

torch casts before any kernel is called: with fake tensors that say they are on a GPU, none is needed, and a dispatch
mode sees every call and every cast. The networks are written twice, in ONNX's text and in torch.
"""

import dataclasses
import logging
from collections.abc import Callable

import numpy as np
import pytest

import amp_transpiler as amp
from tests.support import LOW_NAMES, array, assert_valid, casts, nodes, parse

torch = pytest.importorskip("torch", reason="torch is not installed: it is the reference")
fake = pytest.importorskip("torch._subclasses.fake_tensor")
dispatch = pytest.importorskip("torch.utils._python_dispatch")
TF = torch.nn.functional

FORMATS = ("float16", "bfloat16")

# torch's calls that compute -> ONNX's operators; what only moves or shapes data is left out on both sides.
CALLS = {
    "addmm": "Gemm",
    "mm": "MatMul",
    "bmm": "MatMul",
    "convolution": "Conv",
    "cudnn_convolution": "Conv",
    "relu": "Relu",
    "gelu": "Gelu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "_softmax": "Softmax",
    "native_layer_norm": "LayerNormalization",
    "max_pool2d_with_indices": "MaxPool",
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "exp": "Exp",
    "log": "Log",
    "pow": "Mul",  # the square of a value, which is its product with itself where Pow has no bfloat16
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "cat": "Concat",
    "maximum": "Max",
}
MOVES = {"t", "transpose", "permute", "view", "_unsafe_view", "reshape", "expand", "detach", "alias", "unsqueeze"}
MOVING = {"Transpose", "Reshape", "Flatten", "Cast"}


@dataclasses.dataclass(frozen=True)
class Network:
    """A network in ONNX's text, its parameters' shapes, and the same in torch."""

    onnx: str
    parameters: dict[str, tuple[int, ...]]
    torch: Callable
    x: tuple[int, ...] = (2, 4)


def attention(x, p):
    queries, keys, values = x @ p["wq"], x @ p["wk"], x @ p["wv"]
    probabilities = torch.softmax(queries @ keys.mT * 0.5 + p["mask"], -1)
    joined = TF.layer_norm(x + probabilities @ values, [4], p["s"], p["b"])
    return joined + TF.gelu(joined @ p["w0"]) @ p["w1"]


def log_of_a_sum(x, p):
    h = x @ p["w"]
    return (h - h.exp().sum(-1, keepdim=True).log()).tanh()


def joined(x, p):
    h = x @ p["w"]
    first = torch.cat([h, x.exp()], 1)
    return torch.cat([first, torch.maximum(h.sigmoid(), x)], 1) @ p["u"]


def residual(x, p):
    h = TF.conv2d(TF.conv2d(x, p["k0"], padding=1).relu(), p["k1"], padding=1) + x
    return torch.addmm(p["b"], TF.max_pool2d(h.relu(), 2).flatten(1), p["w"])


def root_mean_square(x, p):
    h = x @ p["w"]
    return (h * (h.pow(2.0).mean(-1, keepdim=True) + 1e-5).sqrt().reciprocal() * p["s"]) @ p["w"]


NETWORKS = {
    "perceptron": Network(
        "h = Gemm (x, w0, b0) r = Relu (h) g = Gemm (r, w1, b1) y = Softmax (g)",
        {"w0": (4, 4), "b0": (4,), "w1": (4, 4), "b1": (4,)},
        lambda x, p: torch.softmax(torch.addmm(p["b1"], torch.addmm(p["b0"], x, p["w0"]).relu(), p["w1"]), -1),
    ),
    "residual": Network(
        """c = Conv <pads = [1, 1, 1, 1]> (x, k0) r = Relu (c) d = Conv <pads = [1, 1, 1, 1]> (r, k1)
        s = Add (d, x) t = Relu (s) m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
        f = Flatten (m) y = Gemm (f, w, b)""",
        {"k0": (4, 4, 3, 3), "k1": (4, 4, 3, 3), "w": (16, 3), "b": (3,)},
        residual,
        (2, 4, 4, 4),
    ),
    "attention": Network(
        """q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv) kt = Transpose <perm = [0, 2, 1]> (k)
        qk = MatMul (q, kt) sc = Mul (qk, half) m = Add (sc, mask) p = Softmax (m) pv = MatMul (p, v)
        a = Add (x, pv) n = LayerNormalization (a, s, b) h = MatMul (n, w0) g = Gelu (h) o = MatMul (g, w1)
        y = Add (n, o)""",
        {
            "wq": (4, 4),
            "wk": (4, 4),
            "wv": (4, 4),
            "mask": (3, 3),
            "s": (4,),
            "b": (4,),
            "w0": (4, 8),
            "w1": (8, 4),
        },
        attention,
        (2, 3, 4),
    ),
    "root mean square": Network(
        """h = MatMul (x, w) q = Pow (h, two) m = ReduceMean <keepdims = 1> (q, last) e = Add (m, epsilon)
        r = Sqrt (e) i = Reciprocal (r) n = Mul (h, i) g = Mul (n, s) y = MatMul (g, w)""",
        {"w": (4, 4), "s": (4,)},
        root_mean_square,
    ),
    "log of a sum": Network(
        "h = MatMul (x, w) e = Exp (h) s = ReduceSum <keepdims = 1> (e, last) l = Log (s) d = Sub (h, l) y = Tanh (d)",
        {"w": (4, 4)},
        log_of_a_sum,
    ),
    "joined": Network(
        """h = MatMul (x, w) e = Exp (x) c = Concat <axis = 1> (h, e) s = Sigmoid (h) m = Max (s, x)
        a = Concat <axis = 1> (c, m) y = MatMul (a, u)""",
        {"w": (4, 4), "u": (12, 4)},
        joined,
    ),
}
NUMBERS = {"half": np.float32(0.5), "two": np.float32(2.0), "epsilon": np.float32(1e-5), "last": np.array([-1])}


class Recorder(dispatch.TorchDispatchMode):
    """Lists the calls that compute with the type of their result, and the casts of what is no parameter."""

    def __init__(self, parameters):
        super().__init__()
        self.calls, self.casts = [], set()
        self._parameters = {id(value) for value in parameters}
        self._tensors = []  # so that no two tensors have the same id

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self._tensors += [args, result]
        if name == "_to_copy":
            if id(args[0]) not in self._parameters:
                self.casts.add((id(args[0]), args[0].dtype, result.dtype))
        elif func.namespace == "aten" and name not in MOVES:
            first = result[0] if isinstance(result, tuple) else result
            self.calls.append((CALLS[name], first.dtype))
        return result


@pytest.fixture
def autocast():
    """Switch torch's autocast for CUDA on in a format: its context manager wants a GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

    def switch(dtype):
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", getattr(torch, dtype))

    yield switch
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])
    torch.clear_autocast_cache()


def of_torch(network, dtype, switch):
    with fake.FakeTensorMode(), torch.no_grad():
        tensors = {name: torch.empty(shape, device="cuda") for name, shape in network.parameters.items()}
        x = torch.empty(network.x, device="cuda")
        switch(dtype)
        with Recorder(tensors.values()) as recorder:
            network.torch(x, tensors)
    return recorder


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_runs_in_the_types_that_torch_gives_it(name, dtype, autocast):
    network, low = NETWORKS[name], getattr(torch, dtype)
    theirs = of_torch(network, dtype, autocast)
    weights = {key: array(*shape, seed=i) for i, (key, shape) in enumerate(network.parameters.items())}
    numbers = {key: value for key, value in NUMBERS.items() if f"{key})" in network.onnx}
    shape = ",".join(map(str, network.x))
    model = parse(f"(float[{shape}] x) => (float y) {{ {network.onnx} }}", opset=22, **weights, **numbers)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = amp.transpile(model, policy="torch", dtype=dtype, target="tensorrt", verify=False).program
    assert_valid(program)
    ours = [node for node in nodes(program) if node.op_type not in MOVING]
    types = {low: LOW_NAMES[dtype], torch.float32: "FLOAT"}
    assert [(node.op_type.replace("Pow", "Mul"), node.outputs[0].dtype.name) for node in ours] == [
        (operator, types[number]) for operator, number in theirs.calls
    ]
    # Casts up differ: torch's kernels take two types where ONNX's operators take one, and the file's output is float32.
    down = [cast for cast in casts(program) if cast[2] == LOW_NAMES[dtype]]
    assert len(down) == len([cast for cast in theirs.casts if cast[2] == low])
