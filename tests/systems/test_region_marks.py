"""Regions bind every system: `fp16_guard` and `disable_amp` marks, in models, in programs and around loading."""

import contextlib
import logging

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import static
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.regions import region_of
from amp_transpiler.paddle.utils import unique_name
from tests import support
from tests.paddle import nets
from tests.support import array, parse


def transpiled(**options):
    return lambda model: amp.transpile(model, verify=False, **options, prefer="size").program


def cast(model):
    program = amp.load(model)
    amp.cast_model_to_fp16(program)
    return program


WAYS = {
    **{level: transpiled(level=level) for level in ("auto", "OD", "O1", "O2")},
    **{policy: transpiled(policy=policy) for policy in ("torch", "raf", "mxnet")},
    **{preset: transpiled(preset=preset, dtype="float16") for preset in ("mp1", "mp4", "default")},
    "mixed gemm": transpiled(mixed_ops="gemm", dtype="float16"),
    "autocast": amp.autocast,
    "convert_model": amp.convert_model,
    "cast_model_to_fp16": cast,
}


def products():
    return support.chain("MatMul ({}, w)", "MatMul ({}, w)", w=array(4, 4))


MARKS = {
    # marks: (kind, pattern); what the two products take
    "fp16_guard": ([("fp16_guard", "v1")], ["FLOAT16", "FLOAT"]),
    "disable_amp": ([("disable_amp", "v1")], ["FLOAT", "FLOAT16"]),
    "disable_amp in a guard": ([("fp16_guard", "."), ("disable_amp", "v1")], ["FLOAT", "FLOAT16"]),
}


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("way", WAYS)
def test_marks_bind_every_way(way, marks):
    model, (regions, expected) = products(), MARKS[marks]
    for kind, pattern in regions:
        amp.mark_region(model, kind, nodes=pattern)
    assert support.dtypes(WAYS[way](model), "MatMul") == expected


def test_a_guard_of_the_command_counts_besides_those_of_the_file():
    report = amp.transpile(products(), policy="torch", guard="v1", verify=False)
    assert support.decisions(report) == {"v1": "low", "y": "high"}


# ---- what a system refuses or changes besides ----


def test_raf_asks_no_rule_for_an_operator_outside_the_guard():
    model = parse(
        "(float[4,4] x) => (float[4,4] y) <float[4,4] h> { [custom] h = my.ops.Scale (x) [product] y = MatMul (h, w) }",
        w=array(4, 4),
        domains=(("my.ops", 1),),
    )
    with pytest.raises(OptionError, match="no casting rule"):
        amp.autocast(model)
    amp.mark_region(model, "fp16_guard", nodes="product")
    assert support.dtypes(amp.autocast(model), "MatMul") == ["FLOAT16"]


def test_torch_allows_a_banned_loss_outside_the_guard():
    def program(*, outside):
        main = static.Program()
        with static.program_guard(main, static.Program()):
            x, label = static.data("x", [4, 4]), static.data("label", [4, 4])
            with amp.fp16_guard():
                scores = F.sigmoid(x @ x)
            with contextlib.nullcontext() if outside else amp.fp16_guard():
                loss = F.binary_cross_entropy(scores, label)
        main.outputs = [loss.name]
        return main

    assert support.dtypes(WAYS["torch"](program(outside=True)), "MatMul") == ["FLOAT16"]
    with pytest.raises(OptionError, match="unsafe to autocast"):
        WAYS["torch"](program(outside=False))


def test_a_mixed_softmax_outside_the_guard_is_not_rounded():
    graph = (
        "(float[4,4] x) => (float[4,4] y) { [soft] s = Softmax (x) [twice] t = Add (s, s) [product] y = MatMul (t, w) }"
    )
    model = parse(graph, w=array(4, 4))
    amp.mark_region(model, "fp16_guard", nodes="product")
    program = amp.transpile(model, mixed_ops="softmax,gemm", dtype="float16", verify=False).program
    [soft] = [node for node in program.model.graph if node.op_type == "Softmax"]
    assert [reader.op_type for reader, _ in soft.outputs[0].uses()] == ["Add", "Add"]


def test_mxnet_warns_of_no_target_operator_outside_the_guard(caplog):
    model = products()
    amp.mark_region(model, "fp16_guard", nodes="v1")
    amp.convert_model(model)
    assert "stays as written" not in caplog.text


# ---- in programs that are built ----


def convolutions(inside, **decorated):
    """The blog's training step: only forward pass and loss are `inside`; the optimizer is outside."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        inputs, targets = static.data("inputs", [1, 2, 4, 4]), static.data("targets", [1, 1, 4, 4])
        with inside:
            hidden = F.relu(static.nn.conv2d(inputs, 4, 1))
            outputs = static.nn.conv2d(hidden, 1, 1)
            loss = F.mse_loss(outputs, targets)
        amp.decorate(amp.optimizer.Adam(0.001), scaler="torch", **decorated).minimize(loss, startup)
    return main, startup, loss


def precisions(program, operator="Conv"):
    return {nets.makes(node)[0] for node in nets.nodes(program, operator, "forward")}


POLICIES = ("torch", "raf", "mxnet")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("region", "options", "expected"),
    [
        (amp.fp16_guard, {}, "FLOAT16"),
        (amp.fp16_guard, {"use_amp_guard": True}, "FLOAT16"),
        (amp.disable_amp, {}, "FLOAT"),
    ],
)
def test_a_region_around_forward_pass_and_loss(policy, region, options, expected):
    main, startup, loss = convolutions(region(), policy=policy, **options)
    assert precisions(main) == {expected}
    executor, scope = static.Executor(amp.CPUPlace()), static.Scope()
    executor.run(startup, scope=scope)
    feed = {"inputs": array(1, 2, 4, 4), "targets": array(1, 1, 4, 4, seed=1)}
    losses = [executor.run(main, feed, [loss], scope=scope)[0].item() for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_built_outside_the_region_stays_float32(policy):
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        with amp.fp16_guard():
            inner = static.nn.fc(x, 4, bias_attr=False)
        loss = F.mse_loss(static.nn.fc(inner, 4, bias_attr=False), x)
        wrapped = amp.decorate(amp.optimizer.SGD(0.1), policy=policy)
        wrapped.minimize(loss, startup)
    assert [nets.makes(node)[0] for node in nets.nodes(main, "MatMul", "forward")] == ["FLOAT16", "FLOAT"]


OFF = {
    # options of decorate, where the program has regions
    "Paddle's O1": ({}, {"FLOAT16"}),
    "Paddle's O2, second overload": ({"level": "O2"}, {"FLOAT16"}),
    "torch, off": ({"policy": "torch", "use_amp_guard": False}, {"FLOAT16"}),
    "Paddle's O2 with its guard": ({"level": "O2", "use_amp_guard": True}, {"FLOAT", "FLOAT16"}),
}


@pytest.mark.parametrize("name", OFF)
def test_when_the_guard_counts(name):
    options, expected = OFF[name]
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        with amp.fp16_guard():
            inner = static.nn.fc(x, 4, bias_attr=False)
        loss = F.mse_loss(static.nn.fc(inner, 4, bias_attr=False), x)
        amp.decorate(amp.optimizer.SGD(0.1), **options).minimize(loss, startup)
    assert precisions(main, "MatMul") == expected


def test_a_guard_below_o2_is_said_to_have_no_effect(caplog):
    amp.decorate(amp.optimizer.SGD(0.1), use_fp16_guard=True)
    assert "level O1: the guard has no effect" in caplog.text


# ---- a guard without a region ----

UNGUARDED = {
    "pure": {"use_pure_fp16": True},
    "pure bfloat16": {"use_pure_fp16": True, "use_bf16": True},
    "second overload": {"level": "O2", "use_amp_guard": True},
    **{policy: {"policy": policy, "use_amp_guard": True} for policy in POLICIES},
}


@pytest.mark.parametrize("name", UNGUARDED)
def test_a_built_program_without_a_region_stays_float32_with_a_warning(name, caplog):
    """As in Paddle, where an operator outside of every region is kept."""
    with caplog.at_level(logging.WARNING, logger="amp_transpiler"):
        main, _, _ = convolutions(unique_name.guard(), **UNGUARDED[name])
    assert precisions(main) == {"FLOAT"}
    assert "nothing was built inside fp16_guard" in caplog.text
    assert "use_fp16_guard=False" in caplog.text


def test_so_does_cast_model_to_fp16(caplog):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [4, 4])
        main.outputs = [(x @ x).name]
    version = main.version
    assert amp.cast_model_to_fp16(main) == set()
    assert support.dtypes(main, "MatMul") == ["FLOAT"]
    assert main.version == version
    assert "nothing was built inside fp16_guard" in caplog.text
    amp.cast_model_to_fp16(main, use_fp16_guard=False)
    assert support.dtypes(main, "MatMul") == ["FLOAT16"]


def test_a_loaded_model_without_a_region_is_guarded_everywhere(caplog):
    startup = static.Program()
    with caplog.at_level(logging.INFO, logger="amp_transpiler"), unique_name.guard():
        main = static.from_onnx(parse("(float[n,4] x) => (float[n,4] y) { y = MatMul (x, w) }", w=array(4, 4)), startup)
        with static.program_guard(main, startup):
            loss = F.mse_loss(main.var("y"), main.var("x"))
            amp.decorate(amp.optimizer.SGD(0.1), use_pure_fp16=True).minimize(loss, startup)
    assert precisions(main, "MatMul") == {"FLOAT16"}
    assert "guarded everywhere" in caplog.text


# ---- loading inside a region ----

WITH_FUNCTION = """<ir_version: 10, opset_import: ["": 21, "local": 1]>
g (float[2,4] x, bool c) => (float[2,4] y) {
    [product] a = MatMul (x, x1)
    [branch] b = If (c) <
        then_branch = t () => (float[2,4] p) { [inner] p = Exp (a) },
        else_branch = e () => (float[2,4] q) { [other] q = Log (a) }
    >
    [call] y = local.twice (b)
}
<domain: "local", opset_import: ["": 21]>
twice (u) => (v) { [in_function] v = Add (u, u) }
"""


@pytest.mark.parametrize("kind", ["proto", "file", "from_onnx"])
@pytest.mark.parametrize("region", [amp.fp16_guard, amp.disable_amp])
def test_loading_inside_a_region_marks_what_it_loads(kind, region, tmp_path):
    source = parse("(float[n,4] x) => (float[n,4] y) { h = MatMul (x, w) y = Relu (h) }", w=array(4, 4))
    onnx.save(source, tmp_path / "model.onnx")
    with region():
        if kind == "from_onnx":
            program = static.from_onnx(source, static.Program())
        else:
            program = amp.load(source if kind == "proto" else tmp_path / "model.onnx")
    assert {name for node in program.model.graph for name in region_of(node)} == {region.__name__}
    assert len([node for node in program.model.graph if region_of(node)]) == 2


def test_every_scope_is_marked_once():
    model = onnx.parser.parse_model(WITH_FUNCTION.replace("x1", "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(array(4, 4), "w"))
    with amp.fp16_guard(), amp.disable_amp():
        program = static.from_onnx(amp.load(model), static.Program())
    outside = amp.load(program)
    assert outside is program
    marks = {node.metadata_props.get("amp_transpiler.region") for node in program.model.graph.all_nodes()}
    assert marks == {"fp16_guard;disable_amp"}
    names = {node.name for node in amp.load(model).model.graph.all_nodes() if region_of(node)}
    assert not names, "the message itself is unchanged"


def test_a_model_loaded_in_a_guard_is_low_and_what_is_built_on_it_is_not():
    startup = static.Program()
    with unique_name.guard():
        with amp.fp16_guard():
            main = static.from_onnx(
                parse("(float[n,4] x) => (float[n,4] y) { y = MatMul (x, w) }", w=array(4, 4)), startup
            )
        with static.program_guard(main, startup):
            loss = F.mse_loss(static.nn.fc(main.var("y"), 4, bias_attr=False), main.var("x"))
            amp.decorate(amp.optimizer.Adam(0.01), use_pure_fp16=True).minimize(loss, startup)
    assert [nets.makes(node)[0] for node in nets.nodes(main, "MatMul", "forward")] == ["FLOAT16", "FLOAT"]


def test_an_inference_pass_inside_a_region():
    """The blog's inference: only the forward pass is wrapped."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [2, 4, 4])
        with amp.fp16_guard():
            a = x @ x
        main.outputs = [(a @ x).name]
    report = amp.transpile(main.to_onnx(), policy="torch", inputs={"x": np.ones((2, 4, 4), np.float32)})
    assert sorted(support.decisions(report).values()) == ["high", "low"]


@pytest.mark.parametrize(("outer", "inner"), [("disable_amp", "fp16_guard"), ("fp16_guard", "disable_amp")])
def test_the_regions_of_a_call_and_of_the_function_both_count(outer, inner):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "local": 1]>
    g (float[4,4] x) => (float[4,4] y) { [call] a = local.square (x) [last] y = MatMul (a, a) }
    <domain: "local", opset_import: ["": 21]> square (u) => (v) { [in_function] v = MatMul (u, u) }""")
    amp.mark_region(model, outer, nodes="call")
    amp.mark_region(model, inner, nodes="in_function")
    assert support.dtypes(amp.transpile(model, level="O2", verify=False).program, "MatMul")[0] == "FLOAT"
