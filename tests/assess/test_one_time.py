"""A time that is told in several places is one figure: the whole's, and the chosen point's of the frontier."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.report.as_html import page
from amp_transpiler.report.wording import human_time
from tests.support import array, chain, parse

WIDE = np.eye(256, dtype=np.float32)

# model, options
CASES = {
    "one operator": (chain("Relu ({})"), {}),
    "a product that pays": (chain("MatMul ({}, w)", "Relu ({})", shape="float[N, 256]", w=WIDE), {"dims": {"N": 9999}}),
    "a host that runs ahead": (
        chain("MatMul ({}, w)", *["Exp ({})", "Neg ({})", "Sigmoid ({})"] * 3, shape="float[N, 256]", w=WIDE),
        {"dims": {"N": 9999}, "prefer": "time"},
    ),
    "casts around a node": (
        chain("MatMul ({}, w)", "Exp ({})", "MatMul ({}, w)", shape="float[4, 256]", w=WIDE),
        {"prefer": "size", "disable_amp": "v2"},
    ),
    "low by force": (
        chain("Exp ({})", "MatMul ({}, w)", "Softmax ({})", shape="float[4, 256]", w=WIDE),
        {"include": "."},
    ),
    "low inputs and outputs": (chain("MatMul ({}, w)", shape="float[4, 256]", w=WIDE), {"keep_io_types": False}),
    "what is fused": (
        parse(
            "(float[1,3,32,32] x) => (float[1,8,32,32] y) { a = Conv <pads=[1,1,1,1]> (x, w, b)  y = Relu(a) }",
            w=array(8, 3, 3, 3),
            b=array(8),
        ),
        {"prefer": "size"},
    ),
    "bodies": (
        parse(
            """(float[2,4] x, bool c) => (float[2,4] y)
            {
                a = MatMul(x, w)
                y = If (c) <then_branch = t () => (float[2,4] p) { p = Exp(a) },
                            else_branch = e () => (float[2,4] q) { q = Abs(a) }>
            }""",
            w=array(4, 4),
        ),
        {"prefer": "size"},
    ),
    "another device": (chain("Exp ({})", "Neg ({})"), {"device": "T4", "prefer": "size"}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_chosen_point_has_the_time_of_the_result(case):
    model, options = CASES[case]
    report = amp.transpile(model, frontier=True, cache=False, **options)
    before, after = report.predicted_ms
    (chosen,) = [point for point in report.frontier if point.chosen]
    assert chosen.milliseconds == after
    assert chosen.casts == report.casts
    assert chosen.low_share == pytest.approx(report.low_nodes / (report.low_nodes + report.high_nodes))
    exact = [point.milliseconds for point in report.frontier if point.low_share == 0 and point.casts == 0]
    assert exact in ([], [before])  # nodes that are low by force are so at every point
    assert f">{human_time(after)}</td>" in page([(report, None)])


def test_without_prices_no_point_has_a_time():
    report = amp.transpile(chain("Exp ({})", "Neg ({})"), frontier=True, target="cpu", cache=False)
    assert [point.milliseconds for point in report.frontier] == [None] * len(report.frontier)
    assert report.predicted_ms == (None, None)
