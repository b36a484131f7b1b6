"""bfloat16 of models with operators that have another name by now: raised past the renaming, converted and compared."""

import numpy as np
import pytest

import amp_transpiler as amp
from tests.support import array, parse

K = array(4, 3, 3, 3, scale=0.3)
IMAGE = {"x": array(1, 3, 8, 8, seed=1)}
CONV = "a = Conv <pads = [1, 1, 1, 1]> (x, k)"
IN = "float[n, 3, h, w] x"
# name: (opset, inputs, body, further feeds)
CASES = {
    "Upsample 7": (7, IN, f"{CONV} u = Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (a) y = Relu (u)", {}),
    "Upsample 8, linear": (8, IN, f'{CONV} y = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]> (a)', {}),
    "Upsample 9": (9, IN, f"{CONV} u = Upsample (a, s) y = Relu (u)", {}),
    "Upsample 9, linear": (9, IN, f'{CONV} u = Upsample <mode = "linear"> (a, s) y = Relu (u)', {}),
    "Upsample 9, fed scales": (
        9,
        f"{IN}, float[4] t",
        f"{CONV} y = Upsample (a, t)",
        {"t": np.float32([1, 1, 2, 1.5])},
    ),
    "twice": (9, IN, f"{CONV} u = Upsample (a, s) y = Upsample (u, s)", {}),
    "Scatter 9": (9, IN, f"{CONV} y = Scatter <axis = 2> (a, i, v)", {}),
    "both": (10, IN, f"{CONV} b = Scatter <axis = 2> (a, i, v) y = Resize (b, s)", {}),
}
CONSTANTS = {
    "k": K,
    "s": np.float32([1, 1, 2, 2]),
    "i": np.zeros((1, 1, 1, 1), np.int64),
    "v": np.full((1, 1, 1, 1), 0.5, np.float32),
}


def model(opset, inputs, body):
    used = {
        name: value for name, value in CONSTANTS.items() if any(f"{name}{end}" in body for end in (")", ", v)", ","))
    }
    return parse(f"({inputs}) => (float[n, c, p, q] y) {{ {body} }}", opset=opset, **used)


@pytest.mark.parametrize("level", ["auto", "O2"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_converted_and_compared(case, level):
    opset, inputs, body, feeds = CASES[case]
    source = model(opset, inputs, body)
    report = amp.transpile(source, inputs={**IMAGE, **feeds}, dtype="bfloat16", level=level, prefer="size", cache=False)
    assert [row.precision for row in report.decisions if row.op == "Conv"] == ["bfloat16"]
    assert 0.0 < report.outputs["y"].relative < 0.02
    assert report.opset == (opset, 22)
    assert "Upsample" not in {row.op for row in report.decisions}


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("y = Upsample (x, s)", "bfloat16"),  # nothing here is worth another opset
        (f"{CONV} y = Upsample (a, s)", "float16"),  # which has kernels at the opset as it is
    ],
)
def test_others_keep_their_opset(body, dtype):
    report = amp.transpile(model(9, IN, body), inputs=IMAGE, dtype=dtype, cache=False)
    assert report.opset == (9, 9)


def test_what_cannot_be_carried_over_is_told():
    source = model(10, f"{IN}, float[4] t", f"{CONV} b = Scatter <axis = 2> (a, i, v) y = Resize (b, t)")
    feeds = {**IMAGE, "t": np.float32([1, 1, 2, 2])}
    report = amp.transpile(source, inputs=feeds, dtype="bfloat16", cache=False)
    assert any("opset kept at 10: node 'Resize_y' (Resize) cannot be carried" in note for note in report.notes)
