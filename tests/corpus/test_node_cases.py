"""ONNX's own node tests at O2: converted, valid, and as near to fp32 as the format allows, by the oracle."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable

import onnx
import pytest

import amp_transpiler as amp
from tests.corpus.agreement import FIVE_PERCENT, TWO_PERCENT
from tests.corpus.onnx_case import OnnxCase
from tests.oracle.interpreter import CannotEvaluate
from tests.oracle.judge import checker_fault, opening_fault

pytestmark = pytest.mark.slow

_LARGE_SOFTMAX = "its inputs are 10000 to 10003, where numbers are 8 apart in float16, 64 in bfloat16"
_MASK = "one output is scores with the mask added, the lowest float32 number: infinite in float16 and bfloat16"

# The cases that cannot be as near to fp32 as that, whatever converts them. One that is near all the same is a failure.
_BOTH = {
    "test_softmax_large_number": _LARGE_SOFTMAX,
    "test_softmax_large_number_expanded": _LARGE_SOFTMAX,
    "test_softmax_large_number_expanded_ver18": _LARGE_SOFTMAX,
    "test_logsoftmax_large_number_expanded": _LARGE_SOFTMAX,
    "test_logsoftmax_large_number_expanded_ver18": _LARGE_SOFTMAX,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal": _MASK,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal": _MASK,
}
INACCURATE = {
    "float16": _BOTH
    | {
        "test_logsoftmax_large_number": _LARGE_SOFTMAX,
        "test_reduce_prod_default_axes_keepdims_example": "the product, 479001600, is beyond float16's 65504",
    },
    "bfloat16": _BOTH,
}
# What onnx.checker in full refuses before any conversion, too.
INVALID_SOURCES = {"test_mvn": "the definition of MeanVarianceNormalization-13 has a Constant that lacks its value"}
LIMITS = {"float16": TWO_PERCENT, "bfloat16": FIVE_PERCENT}
# What a report may say of such a case: outputs without a limit, a copy, or nothing finite to compare.
_VERDICTS = ("compared", "not checked: nothing to do", "structure only")


@dataclasses.dataclass(frozen=True)
class Judgement:
    invalid: str = ""
    inaccurate: str = ""
    unjudged: str = ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_case_converts_validly_and_agrees_with_fp32(
    node_batch,
    dtype,
    tmp_path: pathlib.Path,
    few_draws: Callable[[], None],
    record_property: Callable[[str, object], None],
) -> None:
    few_draws()
    start, faults, unjudged, converted = time.perf_counter(), [], [], 0
    for folder in node_batch:
        case = OnnxCase(folder)
        wanted = case.run_fp32() if case.has_float32 else None
        if wanted is None:
            continue
        converted += 1
        judgement = _judge(case, wanted, dtype, tmp_path / f"{case.name}.onnx")
        expected = INACCURATE[dtype].get(case.name, "")
        if judgement.invalid:
            faults.append(f"{case.name}: {judgement.invalid}")
        elif judgement.inaccurate and not expected:
            faults.append(f"{case.name}: {judgement.inaccurate}")
        elif expected and not judgement.inaccurate:
            faults.append(f"{case.name}: is accurate, so take it out of INACCURATE ({expected})")
        elif judgement.unjudged:
            unjudged.append(f"{case.name}: {judgement.unjudged}")
    told = [f"{converted} cases in {time.perf_counter() - start:.1f} s", *unjudged]
    record_property("summary", "; ".join(told))
    assert not faults, "\n".join(["", *faults])


def _judge(case: OnnxCase, wanted: list[object], dtype: str, written: pathlib.Path) -> Judgement:
    try:
        report = amp.transpile(case.folder / "model.onnx", written, level="O2", dtype=dtype, inputs=case.folder)
    except amp.CheckFailed as error:
        nonfinite = any(row.nonfinite for row in error.report.outputs.values()) if error.report else False
        return Judgement(inaccurate=str(error)) if nonfinite else Judgement(invalid=f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  any other failure is a fault of the one case, and the rest is still told
        return Judgement(invalid=f"{type(error).__name__}: {error}")
    if not report.verdict.startswith(_VERDICTS):
        return Judgement(invalid=report.verdict)
    fault = checker_fault(written)
    if bool(fault) != (case.name in INVALID_SOURCES):
        return Judgement(invalid=f"onnx.checker: {fault}" if fault else "valid, so take it out of INVALID_SOURCES")
    if fault := opening_fault(written):
        return Judgement(invalid=f"ONNX Runtime: {fault}")
    try:
        return Judgement(inaccurate=case.disagreement(onnx.load(written), wanted, LIMITS[dtype]))
    except CannotEvaluate as error:
        return Judgement(unjudged=f"the oracle cannot tell: {error}")
