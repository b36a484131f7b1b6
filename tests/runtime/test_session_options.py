"""Options of a written model's sessions: by price, in its metadata, as code, and in `Session`."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler.runtime.opening import wish_for
from amp_transpiler.runtime.places import CUDAPlace
from amp_transpiler.runtime.recommended_options import DISABLED_KEY, SESSION_KEY, RecommendedOptions
from tests.support import array, parse

OFF = RecommendedOptions(("MatMulAddFusion",))
NONE = RecommendedOptions()
ROWS = 1024
# A product whose bias GELU or a sum before a normalisation could take in; sizes; options of `transpile`; what is asked.
CASES = {
    "a GELU that is not fused": (f"[8,{ROWS},64]", "gelu", {"fuse": "none"}, OFF),
    "a sum that is not fused": (f"[8,{ROWS},64]", "norm", {"fuse": "none"}, OFF),
    "fused, which takes the biases in": (f"[8,{ROWS},64]", "gelu", {}, NONE),
    "a size that is open": (f"[N,{ROWS},64]", "gelu", {"fuse": "none"}, NONE),
    "two dimensions, where a bias is spread by default, too": (f"[{ROWS},64]", "gelu", {"fuse": "none"}, NONE),
    "another target": (f"[8,{ROWS},64]", "gelu", {"fuse": "none", "target": "cpu"}, NONE),
    "nothing behind the bias": (f"[8,{ROWS},64]", "relu", {"fuse": "none"}, NONE),
}
ENDS = {
    "gelu": "a = Div (p, r) e = Erf (a) f = Add (e, one) g = Mul (p, f) y = Mul (g, half)",
    "norm": "s = Add (p, x) y = LayerNormalization (s, b, b)",
    "relu": "y = Relu (p)",
}


def network(sizes, end):
    numbers = {"r": np.float32(np.sqrt(2.0)), "one": np.float32(1.0), "half": np.float32(0.5)}
    used = {name: np.array(value) for name, value in numbers.items() if end == "gelu"}
    text = f"(float{sizes} x) => (float{sizes} y) {{ m = MatMul (x, w) p = Add (m, b) {ENDS[end]} }}"
    return parse(text, w=array(64, 64), b=array(64), **used)


@pytest.mark.parametrize(("sizes", "end", "options", "expected"), CASES.values(), ids=CASES)
def test_what_is_faster_is_asked_for(tmp_path, sizes, end, options, expected):
    path = tmp_path / "model.onnx"
    report = amp.transpile(network(sizes, end), path, level="O2", verify=False, **options)
    assert report.session_options == amp.session_options(path) == expected
    metadata = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert (SESSION_KEY in metadata) is bool(expected)
    wish = wish_for(str(path), CUDAPlace(0), None, None)
    assert wish.disabled == expected.disabled


def test_the_code_opens_the_file_without_the_optimizer(tmp_path):
    path, seen = str(tmp_path / "model.onnx"), []
    onnx.save(network("[2,4,64]", "relu"), path)
    for options in (NONE, OFF):
        code = options.code(path).replace("CUDAExecutionProvider", "CPUExecutionProvider")
        assert len(code.splitlines()) <= 3
        optimized = tmp_path / f"{bool(options)}.onnx"
        setting = f"options.optimized_model_filepath = {str(optimized)!r}"
        first, *rest = code.splitlines() if options else ("options = onnxruntime.SessionOptions()", code)
        last = rest[-1].replace(f"{path!r}, providers", f"{path!r}, options, providers")
        exec("\n".join([first, setting, *rest[:-1], last]), {"onnxruntime": onnxruntime})
        seen.append({node.op_type for node in onnx.load(optimized).graph.node})
    assert "MatMul" not in seen[0]
    assert "MatMul" in seen[1]


# What metadata say -> what is taken from it.
METADATA = {
    "as written": (OFF.as_metadata(), OFF),
    "of others, too": (json.dumps({DISABLED_KEY: "ConstantFolding;MatMulAddFusion", "session.x": "1"}), OFF),
    "of others alone": (json.dumps({"session.x": "1"}), NONE),
    "no object": ("[1]", NONE),
    "no JSON": ("{", NONE),
}


@pytest.mark.parametrize(("text", "expected"), METADATA.values(), ids=METADATA)
def test_a_file_asks_only_for_what_the_table_has(text, expected):
    model = network("[2,4,64]", "relu")
    model.metadata_props.add(key=SESSION_KEY, value=text)
    assert amp.session_options(model) == amp.session_options(amp.load(model)) == expected


def test_options_of_an_earlier_conversion_go(tmp_path):
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    amp.transpile(network(f"[8,{ROWS},64]", "gelu"), first, level="O2", verify=False, fuse="none")
    amp.transpile(first, second, dtype="float32", verify=False, target="cpu")
    assert (amp.session_options(first), amp.session_options(second)) == (OFF, NONE)


def test_the_report_has_the_options_and_their_reason():
    report = amp.transpile(network(f"[8,{ROWS},64]", "gelu"), level="O2", verify=False, fuse="none")
    assert report.session_code == report.session_options.code(report.source)
    assert "GELU" in report.session_options.why["MatMulAddFusion"]
