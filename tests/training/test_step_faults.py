"""A training step has no 16-bit kernel that CUDA computes wrongly, or otherwise in every run."""

import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.cost.shapes import sizes_of
from amp_transpiler.graph.dtypes import LOW_DTYPES, low_format
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.program.assemble import assemble
from amp_transpiler.runtime.lowering import ready_to_open
from amp_transpiler.targets.arithmetic import arithmetic_of
from amp_transpiler.targets.kernel_conditions import holds
from amp_transpiler.update_passes.group_plan import CUDA_WORTH
from programs.ours import training_step
from programs.sizes import NETWORKS, feeds_of

# ROCm's mean loss is over 262144 elements; RAF's bias gradients are sums over 1024 rows.
STEPS = [
    ("rocm", "O2", "float16"),
    ("rocm", "raf", "float16"),
    pytest.param("raf", "O2", "float16", marks=pytest.mark.slow),
    pytest.param("raf", "O1", "bfloat16", marks=pytest.mark.slow),
    pytest.param("raf", "raf", "bfloat16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("network", "level", "dtype"), STEPS)
def test_a_step_has_no_faulty_kernel(network, level, dtype):
    step = training_step(NETWORKS[network], "fp32" if level == "raf" else level, dtype)
    program = amp.autocast(step.main, dtype=dtype) if level == "raf" else step.main
    shapes = {name: array.shape for name, array in feeds_of(NETWORKS[network]).items()}
    model = ready_to_open(assemble(program, [step.loss.name]), shapes, worth=CUDA_WORTH).model
    low = [node for node in all_nodes(model) if node.outputs[0].dtype in LOW_DTYPES]
    assert any(node.op_type == "MatMul" for node in low) or network == "rocm"
    assert not list(faults(model, low))


def faults(model, nodes):
    """The nodes that have a fault on an H100, with the fault."""
    shape_of = sizes_of(model).shape
    for node in nodes:
        row = arithmetic_of("H100", "1.31").row(
            operator_name(node),
            low_format(node.outputs[0].dtype).name,
            lambda name, node=node: holds(name, node, shape_of),
        )
        if row is not None and row.fault:
            yield node.name, row.fault


def test_the_test_finds_a_fault():
    text = """<ir_version: 10, opset_import: ["": 20]> g (float16[128,32] x) => (float16[1,32] y)
        <int64[1] axes = {0}> { y = ReduceSum (x, axes) }"""
    model = ir.from_onnx_text(text)
    assert [fault for _, fault in faults(model, model.graph)] == [
        "adds 16-bit partial sums in any order: another result in every run"
    ]
