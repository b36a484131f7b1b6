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

# A product of each call of cuBLAS, in cuBLAS's own arguments: sizes 2 x 3 x 5, leading dimensions 7, 8, 9, batch 4.
CALLS = """
import ctypes, json
import launches
blas, at, zero, int64 = ctypes.CDLL(None), None, 0, ctypes.c_int64
sizes, steps = (at, 0, 1, 2, 3, 5), (int64(1 << 40),)
with launches.counting() as counts:
    blas.cublasGemmEx(*sizes, at, at, 2, 7, at, 2, 8, at, at, 0, 9, 0, 0)
    blas.cublasGemmBatchedEx(*sizes, at, at, 14, 7, at, 14, 8, at, at, 14, 9, 4, 0, 0)
    blas.cublasGemmStridedBatchedEx(*sizes, at, at, 0, 7, *steps, at, 0, 8, *steps, at, at, 0, 9, *steps, 4, 0, 0)
    for letter in "SD":
        blas[f"cublas{letter}gemm_v2"](*sizes, at, at, 7, at, 8, at, at, 9)
        blas[f"cublas{letter}gemmBatched"](*sizes, at, at, 7, at, 8, at, at, 9, 4)
        blas[f"cublas{letter}gemmStridedBatched"](*sizes, at, at, 7, *steps, at, 8, *steps, at, at, 9, *steps, 4)
    layouts = [ctypes.c_void_p() for _ in range(3)]
    for layout, shape in zip(layouts, ((2, 5, 7), (3, 5, 8), (2, 3, 9))):
        blas.cublasLtMatrixLayoutCreate(ctypes.byref(layout), 2, *map(int64, shape))
        blas.cublasLtMatrixLayoutSetAttribute(layout, 5, ctypes.byref(ctypes.c_int32(4)), ctypes.c_size_t(4))
        blas.cublasLtMatrixLayoutSetAttribute(layout, 6, ctypes.byref(int64(6)), ctypes.c_size_t(8))
    described = ctypes.c_void_p()
    blas.cublasLtMatmulDescCreate(ctypes.byref(described), 0, 0)
    blas.cublasLtMatmulDescSetAttribute(described, 4, ctypes.byref(ctypes.c_int32(1)), ctypes.c_size_t(4))
    a, b, c = layouts
    blas.cublasLtMatmul(at, described, at, at, a, at, b, at, at, c, at, c, at, at, ctypes.c_size_t(0), at)
print(json.dumps({"products": counts["products"], "gemm_types": counts["gemm_types"]}))
"""

REDUCED = """
<ir_version: 10, opset_import: ["" : 20]>
graph (float[6, 30] x, float16[5, 6, 10] z) => (float[6, 1] y, float16[5, 1, 10] s)
{
   a = Constant<value_ints = [1]>()
   y = ReduceMax(x, a)
   s = ReduceSum(z, a)
}
"""


STEPS = ("step_a", "step_b", "step_c")


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
def test_a_product_is_logged_with_its_sizes(counted, model):
    [product] = counted.model(model, "--dim", "N=4")["products"]
    types = {"type_a": "float32", "type_b": "float32", "type_c": "float32"}
    sizes = {"transa": 0, "transb": 0, "m": 8, "n": 4, "k": 8, "lda": 8, "ldb": 8, "ldc": 8, "batch": 1}
    assert product == {**sizes, **dict.fromkeys(STEPS, 0), **types, "count": 1}


@pytest.mark.slow
def test_every_call_of_cublas_is_logged_with_its_sizes(counted):
    told = counted.program(CALLS)
    sizes = {"transa": 0, "transb": 1, "m": 2, "n": 3, "k": 5, "lda": 7, "ldb": 8, "ldc": 9}
    rows = [
        (1, 0, "float16", "float16", "float32"),
        (4, 0, "bfloat16", "bfloat16", "bfloat16"),
        (4, 1 << 40, "float32", "float32", "float32"),
        (1, 0, "float32", "float32", "float32"),
        (4, 0, "float32", "float32", "float32"),
        (1, 0, "float64", "float64", "float64"),
        (4, 0, "float64", "float64", "float64"),
        (4, 1 << 40, "float64", "float64", "float64"),
        (4, 6, "float16", "float16", "float16"),
    ]
    assert told["products"] == [
        {
            **sizes,
            "batch": batch,
            **dict.fromkeys(STEPS, step),
            "type_a": a,
            "type_b": b,
            "type_c": c,
            "count": 2 if (step, c) == (1 << 40, "float32") else 1,
        }
        for batch, step, a, b, c in rows
    ]
    assert told["gemm_types"] == {"float16": 2, "bfloat16": 1, "float32": 4, "float64": 3}


@pytest.mark.slow
def test_a_reduction_of_cudnn_is_logged_with_its_shapes(counted, tmp_path):
    path = tmp_path / "reduced.onnx"
    onnx.save(onnx.parser.parse_model(REDUCED), path)
    reductions = counted.model(path)["reductions"]
    assert sorted(reductions, key=str) == [
        {"operator": "maximum", "type": "float32", "from": [6, 30, 1], "to": [6, 1, 1], "count": 1},
        {"operator": "sum", "type": "float16", "from": [5, 6, 10], "to": [5, 1, 10], "count": 1},
    ]


@pytest.mark.slow
def test_a_copy_is_logged_with_the_launch_behind_it(counted, model):
    to, back = counted.program(PROGRAM, str(model))["copies"]
    assert to == {"way": "HtoD", "bytes": 96, "before": "gemm float32", "count": 1}
    assert back == {"way": "DtoH", "bytes": 48, "before": "", "count": 1}


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
