"""Float16 and bfloat16 values are found in any scope of a program."""

import onnx.parser
import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.program.low_values import has_low_values


def model(body, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {body}')


@pytest.mark.parametrize(
    ("body", "low"),
    [
        ("g (float[N] x) => (float[N] y) { y = Relu(x) }", False),
        ("g (float[N] x) => (int64[N] y) { y = Cast <to = 7> (x) }", False),
        ("g (float[N] x) => (float[N] y) { a = Cast <to = 10> (x) y = Cast <to = 1> (a) }", True),
        ("g (float[N] x) => (float[N] y) <float16[1] w = {15360}> { a = Cast <to = 1> (w) y = Add(x, a) }", True),
        (
            "g (float[N] x) => (float[N] y) { a = Constant <value = float16 {1}> () b = CastLike(a, x) y = Add(x, b) }",
            True,
        ),
        (
            """g (float[N] x, bool c) => (float[N] y)
               { y = If (c) <then_branch = t () => (float[N] p) { h = Cast <to = 16> (x) p = Cast <to = 1> (h) },
                             else_branch = e () => (float[N] q) { q = Identity(x) }> }""",
            True,
        ),
    ],
    ids=["float32", "integers", "cast", "initializer", "constant", "body"],
)
def test_low_values_are_found_anywhere(body, low):
    assert has_low_values(load(model(body))) is low
