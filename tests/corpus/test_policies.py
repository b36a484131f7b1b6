"""Real models under the rules of every system: valid ONNX that ONNX Runtime loads, with the types that they had."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.checker import checker_fault
from amp_transpiler.graph.saving import stage
from amp_transpiler.verification.structure import check_load
from tests.corpus.files import name_of

pytestmark = pytest.mark.slow

# Made wrong on purpose: see test_models.py.
BROKEN = {"exported/convmodel_bf16_already/dynamo_op22.onnx"}

Way = Callable[[pathlib.Path, str], amp.Program]


def _transpiled(**options: object) -> Way:
    def convert(model: pathlib.Path, dtype: str) -> amp.Program:
        program = amp.transpile(model, dtype=dtype, verify=False, **options).program  # type: ignore[arg-type]  # a table's
        assert program is not None
        return program

    return convert


# What is done to a model, O1 and O2 of Paddle aside, which test_models.py has.
WAYS: dict[str, Way] = {
    "policy torch": _transpiled(policy="torch"),
    "policy raf": _transpiled(policy="raf"),
    "policy mxnet": _transpiled(policy="mxnet"),
    "preset mp1": _transpiled(preset="mp1"),
    "preset mp4": _transpiled(preset="mp4"),
    "preset default": _transpiled(preset="default"),
    "mixed operators": _transpiled(mixed_ops="gemm,softmax"),
    "autocast": lambda model, dtype: amp.autocast(model, dtype=dtype),
    "convert_model": lambda model, dtype: amp.convert_model(model, target_dtype=dtype),
    "convert_model, offline": lambda model, dtype: amp.convert_model(
        model, target_dtype=dtype, cast_params_offline=True
    ),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_every_policy_gives_valid_models(
    model: pathlib.Path, way: str, dtype: str, tmp_path: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    if name_of(model) in BROKEN:
        with pytest.raises(amp.ModelError):
            WAYS[way](model, dtype)
        return
    program = WAYS[way](model, dtype)
    source_fault = checker_fault(amp.load(model).model)
    if not source_fault:
        assert not checker_fault(program.model)
    with stage(program, tmp_path / "low.onnx") as staged:
        loaded = check_load(staged.path, program)
    assert loaded.outcome != "refused", loaded.detail
    if way != "autocast":  # whose outputs come as they are computed
        assert _types(onnx.load(model, load_external_data=False)) == _types(program.to_onnx())
    low = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}[dtype]
    values = [value for node in program.model.graph.all_nodes() for value in node.outputs]
    count = sum(value.dtype is not None and int(value.dtype) == low for value in values)
    record_property("summary", f"{count} of {len(values)} values low")


def _types(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(value.name, value.type.tensor_type.elem_type) for value in model.graph.output]
