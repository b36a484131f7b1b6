"""Messages of `paddle` and of passes that no other test provokes: what a user does, and words of the message.

`tests/cli/provoked.tsv` names the test that provokes each of the others.
"""

import json
import pathlib

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper

import amp_transpiler as amp
from amp_transpiler import CPUPlace, errors, paddle, static
from amp_transpiler.paddle.static import onnx_import
from amp_transpiler.paddle.static.averages import ModelAverage
from amp_transpiler.paddle.static.tensor_file import write_tensors
from amp_transpiler.passes.lower_opset import LowerOpset
from amp_transpiler.training_passes import LowerBatchNorm, LowerDropout


def x(*shape, dtype="float32"):
    """Return an input of this shape; a name of its own for each shape."""
    return static.data("x" + "_".join(map(str, shape)), list(shape), dtype)


def network(features=4):
    """Return a program with two layers, its startup program, and the result."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        data = static.data("x", [-1, features])
        return main, startup, paddle.mean(static.nn.fc(static.nn.fc(data, features), features))


def trained(optimizer=None):
    """Return a program that trains, and a scope with its values."""
    main, startup, loss = network()
    with static.program_guard(main, startup):
        (optimizer or paddle.optimizer.SGD(0.1)).minimize(loss)
    return main, started(startup)


def started(startup):
    scope = static.Scope()
    static.Executor(CPUPlace()).run(startup, scope=scope)
    return scope


def parsed(body, *, result="float[2, 4] y", given="float[2, 4] x", imports='"": 17'):
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> net ({given}) => ({result}) {body}")


# ---- averages, exports and files ----


def averages_before_a_step():
    main, startup, loss = network()
    with static.program_guard(main, startup):
        paddle.optimizer.SGD(0.1).minimize(loss)
        with ModelAverage(0.15).apply(scope=static.Scope()):
            pass


def training_file(feed):
    main, scope = trained()
    static.save_training_program(main, "step", feed=feed, scope=scope)


def inference_file(path):
    data = x(1, 4)
    static.save_inference_model(path, [data], [data * 2])


def exported_again(body, **parts):
    program = amp.load(parsed(body, **parts))
    static.save_inference_model("again", ["x"], ["y"], program=program)


def parameters_without_their_state():
    main, scope = trained(paddle.optimizer.Momentum(0.1))
    static.save(main, "m.pdparams", scope=scope)
    pathlib.Path("m.pdopt").unlink()
    static.load(main, "m.pdparams", scope=static.Scope())


def values_of_another_program():
    main, startup, loss = network()
    data = static.serialize_persistables(["x"], [loss], program=main, scope=started(startup))
    static.deserialize_persistables(network()[0], data)


def adapters_of_another_pattern():
    for layer in (0, 2):
        main, startup, _ = network(features=8)
        weight = main.all_parameters()[layer].name
        static.add_lora(main, weight, rank=2, startup_program=startup)
        scope = started(startup)
        if layer == 0:
            static.save_lora(main, "adapters", scope)
    static.load_lora(main, "adapters", scope)


def saved_below_a_file(name):
    pathlib.Path("taken").write_text("a file", encoding="utf-8")
    main, scope = trained()
    static.save(main, f"taken/{name}", scope=scope)


def file_of_float8():
    head = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    pathlib.Path("w.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"\0\0")
    static.load_program_state("w.safetensors")


def trained_without_a_loss():
    weight = paddle.create_parameter([3], "float32")
    (gradient,) = static.gradients([x(2, 3) * weight], [weight])
    paddle.optimizer.SGD(0.1).apply_gradients([(weight, gradient)])
    main = static.default_main_program()
    static.Executor(CPUPlace()).train(main, [{"x2_3": np.ones((2, 3), np.float32)}], 1)


# ---- models ----


def nested_calls(depth):
    """Return a model whose functions call each other from bodies of control flow."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for index in range(depth):
        last = index + 1 == depth
        inner = helper.make_node("Neg" if last else f"f{index + 1}", ["x"], ["z"], domain="" if last else "f")
        branches = {
            "then_branch": helper.make_graph([inner], "a", [], [helper.make_tensor_value_info("z", 1, None)]),
            "else_branch": helper.make_graph(
                [helper.make_node("Abs", ["x"], ["w"])], "b", [], [helper.make_tensor_value_info("w", 1, None)]
            ),
        }
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Cast", ["m"], ["k"], to=onnx.TensorProto.BOOL),
            helper.make_node("If", ["k"], ["y"], **branches),
        ]
        functions.append(helper.make_function("f", f"f{index}", ["x"], ["y"], nodes, imports))
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="f")], "g", ends[:1], ends[1:])
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=8)


def number_given_as_a_graph():
    """Return a call whose attribute `slope` is a graph, where the function's operator wants a number."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    leaky = helper.make_node("LeakyRelu", ["x"], ["y"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function("f", "leaky", ["x"], ["y"], [leaky], imports[:1], attributes=["slope"])
    slope = helper.make_graph(
        [helper.make_node("Constant", [], ["z"], value_float=1.0)],
        "b",
        [],
        [helper.make_tensor_value_info("z", 1, [])],
    )
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    call = helper.make_node("leaky", ["x"], ["y"], domain="f", name="call", slope=slope)
    graph = helper.make_graph([call], "g", ends[:1], ends[1:])
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)


def newer_than_onnx_runtime(monkeypatch):
    monkeypatch.setattr(onnx_import, "CUDA", onnx_import.CUDA.of_release("1.17"))
    static.from_onnx(parsed("<int64 a = {1}> { y = CumProd(x, a) }", imports='"": 26'))


def model_that_imports_nothing():
    model = ir.from_proto(parsed("{ [turn] y = Neg(x) }"))
    del model.graph.opset_imports[""]
    LowerOpset(13)(model)


def norm_without_a_variance():
    inputs = "float[2, 4] x, float[4] scale, float[4] bias, float[4] mean"
    body = "{ [norm] y = BatchNormalization<training_mode=1>(x, scale, bias, mean) }"
    LowerBatchNorm()(ir.from_proto(parsed(body, given=inputs)))


def dropout_with_a_float_seed():
    model = ir.from_proto(parsed("{ y = Dropout(x) }", given="float[2, 4] x, float seed, int64 step"))
    LowerDropout(*model.graph.inputs[1:])(model)


def dropout_without_an_input():
    model = ir.from_proto(parsed("{ [drop] y = Dropout() }", given="int64 seed, int64 step"))
    LowerDropout(*model.graph.inputs)(model)


def dropout_with_a_ratio_that_is_fed():
    program = static.from_onnx(parsed("{ [drop] y = Dropout(x, r) }", given="float[2, 4] x, float r"))
    scope = started(static.default_startup_program())
    feed = {"x": np.ones((2, 4), np.float32), "r": np.float32(0.5)}
    static.Executor(CPUPlace()).run(program, feed=feed, fetch_list=program.outputs, scope=scope)


# Words of the message -> what is done.
DONE = {
    "ModelAverage.apply: no step was averaged": averages_before_a_step,
    "feed takes arrays and shapes, got ['many', 4]": lambda: training_file({"x": ["many", 4]}),
    "the program has no input 'q': its inputs are x, ": lambda: training_file({"q": [2, 4]}),
    "input 'x': got shape [2], expected [batch,4]": lambda: training_file({"x": [2]}),
    "fails onnx.checker: Unrecognized attribute: speed": lambda: exported_again("{ y = Neg<speed=3>(x) }"),
    "m.onnx: its folder cannot be made: Not a directory": lambda: inference_file("/dev/null/deeper/m"),
    "ONNX Runtime refuses the exported model: ": lambda: exported_again(
        "{ y = com.microsoft.Gelu<speed=3>(x) }", imports='"": 17, "com.microsoft": 1'
    ),
    "m.pdparams: has no value for ": parameters_without_their_state,
    "deserialize_persistables: there is no value for ": values_of_another_program,
    "it was saved with another pattern": adapters_of_another_pattern,
    "the model: cannot be trained at opset 8, and node": lambda: static.from_onnx(
        parsed(
            "<float[4] s = {1, 1, 1, 1}> { y = BatchNormalization<spatial=0>(x, s, s, s, s) }",
            imports='"": 8',
        )
    ),
    "m.pdopt: its folder cannot be made: File exists": lambda: saved_below_a_file("m.pdparams"),
    "BuildStrategy has no attribute '_hidden'": lambda: static.BuildStrategy()._hidden,
    "'w' is complex128, which a safetensors file cannot hold": lambda: write_tensors(
        pathlib.Path("w.safetensors"), {"w": np.ones(3, np.complex128)}, ["w"], {}
    ),
    "m.safetensors: its folder cannot be made: File exists": lambda: saved_below_a_file("m"),
    "'w' is of element type F8_E4M3, which programs do not have": file_of_float8,
    "train: the program names no loss: give loss=": trained_without_a_loss,
    "save_vars: the scope has no value for ": lambda: static.save_vars(None, "folder", network()[0]),
    "a shape consists of whole numbers, -1 and integer variables, got 'many'": lambda: paddle.check_shape([2, "many"]),
    "norm: p=3 of matrices needs singular values": lambda: paddle.norm(x(2, 3, 4), p=3, axis=[1, 2]),
    "concat: the axis must be a number, got": lambda: paddle.concat([x(2, 3)], x(1, dtype="int64")),
    "axis must be a whole number or a variable of a program, got 'rows'": lambda: paddle.concat([x(2, 3)], "rows"),
    "axis must be a whole number or a list of whole numbers, got ['rows']": lambda: paddle.unsqueeze(x(2, 3), ["rows"]),
    "a list of whole numbers or variables of a program, got ['many']": lambda: paddle.reshape(x(2, 3), ["many"]),
    "int64, [1]), 'many']": lambda: paddle.reshape(x(2, 3), [x(1, dtype="int64"), "many"]),
    "put more than 32 bodies of control flow into each other": lambda: amp.transpile(nested_calls(40), prefer="size"),
    "node 'call' gives a function the graph 'slope' as attribute": lambda: amp.transpile(
        number_given_as_a_graph(), prefer="size"
    ),
    "CausalConvWithState 'newer' is newer than ONNX Runtime": lambda: amp.transpile(
        parsed(
            "{ [newer] y, state = CausalConvWithState(x, w) }",
            given="float x, float[8, 1, 3] w",
            result="float y",
            imports='"": 27',
        ),
        prefer="size",
    ),
    "node 'turn' (Neg): the model does not import ONNX's own domain": model_that_imports_nothing,
    "node 'norm' (BatchNormalization) must have 5 inputs, got 4": norm_without_a_variance,
    "seed and step of dropout must be int64 scalars, got 'seed' of FLOAT": dropout_with_a_float_seed,
    "node 'drop' (Dropout) has no input": dropout_without_an_input,
    "node 'drop' (Dropout): its ratio 'r' must be a constant": dropout_with_a_ratio_that_is_fed,
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


def test_an_operator_newer_than_onnx_runtime_is_not_trained(monkeypatch):
    with pytest.raises(errors.ModelError, match="uses operators newer than opset 20, unknown to ONNX Runtime"):
        newer_than_onnx_runtime(monkeypatch)
