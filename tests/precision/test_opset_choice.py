"""Which opset a program goes to: more computing nodes low, and no kernel lost."""

import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.ops.limits import NEWEST_OPSET
from amp_transpiler.precision.constraints import Constraints
from amp_transpiler.precision.opset_choice import choose_opset
from amp_transpiler.targets import TARGETS
from tests import support
from tests.support import array, parse

K = array(2, 2, 1, 1)
IMAGE = "(float[1,2,4,4] x) => (float[A,B,C,D] y)"
MATRIX = "(float[2,4] x) => (float[2,4] y)"
FORMATS = {"float16": FLOAT16, "bfloat16": BFLOAT16}

# name: (graph, opset, format, target, equivalents, opset chosen, operators to rewrite)
CHOICES = {
    "nothing needs more": (f"{MATRIX} {{ y = MatMul (x, w) }}", 13, "float16", "cuda", (), 13, []),
    "float16 Conv needs nothing": (f"{IMAGE} {{ y = Conv (x, k) }}", 11, "float16", "cuda", (), 11, []),
    "bfloat16 Conv needs 22": (f"{IMAGE} {{ y = Conv (x, k) }}", 18, "bfloat16", "cuda", (), 22, []),
    "bfloat16 Conv that is there already": (f"{IMAGE} {{ y = Conv (x, k) }}", 22, "bfloat16", "cuda", (), 22, []),
    "bfloat16 MatMul needs 13": (f"{MATRIX} {{ y = MatMul (x, w) }}", 11, "bfloat16", "cuda", (), 13, []),
    "bfloat16 on the CPU gains nothing": (f"{IMAGE} {{ y = Conv (x, k) }}", 18, "bfloat16", "cpu", (), 18, []),
    "MaxPool would lose its kernel": (
        f"{IMAGE} {{ h = Conv (x, k) y = MaxPool <kernel_shape = [1,1]> (h) }}",
        18,
        "bfloat16",
        "cuda",
        (),
        18,
        [],
    ),
    "MaxPool in other words": (
        f"{IMAGE} {{ h = Conv (x, k) y = MaxPool <kernel_shape = [1,1]> (h) }}",
        18,
        "bfloat16",
        "cuda",
        ("MaxPool",),
        22,
        ["MaxPool"],
    ),
    "MaxPool alone is no reason": (
        f"{IMAGE} {{ y = MaxPool <kernel_shape = [1,1]> (x) }}",
        12,
        "bfloat16",
        "cuda",
        ("MaxPool",),
        12,
        [],
    ),
    "a kernel that only the CPU had": (
        f"{IMAGE} {{ h = Conv (x, k) y = GlobalLpPool (h) }}",
        18,
        "bfloat16",
        "cuda",
        (),
        18,
        [],
    ),
    "a kernel that only the CPU had, with integers out": (
        """(float[1,2,4,4] x) => (int32[1,3] y) { h = Conv (x, k) f = Flatten (h) y = Multinomial <sample_size = 3>
            (f) }""",
        18,
        "bfloat16",
        "cuda",
        (),
        18,
        [],
    ),
    "a kernel that neither had is none to lose": (
        f"{IMAGE} {{ h = Conv (x, k) y = my.domain.Any (h) }}",
        18,
        "bfloat16",
        "cuda",
        (),
        22,
        [],
    ),
    "TensorRT goes by schemas": (
        f"{IMAGE} {{ h = Conv (x, k) y = MaxPool <kernel_shape = [1,1]> (h) }}",
        18,
        "bfloat16",
        "tensorrt",
        (),
        22,
        [],
    ),
    "a Conv in a body counts": (
        """(float[1,2,4,4] x, bool c) => (float[1,2,4,4] y) {
            y = If (c) <then_branch = t () => (float[1,2,4,4] p) { p = Conv (x, k) },
                        else_branch = e () => (float[1,2,4,4] q) { q = Relu (x) }>
        }""",
        18,
        "bfloat16",
        "cuda",
        (),
        22,
        [],
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_opset_chosen(name):
    text, opset, dtype, target, equivalents, expected, rewritten = CHOICES[name]
    model = ir.from_proto(parse(text, opset=opset, imports=', "my.domain": 1', w=array(4, 4), k=K))
    propagate_types(model)
    target_opset = choose_opset(
        model, Constraints(model, TARGETS[target], FORMATS[dtype]), lambda node: node.op_type in equivalents
    )
    assert target_opset.opset == expected
    assert [node.op_type for node in target_opset.rewrite] == rewritten
    assert bool(target_opset.reason) == (expected != opset)
    if target_opset.reason:
        assert target_opset.reason.startswith(f"opset {opset} -> {expected}: ")


def test_the_choice_is_reported():
    model = parse(f"{IMAGE} {{ y = Conv (x, k) }}", k=K)
    report = amp.transpile(model, level="O2", dtype="bfloat16", verify=False)
    assert report.opset == (18, 22)
    assert any(note.startswith("opset 18 -> 22: 1 instead of 0 of 1 computing nodes") for note in report.notes)


def test_level_o0_raises_nothing():
    model = parse(f"{IMAGE} {{ y = Conv (x, k) }}", k=K)
    assert amp.transpile(model, level="O0", dtype="bfloat16", verify=False).opset == (18, 18)


@pytest.mark.parametrize(
    "body", ["y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (h)", "d = Dropout (h) y = Relu (d)"]
)
def test_what_loses_its_kernel_is_written_otherwise_and_right(body):
    model = parse(f"{IMAGE} {{ h = Conv (x, k) {body} }}", k=K)
    report = support.convert(model, {"x": array(1, 2, 4, 4)}, "O2", "bfloat16")
    assert report.opset == (18, 22)
    assert not {"MaxPool", "Dropout"} & {node.op_type for node in support.nodes(report.program)}


def test_the_newest_opset_is_what_onnx_runtime_reads():
    assert NEWEST_OPSET == 26
    support.open_ort(parse("(float[2] x) => (float[2] y) { y = Relu (x) }", opset=26))
    with pytest.raises(Exception, match="opset"):
        support.open_ort(parse("(float[2] x) => (float[2] y) { y = Relu (x) }", opset=27))
