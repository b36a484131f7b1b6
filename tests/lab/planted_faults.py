"""The program of test_lints.py: small models, one with and one without each fault; it runs on stand-ins.

It prints one line of JSON: the name of a model -> its findings by lint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import onnx.parser

import lints
from amp_transpiler.runtime import opening
from programs import linted

MAXIMUM = "g (float[8, {n}] x) => (float[8, 1] y) {{ a = Constant<value_ints = [1]>() y = ReduceMax(x, a) }}"
SUM = "g (float[4, {n}, 3] x) => (float y) {{ a = Constant<value_ints = [1]>() s = ReduceSum(x, a) y = ReduceSum(s) }}"
CONVOLUTION = """g (float[2, 4, 8, 8] x) => (float[2, 4, 8, 8] z)
<float[4, 4, 1, 1] w = {1,2,3,4, 5,6,7,8, 9,8,7,6, 5,4,3,2}, float[4] b = {1,2,3,4}>
{ c = Conv(x, w, b) z = Relu(c) }"""
ON_CPU = "g (float[2, 4, 4] x) => (float[2] y) { r = Relu(x) y = Det(r) }"
PRODUCT = "g ({kind}[{m}, 1024] x, {kind}[1024, {n}] w) => ({kind}[{m}, {n}] y) {{ y = MatMul(x, w) }}"
OF_RANKS = "g (float[4, 8] x, float[{batch}8, 4] w) => (float[{batch}4, 4] y) {{ y = MatMul(x, w) }}"
DOT = "g (float[{b}, 1, {n}] x, float[{b}, {n}, 1] w) => (float[{b}, 1, 1] y) {{ y = MatMul(x, w) }}"
GRADIENT = """g (float[{c}, 1, {n}, {n}] x, {kind}[{m}, 1, {n}, {n}] g) => (float[{c}, {m}, 1, 1] y)
{{ w = {operator}(g) y = Conv(x, w) }}"""


def product(kind: str, n: int, m: int = 1024) -> str:
    return PRODUCT.format(kind=kind, m=m, n=n)


def gradient(n: int, operator: str = "Relu", kind: str = "float", c: int = 4, m: int = 4) -> str:
    return GRADIENT.format(n=n, c=c, m=m, operator=operator, kind=kind)


MODELS: Mapping[str, str] = {
    "maximum of 1025": MAXIMUM.format(n=1025),
    "maximum of 1024": MAXIMUM.format(n=1024),
    "sum of 1025 in the middle": SUM.format(n=1025),
    "sum of 1024 in the middle": SUM.format(n=1024),
    "fused bias": CONVOLUTION,
    "bias": CONVOLUTION,
    "node on the CPU": ON_CPU,
    "list of pointers": OF_RANKS.format(batch="3, "),
    "one product": OF_RANKS.format(batch=""),
    "float16 1020": product("float16", 1020),
    "bfloat16 1020": product("bfloat16", 1020),
    "float32 1020": product("float", 1020),
    "float32 1022": product("float", 1022),
    "float16 1016": product("float16", 1016),
    "bfloat16 1016": product("bfloat16", 1016),
    "small float16 1020": product("float16", 1020, m=64),
    "1999 dot products of 1025": DOT.format(b=1999, n=1025),
    "2000 dot products of 1025": DOT.format(b=2000, n=1025),
    "1999 dot products of 1024": DOT.format(b=1999, n=1024),
    "computed kernel of 12": gradient(12),
    "computed kernel of 12, many results": gradient(12, c=1024, m=512),
    "computed kernel of 11": gradient(11),
    "cast kernel of 12": gradient(12, "Cast<to = 1>", "float16"),
}
OPTIONS = {"fused bias": {"fuse_conv_bias": "1"}}


def main() -> None:
    opening.refuse_options = lambda *_: None  # the fault is planted by an option that sessions refuse
    reports = {}
    for name, body in MODELS.items():
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {body}')
        reports[name] = lints.findings(linted.model(model, provider_options=OPTIONS.get(name)))
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
