"""Converts models, looks at reports and runs the results, as a typed project would."""

import pathlib

import numpy as np
import numpy.typing as npt
import onnx

import amp_transpiler as amp
from amp_transpiler.compat import convert_float_to_float16

Float32 = npt.NDArray[np.float32]


def converted(source: pathlib.Path, samples: list[dict[str, Float32]]) -> amp.Report:
    report = amp.transpile(source, source.with_suffix(".fp16.onnx"), inputs=samples, tolerance=0.01, prefer="time")
    print(f"{report.verdict}: {report.low_nodes} of {report.nodes} nodes low, {report.casts} casts")
    return report


def reasons(report: amp.Report) -> dict[str, str]:
    return {row.name: row.reason for row in report.decisions if row.precision == "low"}


def errors(report: amp.Report) -> dict[str, float | None]:
    return {name: output.relative for name, output in report.outputs.items()}


def by_hand(source: str) -> set[str]:
    program = amp.load(source)
    lists = amp.AutoMixedPrecisionLists(custom_black_list=["Softmax"])
    amp.mark_region(program, "disable_amp", nodes="head/.*")
    names = amp.cast_model_to_fp16(program, lists, level="O2")
    amp.save(program, "low.onnx")
    return names


def as_before(model: onnx.ModelProto) -> onnx.ModelProto:
    return convert_float_to_float16(model, keep_io_types=True, op_block_list=["Softmax"])


def outputs(path: str, feeds: dict[str, Float32]) -> list[str]:
    place = amp.CPUPlace()
    with amp.Session(path, place) as session:
        values = session.run(feeds)
        return [f"{info.name}: {np.shape(value)}" for info, value in zip(session.outputs, values, strict=True)]


def slower(source: str, low: str, feeds: dict[str, Float32]) -> bool:
    result = amp.benchmark(source, low, feeds)
    return result.slower_than_fp32 is True


def attempt(source: pathlib.Path) -> int:
    try:
        amp.transpile(source)
    except amp.CheckFailed as failure:
        print(failure.report.verdict if failure.report is not None else failure)
        return 1
    except amp.InputError as error:
        print(error)
        return 2
    return 0
