"""The low formats, and which casts lose nothing, against numpy."""

import itertools

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, cast_is_lossless, low_format

NAMES = {
    "float16": FLOAT16,
    "FP16": FLOAT16,
    "Float16": FLOAT16,
    np.float16: FLOAT16,
    np.dtype("float16"): FLOAT16,
    ir.DataType.FLOAT16: FLOAT16,
    "bfloat16": BFLOAT16,
    "bf16": BFLOAT16,
    ml_dtypes.bfloat16: BFLOAT16,
    ir.DataType.BFLOAT16: BFLOAT16,
    FLOAT16: FLOAT16,
}


@pytest.mark.parametrize("given", NAMES, ids=str)
def test_a_format_by_any_of_its_names(given):
    assert low_format(given) is NAMES[given]


@pytest.mark.parametrize("given", ["int64", "float32", "float8", "", None, 16, np.float32])
def test_what_is_no_low_format_is_refused(given):
    with pytest.raises(OptionError, match="expected 'float16' or 'bfloat16'"):
        low_format(given)


@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16], ids=str)
def test_the_numbers_of_a_format_are_numpy_s(low):
    info = ml_dtypes.finfo(low.numpy)
    assert low.max == float(info.max)
    assert low.smallest == float(info.smallest_subnormal)
    assert low.digits == info.nmant + 1
    assert low.dtype.numpy() == low.numpy


FLOATS = [ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE]
INTEGERS = [
    ir.DataType.BOOL,
    *(ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16, 32, 64)),
]


def samples(dtype):
    """Numbers of a type that a narrower type would not hold."""
    kind = dtype.numpy()
    if dtype == ir.DataType.BOOL:
        return np.array([False, True])
    if dtype in FLOATS:
        info = ml_dtypes.finfo(kind)
        values = [0.0, 1.0, -1.0, float(info.max), float(info.smallest_subnormal), 1.0 + float(info.eps)]
        return np.array(values, np.float64).astype(kind)
    info = np.iinfo(kind)
    return np.array([0, 1, info.max, info.min, info.max - 1], kind)


@pytest.mark.parametrize(("source", "target"), list(itertools.product([*FLOATS, *INTEGERS], FLOATS)), ids=str)
def test_a_lossless_cast_gives_every_value_back(source, target):
    values = samples(source)
    with np.errstate(all="ignore"):
        through = values.astype(target.numpy()).astype(np.longdouble)
    exact = bool((through == values.astype(np.longdouble)).all())
    assert cast_is_lossless(source, target) == exact


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, ir.DataType.STRING], ids=str)
def test_identity_is_lossless_and_a_float_is_never_an_integer(dtype):
    assert cast_is_lossless(dtype, dtype)
    for source in FLOATS:
        assert not cast_is_lossless(source, ir.DataType.INT64)
