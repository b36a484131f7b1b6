"""Sessions: element types that numpy does not have, emulation, external data, feeds that do not fit."""

import gc
import tempfile

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from amp_transpiler.errors import InputError
from amp_transpiler.files.loading import load
from amp_transpiler.runtime import openable as openable_module, ort
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.session import Session
from amp_transpiler.runtime.values import from_ort, to_ort
from tests.support import doubling_matmul

BF16 = ml_dtypes.bfloat16


def model(body, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {body}')


def on_cpu(body, emulate=True):
    return Session(model(body), CPUPlace(), emulate=emulate)


SQUARE_OVER_SELF = "g (float16[N] x) => (float16[N] y) { a = Mul(x, x) y = Div(a, x) }"


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.0, -2.5], [3.0e38, 0.0]], BF16),
        np.array(7.0, BF16),
        np.zeros((0, 3), BF16),
        np.arange(12, dtype=np.float32).reshape(3, 4).T.astype(BF16).T,  # not contiguous in C's order
        np.array([1.0, -0.5], ml_dtypes.float8_e4m3fn),
        np.array([1.0, -0.5], ml_dtypes.float8_e5m2),
        np.array([-8, 7, 3], ml_dtypes.int4),  # two in a byte
        np.array([[1.0, 2.0]], np.float16),
        np.array(5),
    ],
    ids=lambda array: f"{array.dtype.name}{list(array.shape)}",
)
def test_arrays_go_in_and_come_back_unchanged(array):
    back = from_ort(to_ort(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back.astype(np.float64), array.astype(np.float64))


@pytest.mark.slow
def test_an_array_that_comes_out_outlives_its_session():
    session = on_cpu("g (bfloat16[N] x) => (bfloat16[N] y) { y = Identity(x) }", emulate=False)
    x = np.arange(100_000).astype(BF16)
    [y] = session.run({"x": x})
    del session
    gc.collect()
    assert np.array_equal(y, x)


def test_bfloat16_outputs_mix_with_all_others():
    session = on_cpu(
        """g (bfloat16[N] x, float[N] z) => (seq(float[N]) s, bfloat16[N] y, float[N] w)
           { y = Identity(x) w = Neg(z) s = SequenceConstruct(z, w) }""",
        emulate=False,
    )
    feeds = {"x": np.array([1.5], BF16), "z": np.array([2.0], np.float32)}
    sequence, y, w = session.run(feeds)
    assert [float(a[0]) for a in sequence] == [2.0, -2.0]
    assert (y.dtype, float(y[0])) == (BF16, 1.5)
    assert float(w[0]) == -2.0
    assert [float(a[0]) for a in session.run(feeds, ["w", "y"])] == [-2.0, 1.5]


def test_what_the_bindings_cannot_do_is_refused_by_name():
    session = on_cpu(
        "g (seq(float[N]) s, bfloat16[N] x) => (bfloat16[N] y, int64 n) { y = Identity(x) n = SequenceLength(s) }",
        emulate=False,
    )
    feeds = {"s": [np.zeros(1, np.float32)], "x": np.zeros(1, BF16)}
    assert session.run(feeds, ["n"])[0] == 1
    with pytest.raises(InputError, match=r"input 's' is a sequence.* output 'y' is tensor\(bfloat16\)"):
        session.run(feeds)


def test_sequences_strings_and_empty_optionals_pass():
    session = on_cpu(
        """g (seq(float[N]) s, string[N] t) => (float[N] y, string[N] u, optional(float[N]) o)
           { i = Constant <value_int = 1> () y = SequenceAt(s, i) u = Identity(t) o = Optional <type = float[N]> () }"""
    )
    feeds = {"s": [np.zeros(1, np.float32), np.ones(2, np.float32)], "t": np.array(["a", "bc"])}
    y, u, o = session.run(feeds)
    assert (y.tolist(), u.tolist(), o) == ([1.0, 1.0], ["a", "bc"], None)
    session.bind(feeds)()


# ---- emulation ----


def test_a_low_program_runs_emulated_on_the_cpu():
    x = np.array([300.0, 2.0], np.float16)
    session = on_cpu(SQUARE_OVER_SELF)
    assert session.emulated
    assert session.run({"x": x})[0].tolist() == [np.inf, 2.0]
    native = on_cpu(SQUARE_OVER_SELF, emulate=False)
    assert not native.emulated
    assert native.run({"x": x})[0].tolist() == [300.0, 2.0]  # the provider computes in float32


def test_bfloat16_that_the_provider_has_no_kernel_for_runs_emulated():
    body = "g (bfloat16[N] x) => (bfloat16[N] y) { y = Mul(x, x) }"
    with pytest.raises(
        InputError, match=r"Program\('g', 1 nodes\) cannot be opened on CPU: NOT_IMPL.* no kernel"
    ) as caught:
        on_cpu(body, emulate=False)
    assert isinstance(caught.value.__cause__, ort.ORT_ERRORS)
    x = np.array([1.01, 3.0], np.float32)
    [y] = on_cpu(body).run({"x": x})
    rounded = x.astype(BF16).astype(np.float32)
    assert y.dtype == BF16
    assert np.array_equal(y, (rounded * rounded).astype(BF16))


def test_a_model_that_onnx_runtime_refuses_is_named(tmp_path):
    proto = model("g (float[N] x) => (float[N] y) { y = own.domain.Wish(x) }")
    proto.opset_import.add(domain="own.domain", version=1)
    onnx.save(proto, tmp_path / "wish.onnx")
    with pytest.raises(InputError, match=r"wish\.onnx', 1 nodes\) cannot be opened on CPU: .*Wish.*full_check=True"):
        Session(tmp_path / "wish.onnx", CPUPlace())


# ---- what a session takes ----


def test_every_form_of_a_program_runs(tmp_path):
    proto = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for program in (proto, load(proto), load(proto).model, path, str(path)):
        assert Session(program, CPUPlace()).run({"x": np.ones(1, np.float32)})[0].tolist() == [-1.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("loaded", [False, True])
def test_external_data_stays_where_it_is(tmp_path, dtype, loaded):
    path = tmp_path / "m.onnx"
    onnx.save(doubling_matmul(dtype), path, save_as_external_data=True, location="m.data", size_threshold=0)
    session = Session(load(path) if loaded else path, CPUPlace())
    [y] = session.run({"x": np.ones((1, 64), np.float32)})
    assert (y.dtype, set(y.ravel().tolist())) == (dtype, {2.0})


@pytest.mark.slow
def test_weights_too_large_for_a_message_go_through_a_folder_that_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(openable_module, "_INLINE_LIMIT", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = Session(doubling_matmul(np.float32), CPUPlace())
    assert [file.name for file in tmp_path.glob("*/*.onnx")] == ["model.onnx"]
    assert session.run({"x": np.ones((1, 64), np.float32)})[0].max() == 2.0
    del session
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_session_tells_its_inputs_and_outputs():
    session = on_cpu(
        "g (bfloat16[N, 2] x, string[N] t, float[1] d) => (bfloat16[N, 2] y, string[N] u, float[1] e) "
        "<float[1] d = {3}> { y = Identity(x) u = Identity(t) e = Neg(d) }",
        emulate=False,
    )
    assert [(i.name, i.dtype, i.shape, i.required) for i in session.inputs] == [
        ("x", "bfloat16", ("N", 2), True),
        ("t", "string", ("N",), True),
        ("d", "float32", (1,), False),
    ]
    assert [str(o) for o in session.outputs] == ["bfloat16[N, 2]", "string[N]", "float32[1]"]
    assert session.cpu_nodes == ()
    feeds = {"x": np.zeros((1, 2), BF16), "t": np.array(["a"])}
    assert session.run(feeds, ["e"])[0].tolist() == [-3.0]
    assert session.run({**feeds, "d": np.array([4], np.float32)}, ["e"])[0].tolist() == [-4.0]


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, r"missing input 'image', expected float16\[N, 2\]"),
        ({"imag": 1}, "unknown input 'imag' .did you mean 'image'"),
        ({"image": np.zeros((1, 2), np.float64)}, r"input 'image': got float64\[1, 2\], expected float16\[N, 2\]"),
        ({"image": np.zeros((1, 2), np.int64)}, r"got int64\[1, 2\]"),
        ({"image": np.zeros(2, np.float16)}, r"wrong rank: got float16\[2\], expected float16\[N, 2\]"),
        ({"image": np.zeros((1, 3), np.float16)}, r"wrong shape: got float16\[1, 3\]"),
    ],
)
def test_feeds_that_do_not_fit(feeds, words):
    session = on_cpu("g (float16[N, 2] image) => (float16[N, 2] y) { y = Neg(image) }")
    with pytest.raises(InputError, match=words):
        session.run(feeds)
    with pytest.raises(InputError, match=words):
        session.bind(feeds)


@pytest.mark.parametrize(("fetch", "words"), [(["z"], "unknown output 'z'.* are y"), ("y", r"write \['y'\]")])
def test_fetches_that_do_not_exist(fetch, words):
    session = on_cpu("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    with pytest.raises(InputError, match=words):
        session.run({"x": np.zeros(1, np.float32)}, fetch)


@pytest.mark.parametrize("fed", [[np.zeros(2, np.int64)], [1, 2], 3.0])
def test_what_is_no_sequence_of_the_type_is_refused_by_name(fed):
    session = on_cpu("g (seq(float[N]) s) => (int64 n) { n = SequenceLength(s) }")
    with pytest.raises(InputError, match=r"Session\(on CPU\) cannot run these inputs: ") as caught:
        session.run({"s": fed})
    assert "/onnxruntime_src" not in str(caught.value)


def test_a_failing_run_raises_and_prints_nothing(capfd):
    session = on_cpu("g (float[N] x, int64[M] s) => (float[A] y) { y = Reshape(x, s) }")
    with pytest.raises(InputError, match=r"Session\(on CPU\) cannot run these inputs: .*cannot be reshaped") as caught:
        session.run({"x": np.zeros(4, np.float32), "s": np.array([3])})
    assert "/onnxruntime_src" not in str(caught.value)
    assert "\n" not in str(caught.value)
    raw = caught.value.__cause__
    assert isinstance(raw, ort.ORT_ERRORS)
    assert len(ort.error_text(raw, limit=40)) == 40
    assert capfd.readouterr() == ("", "")
