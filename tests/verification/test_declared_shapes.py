"""Declared shapes that lie: what is inserted has the computed shape, and the output's declaration is told."""

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

import amp_transpiler as amp

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
WEIGHT = "float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,1,2,3}"

# What makes the output another size than the input, whose names or numbers it declares.
LAST = {
    "DepthToSpace": "y = DepthToSpace<blocksize = 2>(a)",
    "ConvTranspose": "y = ConvTranspose<strides = [2, 2]>(a, v)",
    "Resize": 'y = Resize<mode = "linear">(a, "", scales)',
    "Pad": 'y = Pad<mode = "edge">(a, pads)',
    "Concat": "y = Concat<axis = 3>(a, a)",
    "Tile": "y = Tile(a, repeats)",
    "AveragePool": "y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(a)",
    "Slice": "y = Slice(a, one, most, three)",
}
CONSTANTS = """float[4,1,2,2] v = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float[4] scales = {1,1,2,2},
    int64[4] repeats = {1,1,2,2}, int64[8] pads = {0,0,1,1,0,0,1,1},
    int64[1] one = {1}, int64[1] most = {1000}, int64[1] three = {3}"""
DECLARED = {"names": "n, c, h, k", "numbers": "1, 4, 6, 8"}


def _model(last, declared):
    text = (
        f"g (float[n,3,h,k] x) => (float[{declared}] y) <{WEIGHT}, {CONSTANTS}> {{ b = Conv(x, w) a = Relu(b) {last} }}"
    )
    return onnx.parser.parse_model(HEAD + text)


def _float32_twin(model):
    """The same graph with float32 for float16 and Neg for Cast: what a provider with float16 kernels plans."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for info in (*model.graph.value_info, *model.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT16:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.op_type = "Neg"
            del node.attribute[:]
    return model


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("operator", LAST)
def test_what_is_inserted_has_the_computed_shape(operator, declared):
    model = _model(LAST[operator], DECLARED[declared])
    x = {"x": np.linspace(-1, 1, 3 * 6 * 8, dtype=np.float32).reshape(1, 3, 6, 8)}
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)[0]
    report = amp.transpile(model, level="O2", inputs=x, tolerance=0.01)
    assert report.verdict_word == "verified"
    assert any(note.startswith("fault of the source: ") for note in report.notes)
    if declared == "names":  # some wrong numbers are told before anything runs, by what inference knows
        assert any("output 'y' is declared as" in note and str(list(wanted.shape)) in note for note in report.notes)
    twin = _float32_twin(report.program.to_onnx()).SerializeToString()
    session = onnxruntime.InferenceSession(twin, providers=["CPUExecutionProvider"])
    assert session.run(None, x)[0].shape == wanted.shape


@pytest.mark.parametrize("operator", LAST)
def test_unverified_results_have_no_declared_size_inside(operator):
    model = _model(LAST[operator], DECLARED["names"])
    result = amp.transpile(model, level="O2", verify=False).program.to_onnx()
    x = {"x": np.zeros((1, 3, 6, 8), np.float32)}
    session = onnxruntime.InferenceSession(
        _float32_twin(result).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert session.run(None, x)


def test_right_declarations_stay():
    model = _model("y = Sigmoid(a)", "n, 4, h, k")
    report = amp.transpile(model, inputs={"x": np.ones((1, 3, 6, 8), np.float32)}, prefer="size")
    assert not any("declared" in note for note in report.notes)
    assert [str(size) for size in report.program.model.graph.outputs[0].shape] == ["n", "4", "h", "k"]


@pytest.mark.parametrize("length", [16, 32, 15])
@pytest.mark.parametrize("onesided", [{}, {"onesided": 0}, {"onesided": 1}], ids=str)
def test_spectra_without_onesided_load(onesided, length, tmp_path):
    attributes = "".join(f"<{name} = {value}>" for name, value in onesided.items())
    bins = length if onesided.get("onesided") == 0 else length // 2 + 1
    model = onnx.parser.parse_model(f"""{HEAD}g (float[n,64,1] x) => (float[n,t,3] y)
        <int64 step = {{8}}, int64 size = {{{length}}}, float[{bins},3] mel = {{{",".join(["0.5"] * (3 * bins))}}}> {{
        w = HannWindow(size) f = STFT{attributes}(x, step, w, size)
        p = ReduceSumSquare<axes = [-1], keepdims = 0>(f) y = MatMul(p, mel) }}""")
    amp.transpile(model, tmp_path / "y.onnx", level="O2", verify=False)
    onnxruntime.InferenceSession(tmp_path / "y.onnx", providers=["CPUExecutionProvider"])
