"""The effect of rounding on a constant, and its conversion."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import AmpError
from amp_transpiler.graph.constants import constant_range, convert_array, low_tensor, read
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from tests.support import array

F = np.float32
# name: (values, largest, overflows, loses much, stands for infinity) in float16
RANGES = {
    "ordinary": ([1.0, -2.0, 0.5], 2.0, False, False, False),
    "empty": ([], 0.0, False, False, False),
    "zeros": ([0.0, -0.0], 0.0, False, False, False),
    "largest that fits": ([65504.0], 65504.0, False, False, False),
    "rounds down to the largest": ([65519.0], 65519.0, False, False, False),
    "rounds up to infinity": ([65520.0], 65520.0, True, False, False),
    "below 1e4 and above": ([20000.0], 20000.0, False, False, False),
    "mask": ([0.0, -1e9], 1e9, True, False, True),
    "mask of float32's lowest": ([0.0, -3.4028235e38], 3.4028235e38, True, False, True),
    "weights beyond": ([1.0, 70000.0, -1e9], 1e9, True, False, False),
    "infinity does not overflow": ([np.inf, 1.0], 1.0, False, False, False),
    "NaN neither": ([np.nan, 1.0], 1.0, False, False, False),
    "flushes to zero": ([1e-9, -2e-9], 2e-9, False, True, False),
    "loses digits": ([1e-7, 2e-7, 3.3e-7], 3.3e-7, False, True, False),
    "small beside large matters not": ([1e-9, 1.0], 1.0, False, False, False),
}


@pytest.mark.parametrize("name", RANGES)
def test_the_range_of_a_constant(name):
    values, largest, overflows, loses, infinity = RANGES[name]
    limits = constant_range(ir.tensor(np.array(values, F)), FLOAT16)
    assert limits.largest == pytest.approx(largest, rel=1e-6)
    assert (limits.overflows, limits.loss > 0.01, limits.stands_for_infinity) == (overflows, loses, infinity)


def test_a_constant_of_many_blocks_is_measured_to_its_end():
    values = np.zeros((1 << 20) + 3, F)
    values[-1] = 1e5
    limits = constant_range(ir.tensor(values), FLOAT16)
    assert (limits.largest, limits.overflows) == (1e5, True)


@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16], ids=str)
def test_conversion_rounds_to_nearest_even_like_numpy(low):
    values = np.concatenate([array(1000, seed=3, scale=10.0**exponent) for exponent in range(-4, 4)])
    np.testing.assert_array_equal(convert_array(values, low), values.astype(low.numpy))


TINY = np.concatenate([array(9000, seed=5, scale=2.0**exponent) for exponent in (-149, -30, -25, -24, -20, -15, -14)])
BESIDE_TINY = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 7.0, 65519.0, 2.0**-14, 1023.5 * 2.0**-24, -(2.0**-25)], F)


@pytest.mark.parametrize("shape", [(-1,), (10, -1), (-1, 2, 5)], ids=str)
def test_many_tiny_numbers_are_rounded_like_few(shape):
    values = np.concatenate([TINY, BESIDE_TINY]).reshape(shape)
    for each in (values, values.T, np.abs(values)):
        np.testing.assert_array_equal(
            convert_array(each, FLOAT16).view(np.uint16), each.astype(np.float16).view(np.uint16)
        )


CONVERTED = {
    # values, and what they are in float16
    "ties go to even": ([2049.0, 2051.0], [2048.0, 2052.0]),
    "overflow is capped, the sign kept": ([1e9, -1e9, 65520.0], [65504.0, -65504.0, 65504.0]),
    "infinities and NaN stay": ([np.inf, -np.inf, np.nan], [np.inf, -np.inf, np.nan]),
    "a lone epsilon does not vanish": ([1e-12], [2.0**-24]),
    "a lone negative epsilon keeps its sign": ([-1e-12], [-(2.0**-24)]),
    "a lone zero is zero": ([0.0], [0.0]),
    "one of several may vanish": ([1e-12, 1.0], [0.0, 1.0]),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_conversion_at_the_ends_of_the_range(name):
    values, expected = CONVERTED[name]
    rounded = convert_array(np.array(values, F), FLOAT16)
    np.testing.assert_array_equal(rounded, np.array(expected, np.float16))


def test_bfloat16_has_float32_s_range():
    values = np.array([1e30, -3e38, 1e-30, 3.4028235e38], F)
    rounded = convert_array(values, BFLOAT16)
    np.testing.assert_array_equal(rounded[:3], values[:3].astype(ml_dtypes.bfloat16))
    assert rounded[3] == ml_dtypes.finfo(ml_dtypes.bfloat16).max


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (200, 200)])
@pytest.mark.parametrize("low", [FLOAT16, BFLOAT16], ids=str)
def test_a_low_tensor_has_the_type_shape_and_bytes_it_declares(shape, low):
    values = array(*shape)
    tensor = low_tensor(ir.tensor(values, name="w"), low, "w_low")
    assert (tensor.name, tensor.dtype, tuple(tensor.shape)) == ("w_low", low.dtype, shape)
    assert tensor.numpy().dtype == low.numpy
    assert tensor.numpy().shape == shape
    np.testing.assert_array_equal(tensor.numpy(), convert_array(values, low))
    assert tensor.tobytes() == convert_array(values, low).tobytes()
    assert tensor.nbytes == len(tensor.tobytes())


def test_large_constants_wait_until_they_are_read():
    class Counted(ir.Tensor):
        reads = 0

        def numpy(self):
            Counted.reads += 1
            return super().numpy()

    tensor = low_tensor(Counted(array(200, 200)), FLOAT16, "w")
    assert Counted.reads == 0
    tensor.numpy()
    tensor.numpy()
    assert Counted.reads == 2, "no copy is kept"


def test_a_weight_that_is_not_of_its_declared_shape_is_an_error():
    """The surplus would spill into the next tensor."""
    lying = ir.LazyTensor(
        lambda: ir.tensor(array(10, 10)), dtype=ir.DataType.FLOAT, shape=ir.Shape([200, 200]), name="w"
    )
    tensor = low_tensor(lying, FLOAT16, "w")
    with pytest.raises(AmpError, match=r"weight 'w' .* declared"):
        tensor.numpy()


def test_reading_an_external_weight_lets_its_memory_map_go(tmp_path):
    values = array(100, 100)
    (tmp_path / "w.bin").write_bytes(values.tobytes())
    tensor = ir.ExternalTensor(
        "w.bin", 0, values.nbytes, ir.DataType.FLOAT, shape=ir.Shape([100, 100]), name="w", base_dir=tmp_path
    )
    assert read(tensor, lambda whole: (float(whole.sum()), whole.flags.writeable)) == (float(values.sum()), False)
    assert tensor.raw is None
