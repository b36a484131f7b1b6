"""Messages about graphs, files, variables and layers that no other test provokes: what a user does, and its words."""

import errno
import itertools
import os
import pathlib
import types
from decimal import Decimal

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler import CPUPlace, CUDAPlace, errors, paddle, static
from amp_transpiler.autodiff.deferred import expand_deferred, waiting_nodes
from amp_transpiler.cli import outcome
from amp_transpiler.cli.command import main
from amp_transpiler.files import copy_files, saving, source_check
from amp_transpiler.graph.builder import shape_of
from amp_transpiler.paddle.distributed import environment
from amp_transpiler.paddle.nn import functional as F

_names = itertools.count()

IMAGE = (1, 3, 8, 8)

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 3] y) <float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{ [product] y = MatMul(x, w) }
"""


def x(*shape, dtype="float32"):
    """Return an input of this shape, with a name of its own."""
    return static.data(f"x{next(_names)}", list(shape), dtype)


def elsewhere(make, *given):
    """Return what is made in a program of its own."""
    with static.program_guard(static.Program(), static.Program()):
        return make(*given)


def builder():
    return static.default_main_program().builder()


def parsed(inputs, nodes, opset=17):
    head = f'<ir_version: 10, opset_import: ["": {opset}]> net ({inputs}) => (y)'
    return onnx.parser.parse_model(f"{head} {{ {nodes} }}")


def convert(model):
    amp.transpile(model, None, verify=False, prefer="size")


def with_weights_outside(data_type, size):
    """Return a model with a weight in the file `w.bin`."""
    model = parsed("float[2] x", "y = Identity(w)")
    pathlib.Path("w.bin").write_bytes(b"1234")
    model.graph.initializer.append(
        onnx.TensorProto(name="w", data_type=data_type, dims=[size], data_location=onnx.TensorProto.EXTERNAL)
    )
    model.graph.initializer[-1].external_data.add(key="location", value="w.bin")
    return model


def with_attribute(attribute):
    """Return a model as `onnx_ir` holds it, its Softmax with this attribute."""
    model = ir.from_proto(parsed("float[2, 3] x", "y = Softmax(x)"))
    model.graph[0].attributes["axis"] = attribute
    return model


def with_a_broken_algorithm():
    model = onnx.parser.parse_model(MODEL)
    algorithm = model.training_info.add().algorithm
    algorithm.name = "step"
    algorithm.node.add(op_type="Identity", input=["w"], output=["new"])
    algorithm.output.add(name="new").type.tensor_type.elem_type = 99
    return model


def a_lost_node():
    data = x(-1, 3, -1, -1)
    loss = paddle.mean(F.interpolate(static.nn.conv2d(data, 3, 1), size=[4, 4], mode="bilinear"))
    static.append_backward(loss)
    model = data.program.model
    for waiting in waiting_nodes(model):
        waiting.replace_input_with(waiting.attributes.get_int("inputs"), data.value)
    expand_deferred(model, None)


def relu_of_a_custom_operator(shape=None):
    """Build on what an operator computes that only the model knows, its type declared or not."""
    model = parsed("float[3] x", "b = custom.Op(x) y = Identity(x)")
    model.opset_import.add(domain="custom", version=1)
    if shape is not None:
        model.graph.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, shape))
    program = static.from_onnx(model)
    return F.relu(program.var("b"))


def run_alone(model, *shapes):
    program = static.from_onnx(model)
    feed = {value.name: np.ones(shape, np.float32) for value, shape in zip(model.graph.input, shapes, strict=True)}
    static.Executor(CPUPlace()).run(program, feed=feed, fetch_list=["y"])


def lookahead(inner):
    paddle.incubate.LookAhead(inner).minimize(paddle.mean(static.nn.fc(x(4, 3), 2)))


class Frozen(paddle.optimizer.SGD):
    """An optimizer that updates nothing."""

    def _update(self, update):
        pass


def two_programs_at_once():
    a = static.create_parameter([2], "float32")
    b = elsewhere(static.create_parameter, [2], "float32")
    paddle.optimizer.SGD(0.1).apply_gradients([(a, a), (b, b)])


def run_with(given):
    data = static.data("x", [1])
    y = data + 1
    static.Executor(CPUPlace()).run(data.program, feed={"x": given}, fetch_list=[y])


# Words of the message -> what is done.
DONE = {
    # models
    "ends beyond its file": lambda: amp.load(with_weights_outside(onnx.TensorProto.FLOAT, 2)),
    "holds strings in external data": lambda: amp.load(with_weights_outside(onnx.TensorProto.STRING, 1)),
    "refers to one of a function, but is in none": lambda: convert(
        with_attribute(ir.RefAttr("axis", "outer", ir.AttributeType.INT))
    ),
    "has an attribute 'axis' without a value": lambda: convert(
        with_attribute(ir.Attr("axis", ir.AttributeType.INT, None))
    ),
    "its algorithm is malformed ONNX": lambda: convert(with_a_broken_algorithm()),
    # operators and their inputs
    "there is no operator ai.onnx::Swish at opset": lambda: builder().op("Swish", [x(2).value]),
    "the types of": lambda: F.conv2d(x(*IMAGE), x(4, 3, 3, 3, dtype="float64")),
    "'b' of unknown type of unknown rank: the types of its inputs must be known": relu_of_a_custom_operator,
    "the product is of [4, 3] and [4, 3], and 3 must be equal to 4": lambda: run_alone(
        parsed("float[4, 3] a, float[4, 3] b", "y = Gemm(a, b)"), (4, 3), (4, 3)
    ),
    "its window has 1 axes, and 'a' 2 beside batch": lambda: run_alone(
        parsed("float[1, 1, 4, 4] a", "y = MaxPool<kernel_shape = [2]>(a)"), (1, 1, 4, 4)
    ),
    "must be known here, got": lambda: shape_of(x(-1, 3).value),
    "stands for the gradient of a node that is no longer there": a_lost_node,
    # programs and variables
    "is of another program than the condition": lambda: static.nn.cond(
        x(1, dtype="bool"), lambda: elsewhere(x, 1), lambda: x(1)
    ),
    "got Python objects, such as": lambda: run_with([Decimal(1)]),
    "'as_complex': ONNX has no operators on complex numbers": lambda: x(3).as_complex,
    "no attribute 'DataParallel': there is no dynamic mode": lambda: paddle.DataParallel,
    # layers
    "the layer's input must have known sizes there": lambda: static.nn.prelu(x(4, -1, 8, 8), "element"),
    "this layer needs nn.functional.rectify": lambda: paddle.nn.TransformerEncoderLayer(8, 2, 8, activation="rectify"),
    "ConstantPad2D takes padding, value, data_format; got": lambda: paddle.nn.ConstantPad2D(1, speed=3),
    # optimizers
    "LookAhead: the inner optimizer does not update": lambda: lookahead(Frozen(0.1)),
    "is of another program than the other parameters": two_programs_at_once,
    "'StepDecay' object has no attribute 'speed'": lambda: paddle.optimizer.lr.StepDecay(0.1, 3).speed,
    # several processes
    "call distributed.init_parallel_env() first": paddle.distributed.DataParallelExecutor,
}


@pytest.mark.parametrize("words", DONE)
def test_what_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        static.program_guard(static.Program(), static.Program()),
        pytest.raises((errors.AmpError, AttributeError)) as caught,
    ):
        DONE[words]()
    assert words in str(caught.value)


def test_a_declared_type_is_enough_to_build_on():
    assert relu_of_a_custom_operator([3]).value.dtype == ir.DataType.FLOAT


def test_an_executor_of_several_processes_has_the_place_of_its_process(monkeypatch):
    monkeypatch.setattr(environment, "_joined", [types.SimpleNamespace(place=CPUPlace())])
    with pytest.raises(errors.OptionError, match="and init_parallel_env had"):
        paddle.distributed.DataParallelExecutor(CUDAPlace(0))


def test_a_kind_of_attribute_that_only_a_newer_onnx_knows(monkeypatch):
    monkeypatch.delitem(source_check._FIELDS, onnx.AttributeProto.INT)
    with pytest.raises(errors.ModelError, match="attribute 'axis' has the unknown type 2"):
        amp.load(parsed("float[2, 3] x", "y = Softmax<axis = 0>(x)"))


def refusing(*_args, **_named):
    """Fail as a system call does whose place is locked."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


# Arguments of the command -> what the system has as a fault or limit, as `setattr` takes it, and words of the message.
FAULTS = {
    "m.onnx --report report.txt": ((os, "access", lambda *_: False), "cannot be written there; choose another place"),
    ". --dry-run": ((os, "scandir", refusing), "this folder cannot be read: Permission denied"),
    "/dev/fd/1000000 -o out.onnx": ((), "standard input: cannot be read: No such file"),
    "wide.onnx -o -": ((saving, "_INLINE_LIMIT", 1), "its weights need a file of their own ("),
    "m.onnx -o -": ((outcome, "copy_to_stdout", refusing), "the model cannot be written: Permission denied"),
    "m.onnx --level O0 -o out.onnx": ((copy_files, "staging_folder", refusing), "cannot write there: Permission"),
}


@pytest.mark.parametrize("arguments", FAULTS)
def test_what_the_system_refuses(arguments, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(MODEL)
    onnx.save(model, "m.onnx")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((4, 3000), np.float32), "w"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3000
    onnx.save(model, "wide.onnx")
    fault, words = FAULTS[arguments]
    if fault:
        monkeypatch.setattr(*fault)
    assert main([*arguments.split(), "--no-verify"]) == 2
    assert words in capfd.readouterr().err
