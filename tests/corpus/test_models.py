"""Real models, shipped by others and exported from PyTorch: converted at every level, valid, as near as recorded."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

import onnx
import pytest

import amp_transpiler as amp
from tests.corpus import verdicts
from tests.corpus.files import inputs_of, name_of, real_models
from tests.corpus.judging import contradictions, judge
from tests.corpus.limits import PROPERTY

pytestmark = pytest.mark.slow

# Made wrong on purpose: its convolutions read bfloat16 and float32. The message must name the first of them.
BROKEN = {"exported/convmodel_bf16_already/dynamo_op22.onnx": "node_Conv_20"}
# Models that hold a 16-bit format already: in that format there is nothing to do, and they are copied.
ALREADY = {
    "exported/convmodel_fp16_already/dynamo.onnx": "float16",
    "exported/convmodel_fp16_already/torchscript.onnx": "float16",
    "exported/mlp_bf16_already/dynamo.onnx": "bfloat16",
}
# What cannot be in range at a level that keeps few nodes float32, and is refused.
FAILS = {("shipped/ddddocr/common_old.onnx", "O2", "float16"): "non-finite values where fp32 is finite"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_converts(
    model: pathlib.Path,
    level: str,
    dtype: str,
    recording: bool,
    tmp_path: pathlib.Path,
    few_draws: Callable[[], None],
    record_property: Callable[[str, object], None],
) -> None:
    if level != "auto":
        few_draws()
    name, start, written = name_of(model), time.perf_counter(), tmp_path / "low.onnx"
    if name in BROKEN:
        with pytest.raises(amp.ModelError, match=BROKEN[name]):
            amp.transpile(model, written, level=level, dtype=dtype, inputs=inputs_of(model), prefer="size")
        return
    try:
        report = amp.transpile(model, written, level=level, dtype=dtype, inputs=inputs_of(model), prefer="size")
    except amp.CheckFailed as error:
        record_property(
            verdicts.PROPERTY, verdicts.row(name, level, dtype, "failed", str(error).removeprefix(f"{model}: "), [])
        )
        if FAILS.get((name, level, dtype), "no failure at all") not in str(error):
            raise
        return
    assert (name, level, dtype) not in FAILS, report.verdict
    if "comparing would need about" in report.verdict:
        pytest.skip(f"{name}: {report.verdict}")
    # A report may tell of a fault in ONNX Runtime's optimizer; the file itself must be one that it opens.
    refused = [note for note in report.notes if "default session (CPU) refuses" in note]
    judged = judge(model, written, f"{level} {dtype}", optimized=not refused)
    contradicted = contradictions(report, judged.values, dtype)
    told = report.verdict if judged.values else f"{report.verdict}; {judged.told}"
    record_property(verdicts.PROPERTY, verdicts.row(name, level, dtype, report.verdict_word, told, contradicted))
    words = ("verified", "estimated", "plausible") if level == "auto" else ("compared",)
    assert report.verdict_word in (("not checked",) if ALREADY.get(name) == dtype else words), report.verdict
    _assert_same_interface(model, onnx.load(written, load_external_data=False))
    record_property(PROPERTY, judged.measured)
    took = f"{len(report.repaired)} repaired, {time.perf_counter() - start:.1f} s"
    record_property("summary", "; ".join([f"{judged.told}, {took}", *refused]))
    assert not judged.invalid
    assert recording or not judged.worse
    assert not contradicted


def _assert_same_interface(model: pathlib.Path, result: onnx.ModelProto) -> None:
    source = onnx.load(model, load_external_data=False)
    assert _types(source.graph.output) == _types(result.graph.output)
    assert _required_inputs(source) == _required_inputs(result)


def _required_inputs(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """List the inputs; in an old model every initializer is one, too, and those are left out."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return _types([value for value in model.graph.input if value.name not in constants])


def _types(values: list[onnx.ValueInfoProto]) -> list[tuple[str, str]]:
    """List names and types, shapes apart: a wrong declared shape of a source is mended."""
    listed = []
    for value in values:
        type_ = onnx.TypeProto()
        type_.CopyFrom(value.type)
        if type_.HasField("tensor_type"):
            type_.tensor_type.ClearField("shape")
        type_.ClearField("denotation")
        listed.append((value.name, str(type_)))
    return listed


def test_named_exceptions_are_in_the_corpus(corpus: pathlib.Path) -> None:
    models = real_models(corpus)
    absent = tuple(f"{name}/" for name in models.absent)
    present = set(map(name_of, models.present))
    assert not [name for name in {*BROKEN, *ALREADY} - present if not name.startswith(absent)]
