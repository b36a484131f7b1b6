"""The tensors stored in a model are found in every scope."""

import onnx.parser
import onnx_ir as ir

from amp_transpiler.graph.tensors import initializer_tensors, stored_tensors

MODEL = """
<ir_version: 10, opset_import: ["": 21]>
g (float[1] x, bool c) => (float[1] y) <float[1] outer = {1}>
{ y = If (c) <then_branch = t () => (float[1] p) <float[1] inner = {2}> { p = Add(x, inner) },
              else_branch = e () => (float[1] q) { k = Constant <value = float[1] {3}> () q = Add(outer, k) }> }
"""


def test_initializers_and_attributes_of_every_scope():
    model = ir.from_proto(onnx.parser.parse_model(MODEL))

    def values(tensors):
        return sorted(float(tensor.numpy()[0]) for tensor in tensors)

    assert values(initializer_tensors(model)) == [1.0, 2.0]
    assert values(stored_tensors(model)) == [1.0, 2.0, 3.0]
