"""`cast_model_to_fp16` and `cast_parameters_to_fp16`: in place, all or nothing, by Paddle's lists and priorities."""

import logging
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import ModelError, OptionError
from tests import support
from tests.support import array, chain, parse

W = array(4, 4, seed=1, scale=0.5)
X = {"x": array(2, 4)}
FORMS = {
    "ModelProto": lambda model: model,
    "onnx_ir.Model": ir.from_proto,
    "Program": amp.load,
    "ONNXProgram": lambda model: type("ONNXProgram", (), {"model": ir.from_proto(model)})(),
}


def network():
    return chain("MatMul ({}, w)", "Exp ({})", "MatMul ({}, v)", w=W, v=array(4, 4, seed=2))


def proto_of(program):
    return program if isinstance(program, onnx.ModelProto) else amp.load(program).to_onnx()


# ---- in place, all or nothing ----


@pytest.mark.parametrize("form", FORMS)
def test_the_very_object_is_converted(form):
    program = FORMS[form](network())
    inner = program.model if hasattr(program, "model") else None
    names = amp.cast_model_to_fp16(program)
    assert names == {"w", "v"}
    if inner is not None:
        assert program.model is inner
    support.assert_valid(proto_of(program))
    assert support.dtype_of(proto_of(program), "w") == "FLOAT16"
    support.assert_close(support.run(network(), X), support.run_emulated(proto_of(program), X), 0.02)


def test_a_program_that_was_cast_has_no_source_that_it_could_be_confused_with(tmp_path):
    onnx.save(network(), tmp_path / "m.onnx")
    program = amp.load(tmp_path / "m.onnx")
    before = support.folder_hash(tmp_path)
    amp.cast_model_to_fp16(program)
    amp.Session(program, amp.CPUPlace()).run(X)
    amp.save(program, tmp_path / "low.onnx")
    assert support.dtype_of(onnx.load(tmp_path / "low.onnx"), "w") == "FLOAT16"
    assert support.folder_hash(tmp_path)["m.onnx"] == before["m.onnx"]


BROKEN = {
    "an invalid model": (
        lambda: parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, d) }", d=np.ones((4, 4))),
        {},
        ModelError,
    ),
    "an unknown level": (network, {"level": "O7"}, OptionError),
    "an unknown dtype": (network, {"dest_type": "float8"}, OptionError),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BROKEN)
def test_on_an_error_nothing_has_changed(name, form):
    make, arguments, error = BROKEN[name]
    program = FORMS[form](make())
    before = proto_of(program).SerializeToString(deterministic=True)
    with pytest.raises(error):
        amp.cast_model_to_fp16(program, **arguments)
    assert proto_of(program).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("form", FORMS)
def test_a_fault_in_the_middle_leaves_everything_as_it_was(form, monkeypatch):
    import amp_transpiler.conversion as converting

    def fail(*_):
        raise RuntimeError("in the middle")

    program = FORMS[form](network())
    before = proto_of(program).SerializeToString(deterministic=True)
    monkeypatch.setattr(converting.CleanCasts, "call", fail)  # the casts are in, the weights converted
    with pytest.raises(RuntimeError, match="in the middle"):
        amp.cast_model_to_fp16(program)
    assert proto_of(program).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("path", ["model.onnx", pathlib.Path("model.onnx")])
def test_a_path_is_a_type_error_that_names_transpile(path):
    with pytest.raises(TypeError, match="transpile"):
        amp.cast_model_to_fp16(path)


@pytest.mark.parametrize("level", ["OD", "O1", "O2", "auto", "o2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", np.float16, "BF16"])
def test_casting_does_what_transpile_does(level, dtype):
    program = network()
    amp.cast_model_to_fp16(program, level=level, dest_type=dtype)
    expected = amp.transpile(network(), level=level, dtype=dtype, verify=False, prefer="size").program.to_onnx()
    assert program.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@pytest.mark.parametrize("form", FORMS)
def test_level_o0_leaves_a_program_as_it_is(form):
    program = FORMS[form](network())
    assert amp.cast_model_to_fp16(program, level="O0") == set()
    assert proto_of(program).SerializeToString(deterministic=True) == proto_of(
        FORMS[form](network())
    ).SerializeToString(deterministic=True)


def test_inputs_and_outputs_keep_their_types():
    program = network()
    amp.cast_model_to_fp16(program)
    types = [value.type.tensor_type.elem_type for value in (*program.graph.input, *program.graph.output)]
    assert types == [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT]


# ---- names returned, and cast_parameters_to_fp16 ----


def test_the_names_returned_are_those_of_low_constants_and_no_others():
    """Protected parameters are not in the set."""
    program = parse(
        """(float[2,4] x) => (float[2,4] y) {
            k = Constant <value_float = 0.5> () a = MatMul (x, w) b = Mul (a, k) c = Pow (b, p) y = MatMul (c, huge)
        }""",
        w=W,
        p=np.float32(2.0),
        huge=W * 1e7,
    )
    names = amp.cast_model_to_fp16(program, amp.AutoMixedPrecisionLists(custom_black_list=["Pow"]))
    assert names == {"w", "k"}
    assert {name: support.dtype_of(program, name) for name in ("w", "k", "p", "huge")} == {
        "w": "FLOAT16",
        "k": "FLOAT16",
        "p": "FLOAT",
        "huge": "FLOAT",
    }


def test_level_o0_converts_no_name():
    program = network()
    assert amp.cast_model_to_fp16(program, level="O0") == set()


def test_parameters_of_a_cast_model_are_low_already(caplog):
    program = amp.load(network())
    names = amp.cast_model_to_fp16(program)
    before = program.to_onnx().SerializeToString(deterministic=True)
    with caplog.at_level(logging.WARNING):
        amp.cast_parameters_to_fp16(amp.CPUPlace(), program, to_fp16_var_names=names)
    assert not caplog.records
    assert program.to_onnx().SerializeToString(deterministic=True) == before


WARNED = {
    "missing": ({"nowhere"}, "not in the program"),
    "still float32": ({"w"}, "is float32"),
}


@pytest.mark.parametrize("name", WARNED)
def test_parameters_that_cannot_be_converted_are_warned_of(name, caplog):
    """A name missing in the scope is a warning only."""
    names, message = WARNED[name]
    with caplog.at_level(logging.WARNING):
        amp.cast_parameters_to_fp16(amp.CPUPlace(), amp.load(network()), to_fp16_var_names=names)
    assert len(caplog.records) == 1
    assert message in caplog.text


@pytest.mark.parametrize("names", [None, set(), []])
def test_no_names_no_parameters(names, caplog):
    with caplog.at_level(logging.WARNING):
        amp.cast_parameters_to_fp16(amp.CPUPlace(), amp.load(network()), to_fp16_var_names=names)
    assert not caplog.records


# ---- guard ----


def test_a_program_without_a_guarded_region_counts_as_guarded_everywhere_and_says_so(caplog):
    program = network()
    with caplog.at_level(logging.INFO, logger="amp_transpiler"):
        amp.cast_model_to_fp16(program)
    assert "guarded everywhere" in caplog.text
    assert set(support.dtypes(program, "MatMul")) == {"FLOAT16"}


GUARDS = {
    # use_fp16_guard: types of the two MatMuls
    "honoured": (True, ["FLOAT16", "FLOAT"]),
    "switched off": (False, ["FLOAT16", "FLOAT16"]),
}


@pytest.mark.parametrize("name", GUARDS)
def test_the_guard(name):
    """Nodes outside every guard stay float32, and so do their parameters."""
    use, expected = GUARDS[name]
    program = network()
    amp.mark_region(program, "fp16_guard", nodes="^v1$")
    names = amp.cast_model_to_fp16(program, use_fp16_guard=use)
    assert support.dtypes(program, "MatMul") == expected
    assert names == ({"w"} if use else {"w", "v"})
    support.assert_valid(program)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_in_a_scope_are_rounded(dtype):
    scope = {"w": np.array([1.0, 1.0 + 2.0**-12], np.float32), "n": np.array([7]), "other": np.ones(1, np.float32)}
    amp.cast_parameters_to_fp16(amp.CPUPlace(), amp.load(network()), scope, {"w", "n"}, dest_type=dtype)
    assert [scope[name].dtype.name for name in ("w", "n", "other")] == [dtype, "int64", "float32"]
    assert scope["w"].astype(float).tolist() == [1.0, 1.0]
