"""Inputs that are given, and inputs that are made up."""

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

from amp_transpiler.errors import AmpError, InputError
from amp_transpiler.graph.table_sizes import table_size
from amp_transpiler.verification.inputs import given_inputs
from amp_transpiler.verification.made_up_signals import picture, sound
from amp_transpiler.verification.synthesis import CannotSynthesise, synthesise_inputs

BF16 = ml_dtypes.bfloat16


def model(body, opset=18):
    text = f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1]> {body}'
    return ir.from_proto(onnx.parser.parse_model(text))


def takes(*inputs):
    """Return a model that has these inputs and does nothing with them."""
    return model(f"g ({', '.join(inputs)}) => () {{ }}")


TWO = takes("float[N, 2] x", "int32[N] ids")


# ---- given ----


def test_a_dict_is_one_sample():
    x, ids = np.ones((3, 2), np.float32), np.arange(3, dtype=np.int32)
    [sample] = given_inputs({"x": x, "ids": ids}, TWO)
    assert sample["x"] is x
    assert sample["ids"] is ids


def test_an_iterable_of_dicts_is_a_sample_each():
    samples = given_inputs(({"x": np.full((n, 2), n, np.float32), "ids": np.zeros(n, np.int32)} for n in (1, 2)), TWO)
    assert [sample["x"].shape for sample in samples] == [(1, 2), (2, 2)]


def test_npz_file_and_folder(tmp_path):
    for n in (2, 1):
        np.savez(tmp_path / f"{n}.npz", x=np.full((n, 2), n, np.float32), ids=np.zeros(n, np.int32))
    [alone] = given_inputs(tmp_path / "2.npz", TWO)
    assert alone["x"].shape == (2, 2)
    assert [sample["x"].shape[0] for sample in given_inputs(str(tmp_path), TWO)] == [1, 2]


def test_npz_files_forget_bfloat16_and_it_comes_back(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([1.5, -2.0], BF16))
    [sample] = given_inputs(tmp_path / "x.npz", takes("bfloat16[N] x"))
    assert sample["x"].dtype == BF16
    assert sample["x"].astype(float).tolist() == [1.5, -2.0]


def test_onnx_data_sets_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        for i, array in enumerate((np.full((1, 2), number, np.float32), np.zeros(1, np.int32))):
            (folder / f"input_{i}.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
    assert [sample["x"][0, 0] for sample in given_inputs(tmp_path, TWO)] == [2.0, 10.0]
    assert [sample["x"][0, 0] for sample in given_inputs(tmp_path / "test_data_set_10", TWO)] == [10.0]


def test_data_sets_hold_sequences_and_optionals(tmp_path):
    x = np.ones(2, np.float32)
    (tmp_path / "input_0.pb").write_bytes(onnx.numpy_helper.from_list([x, x + 1]).SerializeToString())
    (tmp_path / "input_1.pb").write_bytes(onnx.numpy_helper.from_optional(x).SerializeToString())
    [sample] = given_inputs(tmp_path, takes("seq(float[N]) s", "optional(float[N]) o"))
    assert [a.tolist() for a in sample["s"]] == [[1.0, 1.0], [2.0, 2.0]]
    assert sample["o"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("declared", "given", "dtype"),
    [
        ("float", np.array([0.5]), np.float32),
        ("float", np.array([0.5], np.float16), np.float32),
        ("float16", np.array([0.5], np.float32), np.float16),
        ("bfloat16", np.array([0.5]), BF16),
        ("double", np.array([0.5], np.float32), np.float64),
        ("int32", np.array([5]), np.int32),
        ("int64", np.array([True]), np.int64),
        ("bool", np.array([1, 0]), np.bool_),
        ("uint8", np.array([255]), np.uint8),
        ("string", np.array(["a"]), np.object_),
        ("float", [0.5], np.float32),
    ],
)
def test_types_are_converted_where_nothing_is_lost(declared, given, dtype):
    [sample] = given_inputs({"x": given}, takes(f"{declared}[N] x"))
    assert sample["x"].dtype == dtype
    assert sample["x"].tolist() == list(given)


@pytest.mark.parametrize(
    ("declared", "given", "words"),
    [
        ("int32", np.array([2**31]), r"got int64\[1\], expected int32\[N\]; its values range from 2147483648"),
        ("uint64", np.array([-1]), "values range from -1 to -1"),
        ("uint8", np.array([256, 0]), "values range from 0 to 256"),
        ("bool", np.array([2]), "expected bool"),
        ("float", np.array([1]), r"got int64\[1\], expected float32\[N\]"),
        ("int64", np.array([1.0]), r"got float64\[1\], expected int64\[N\]"),
        ("float", np.array(["a"]), "expected float32"),
        ("float", np.zeros((1, 1), np.float32), r"wrong rank: got float32\[1, 1\], expected float32\[N\]"),
    ],
)
def test_what_would_change_is_refused(declared, given, words):
    with pytest.raises(InputError, match=rf"inputs: input 'x'.*{words}"):
        given_inputs({"x": given}, takes(f"{declared}[N] x"))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": np.zeros((1, 2), np.float32)}, r"inputs: missing input 'ids', expected int32\[N\]"),
        ([{"y": 1}], r"inputs\[0\]: unknown input 'y'"),
        ([1], r"inputs\[0\]: got int, expected a dict"),
        (np.zeros(3), "got ndarray"),
        (5, "got int"),
        ([], "no sample"),
        ("nowhere.npz", "nowhere.npz: no such file"),
    ],
)
def test_bad_inputs_are_named(inputs, words):
    with pytest.raises(InputError, match=words):
        given_inputs(inputs, TWO)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match="holds no inputs"):
        given_inputs(tmp_path, TWO)
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], object))
    np.save(tmp_path / "lone.npy", np.zeros(2))
    for name, words in (("text.npz", "not an .npz file"), ("pickled.npz", "a pickle"), ("lone.npy", "unnamed")):
        with pytest.raises(InputError, match=f"{name}.*{words}"):
            given_inputs(tmp_path / name, TWO)
    (tmp_path / "input_0.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(InputError, match=r"input_0.pb: not the protobuf"):
        given_inputs(tmp_path, TWO)


def test_an_input_with_a_default_may_be_left_out():
    with_default = model("g (float[N] x, float[1] d) => (float[N] y) <float[1] d = {3}> { y = Add(x, d) }")
    x = np.ones(2, np.float32)
    assert set(given_inputs({"x": x}, with_default)[0]) == {"x"}
    assert set(given_inputs({"x": x, "d": x[:1]}, with_default)[0]) == {"x", "d"}


# ---- made up ----


def made_up(program, accept=lambda _: True, seed=0):
    """Return the first guess that `accept` accepts."""

    def run(feeds):
        if not accept(feeds):
            raise ValueError("this size does not fit")

    return synthesise_inputs(program, run, seed)


@pytest.mark.parametrize(
    ("declared", "dtype", "shape", "values"),
    [
        ("float[batch, 3, height, width] image", np.float32, (1, 3, 224, 224), (0.0, 1.0)),
        ("float[N, H, W, 3] image", np.float32, (1, 224, 224, 3), (0.0, 1.0)),
        ("uint8[N, 3, H, W] image", np.uint8, (1, 3, 224, 224), (0, 255)),
        ("float[N, samples] waveform", np.float32, (1, 16000), (-1.0, 1.0)),
        ("int64[N, S] attention_mask", np.int64, (1, 32), (1, 1)),
        ("float[N, 1, S, S] attention_mask", np.float32, (1, 1, 32, 32), (1.0, 1.0)),
        ("bool[N, S] src_mask", np.bool_, (1, 32), (1, 1)),
        ("bool is_training", np.bool_, (), (0, 0)),
        ("int64[N, S] token_type_ids", np.int64, (1, 32), (0, 0)),
        ("int32[N, S] position_ids", np.int32, (1, 32), (0, 31)),
        ("int64[N] lengths", np.int64, (1,), (32, 32)),
        ("int64 sr", np.int64, (), (16000, 16000)),
        ("float[2, N, 128] state", np.float32, (2, 1, 128), (0.0, 0.0)),
        ("float16[N, 8, past_sequence, 64] past_key_values.0.key", np.float16, (1, 8, 1, 64), (0.0, 0.0)),
        ("int64[N, S] input_ids", np.int64, (1, 32), (1, 19)),
        ("int8[N, S] codes", np.int8, (1, 32), (1, 19)),
        ("float[N, S, 16] encoder_hidden_states", np.float32, (1, 32, 16), (-3.0, 3.0)),
        ("bfloat16[N, 16] x", BF16, (1, 16), (-3.0, 3.0)),
        ("double[N, 16] x", np.float64, (1, 16), (-3.0, 3.0)),
        ("float score_threshold", np.float32, (), (0.5, 0.5)),
    ],
)
def test_values_follow_the_meaning(declared, dtype, shape, values):
    kind, name = declared.rsplit(" ", 1)
    value = made_up(takes(f'{kind} "{name}"' if "." in name else declared))[name]
    assert (value.dtype, value.shape) == (dtype, shape)
    numbers = value.astype(np.float64)
    assert values[0] <= numbers.min()
    assert numbers.max() <= values[1]
    if values[0] < values[1]:
        assert numbers.std() > 0.0


def test_strings_are_words():
    value = made_up(takes("string[N] text"))["text"]
    assert value.dtype == object
    assert set(value.ravel()) == {"hello world"}


def test_the_same_symbol_is_the_same_size_and_sums_add_up():
    program = takes(
        "int64[b, s] ids", "float[b, s, t, 8] x", "float[b, 2, past, 4] past_k", 'int64[b, "past + s"] mask'
    )
    shapes = {name: value.shape for name, value in made_up(program, lambda f: f["ids"].shape[1] == 64).items()}
    assert shapes["ids"] == (1, 64)
    assert shapes["x"][:2] == (1, 64)
    assert shapes["past_k"] == (1, 2, 1, 4)
    assert shapes["mask"] == (1, 65)


@pytest.mark.parametrize(
    ("declared", "accepts", "expected"),
    [
        ("float[N, 3, H, W] x", lambda s: s[2] % 32 == 0 and s[2] > 224, (1, 3, 320, 320)),
        ("float[N, 3, H, W] x", lambda s: s[2:] == (48, 320), (1, 3, 48, 320)),
        ("float[N, C, H, W] x", lambda s: s[1] == 1, (1, 1, 224, 224)),
        ("float[N, T] x", lambda s: s[1] >= 400, (1, 576)),
        ("float[N, T] x", lambda s: s[1] >= 10_000, (1, 16000)),
        ("float[N, 8] x", lambda s: s[0] == 2, (2, 8)),
        ("float x", lambda s: s == (), ()),
        ("float[] x", lambda s: len(s) == 3, (1, 32, 32)),
        ("float[] x", lambda s: len(s) == 1, (32,)),
    ],
)
def test_sizes_are_tried_until_one_fits(declared, accepts, expected):
    program = takes(declared.replace("[]", ""))
    if "[]" in declared:
        program.graph.inputs[0].shape = None
    assert made_up(program, lambda feeds: accepts(feeds["x"].shape))["x"].shape == expected


def test_ids_shrink_until_they_fit():
    assert made_up(takes("int64[N, S] x"), lambda f: f["x"].max() < 5)["x"].max() < 5
    assert made_up(takes("int64[N] axis"), lambda f: not f["axis"].any())["axis"].max() == 0


def test_guesses_that_would_be_huge_are_skipped():
    sizes = []
    with pytest.raises(CannotSynthesise):
        made_up(takes("float[N, S, S] x"), lambda feeds: sizes.append(feeds["x"].shape[1]))
    assert 1600 in sizes
    assert max(sizes) < 16000


def test_nothing_is_tried_twice():
    tried = []
    with pytest.raises(CannotSynthesise):
        made_up(takes("float[2, 3] x", "int64[4] i"), lambda feeds: tried.append(feeds["i"].max()))
    assert len(tried) == 4  # the four bounds of ids; no size is open


def test_numbers_hang_on_seed_and_name_alone():
    alone, two = takes("float[N, 8] x"), takes("float[N, 8] w", "float[N, 8] x")
    first = made_up(alone)["x"]
    assert np.array_equal(first, made_up(two)["x"])
    assert not np.array_equal(first, made_up(two)["w"])
    assert not np.array_equal(first, made_up(alone, seed=1)["x"])


def test_an_input_with_a_default_keeps_it():
    with_default = model("g (float[N, 2] x, float[1] d) => (float[N, 2] y) <float[1] d = {3}> { y = Add(x, d) }")
    assert set(made_up(with_default)) == {"x"}


@pytest.mark.parametrize("declared", ["seq(float[N]) state", "optional(float[N]) state"])
def test_what_is_no_tensor_is_named(declared):
    with pytest.raises(CannotSynthesise, match="'state' is not a tensor but"):
        made_up(takes("float[N] x", declared))


def test_the_last_error_is_quoted_shortly():
    def run(feeds):
        raise ValueError("no good: " + "x" * 1000)

    with pytest.raises(CannotSynthesise, match=r"guesses.*refused.*no good") as caught:
        synthesise_inputs(takes("float[N, 4] x"), run)
    assert isinstance(caught.value, AmpError)
    assert len(str(caught.value)) < 320


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{ y = Gather(table, i) }", 7),
        ("{ a = Cast <to = 7> (i) b = Reshape(a, shape) y = Gather(table, b) }", 7),
        ("{ y = Gather <axis = 1> (table, i) }", 3),
        ("{ y = Gather <axis = -1> (table, i) }", 3),
        ("{ a = Identity(table) y = Gather(a, i) }", 7),
        ("{ y = GatherElements(table, i) }", 7),
        ("{ a = Gather(small, i) y = Gather(table, i) }", 5),
        ("{ y = com.microsoft.EmbedLayerNormalization(i, i, table, table, small, bias, bias) }", 5),
        ("{ y = OneHot(i, depth, values) }", 9),
        ("{ a = Add(i, i) y = Gather(table, a) }", None),
        ("{ y = Gather(i, zero) }", None),
    ],
)
def test_tables_are_found_through_what_keeps_integers(body, expected):
    weights = """<float[7, 3] table = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}, float[5, 1] small = {0,0,0,0,0},
                  int64[1] shape = {-1}, int64[1] zero = {0}, float[1] bias = {0}, int64 depth = {9},
                  float[2] values = {0, 1}>"""
    program = model(f"g (int64[N, S] i) => (float[A, B] y) {weights} {body}")
    assert table_size(program.graph.inputs[0]) == expected


def test_tables_are_found_in_bodies_that_capture_the_ids():
    program = model(
        """g (int64[S] i, bool c) => (float[A, B] y) <float[4, 1] table = {0, 0, 0, 0}>
           { y = If (c) <then_branch = t () => (float[P, Q] p) { p = Gather(table, i) },
                         else_branch = e () => (float[P, Q] q) { q = Gather(table, i) }> }"""
    )
    assert table_size(program.graph.inputs[0]) == 4
    ids = made_up(program)["i"]
    assert (ids.min(), ids.max()) == (1, 3)


def test_pictures_are_smooth_and_sounds_are_soft():
    rng = np.random.default_rng(0)
    image = picture((2, 3, 64, 48), rng)
    assert image.shape == (2, 3, 64, 48)
    assert picture((2, 64, 48, 3), rng, channels_last=True).shape == (2, 64, 48, 3)
    neighbours = np.abs(np.diff(image, axis=3)).mean()
    strangers = np.abs(image - rng.permuted(image, axis=3)).mean()
    assert neighbours < 0.75 * strangers  # of white noise they would be equal
    assert np.corrcoef(image[0, 0].ravel(), image[0, 1].ravel())[0, 1] > 0.5
    wave = sound((2, 16000), rng)
    assert 0.02 < wave.std() < 0.5
    assert np.abs(wave).max() < 1.0
    power = np.square(np.abs(np.fft.rfft(wave[0])))
    assert power[:2500].sum() > 50 * power[2500:].sum()  # a voice is below 2.5 kHz
