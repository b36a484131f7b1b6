"""The counting tool counts what a GPU would be asked to do, and the fixture `counted` hands its counts to tests."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import onnx
import pytest

import launches
import launches_libraries
import launches_log

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
graph (float[N, 8] x) => (float16[N, 8] y)
<float[8, 8] w = {WEIGHTS}>
{
   m = MatMul (x, w)
   r = Relu (m)
   y = Cast <to = 10> (r)
}
""".replace("WEIGHTS", ", ".join(["0.5"] * 64))

PROGRAM = """
import json, sys
import numpy as np, onnxruntime as ort
import launches
session = ort.InferenceSession(sys.argv[1], providers=["CUDAExecutionProvider"])
session.run(None, {"x": np.zeros((3, 8), np.float32)})
with launches.counting() as counts:
    session.run(None, {"x": np.zeros((3, 8), np.float32)})
print("a line of its own")
print(json.dumps(counts))
"""


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.mark.slow
def test_a_model_s_third_run_is_counted_by_kind(counted, model):
    counts = counted.model(model, "--dim", "N=4")
    assert counts["launches"] == 3
    assert counts["kinds"] == {"gemm": 1, "elementwise": 1, "cast": 1}
    assert counts["gemm_types"] == {"float32": 1}
    assert counts["cpu_nodes"] == 0
    assert counts["memcpy"] == {}
    assert counts["memory"]["session_state"] == 256  # the weight


@pytest.mark.slow
def test_a_program_counts_its_own_block_with_exact_memory(counted, model):
    counts = counted.program(PROGRAM, str(model), exact_memory=True)
    assert counts["launches"] == 3
    assert counts["memcpy"]["HtoD"] == {"count": 1, "bytes": 96}
    assert counts["memcpy"]["DtoH"] == {"count": 1, "bytes": 48}
    assert counts["memory"]["in_use_peak"] > counts["memory"]["in_use_before"] > 0


@pytest.mark.slow
def test_a_model_that_is_refused_is_reported_as_such(counted, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(AssertionError, match=r"INVALID_PROTOBUF|Protobuf"):
        counted.model(path)


def test_outside_the_stand_ins_nothing_is_counted_and_the_message_says_how(monkeypatch):
    monkeypatch.delenv(launches_libraries.MARK, raising=False)  # these tests may run on the stand-ins themselves
    with pytest.raises(launches.LaunchesError, match=r"launches\.py run"), launches.counting():
        pass


def test_a_missing_file_is_named():
    command = [sys.executable, launches.__file__, "count", "nothing.onnx"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "launches.py: there is no file nothing.onnx\n")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void onnxruntime::cuda::_UnaryElementWise<half, float, onnxruntime::cuda::OP_Cast<half, float>>", "cast"),
        ("gemm float16", "gemm"),
        ("void onnxruntime::cuda::softmax_warp_forward<half>", "normalization"),
        ("void reduce_matrix_columns_kernel", "reduction"),
        ("cudnn cudnnBackendExecute", "convolution"),
        ("void onnxruntime::cuda::_TransposeKernel", "movement"),
        ("void onnxruntime::cuda::_BinaryElementWise", "elementwise"),
        ("something_new", "other"),
    ],
)
def test_kinds_of_kernels(name, kind):
    assert launches_log.kind_of(name) == kind
