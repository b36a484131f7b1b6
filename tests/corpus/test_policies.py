"""Real models under the rules of every system: valid, with the types that they had, and as near as recorded."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import onnx
import pytest

import amp_transpiler as amp
from tests.corpus.files import name_of
from tests.corpus.judging import judge
from tests.corpus.limits import PROPERTY

pytestmark = pytest.mark.slow

# Made wrong on purpose: see test_models.py.
BROKEN = {"exported/convmodel_bf16_already/dynamo_op22.onnx"}

Way = Callable[[pathlib.Path, str], amp.Program]


def _transpiled(**options: object) -> Way:
    def convert(model: pathlib.Path, dtype: str) -> amp.Program:
        program = amp.transpile(model, dtype=dtype, verify=False, **options, prefer="size").program  # type: ignore[arg-type]  # a table's
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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_every_policy_gives_valid_models(
    model: pathlib.Path,
    way: str,
    dtype: str,
    recording: bool,
    tmp_path: pathlib.Path,
    record_property: Callable[[str, object], None],
) -> None:
    if name_of(model) in BROKEN:
        with pytest.raises(amp.ModelError):
            WAYS[way](model, dtype)
        return
    program, written = WAYS[way](model, dtype), tmp_path / "low.onnx"
    amp.save(program, written, durable=False)
    judged = judge(model, written, f"{way} {dtype}", optimized=False)
    record_property(PROPERTY, judged.measured)
    record_property("summary", judged.told)
    assert not judged.invalid
    assert recording or not judged.worse
    if way != "autocast":  # whose outputs come as they are computed
        source, result = (onnx.load(path, load_external_data=False) for path in (model, written))
        assert _types(source) == _types(result)


def _types(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(value.name, value.type.tensor_type.elem_type) for value in model.graph.output]
