"""Declares the options that only the command has; `conversion.py` holds those of the conversions that it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from amp_transpiler.options.option import option
from amp_transpiler.options.reading import number_of_processes

__all__ = ["CommandOptions"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """The options of one call of the command, in the order of `--help`; the words of each are its documentation."""

    models: Sequence[str] = option(
        (),
        group="files",
        metavar="MODEL",
        parameter="src",
        text="An float32 ONNX file; a folder, for every `.onnx` file directly in it except results of former runs "
        "(`*.fp16.onnx`, `*.bf16.onnx`, `*.fp32.onnx`), with `--recursive` for those in the folders inside it, too; or "
        "`-`, for standard input.",
        python="The model: a path, `onnx.ModelProto`, `onnx_ir.Model`, torch's `ONNXProgram` or a `Program`. It is "
        "never changed.",
        collect=list,
    )
    output: str | None = option(
        None,
        group="files",
        flags=("-o",),
        metavar="OUT",
        parameter="dst",
        short="the result: a file, or a folder with a slash",
        text="The file to write; with a slash at its end, and for several models or a folder of them, the folder; `-` "
        "for standard output. Default: `STEM.fp16.onnx` or `STEM.bf16.onnx` beside the model, `STEM.fp32.onnx` for one "
        "that is kept in float32. An existing file is replaced, a missing folder is made.",
        python="The file to write; None keeps the result in memory, as `Report.program`.",
    )
    recursive: bool = option(
        False,
        group="files",
        flags=("-r", "--recursive"),
        short="models of folders inside a folder, too",
        text="Take the models of the folders inside a folder, too, except hidden ones. Behind `-o` the results get the "
        "same folders.",
    )
    skip_unchanged: bool = option(
        False,
        group="files",
        flags=("--skip-unchanged",),
        text="Skip a model whose result is there and was made by this command from the same files, with the same "
        "options and versions. A call for several models that was cut goes on so where it ended.",
    )
    dry_run: bool = option(
        False,
        group="files",
        flags=("--dry-run",),
        text="Convert and check, but write no model.",
    )
    jobs: int = option(
        1,
        group="files",
        flags=("--jobs",),
        metavar="N",
        read=number_of_processes,
        short="convert N models at a time",
        text="Convert several models at a time, in N processes. Default: 1.",
    )
    benchmark: bool = option(
        False,
        group="check",
        flags=("--benchmark",),
        text="Measure both models in turns, on the GPU or without one on the CPU: latency (median, p90, p99), "
        "throughput, peak memory, time per operator, nodes on the CPU and copies. A result that is slower than float32 "
        "is said in red.",
    )
    explain: bool = option(
        False,
        group="report",
        flags=("--explain",),
        short="the precision of every node, and why",
        text="Print the precision of every node, and the reason.",
    )
    report: str | None = option(
        None,
        group="report",
        flags=("--report",),
        metavar="OUT.html",
        short="a page with the graph and every node",
        text="Write the report as an HTML page.",
    )
    json: str | None = option(
        None,
        group="report",
        flags=("--json",),
        metavar="OUT.json",
        text="Write the report as JSON; `-` prints it, and nothing else, to stdout.",
    )
    junit: str | None = option(
        None,
        group="report",
        flags=("--junit",),
        metavar="OUT.xml",
        text="Write which models were converted, and why others were not, as JUnit XML.",
    )
    sarif: str | None = option(
        None,
        group="report",
        flags=("--sarif",),
        metavar="OUT.sarif",
        text="Write what failed or looks wrong as SARIF, for the page of a pull request.",
    )
    save_recipe: str | None = option(
        None,
        group="report",
        flags=("--save-recipe",),
        metavar="R.toml",
        for_copies=False,
        text="Write the conversion as a recipe for `--recipe`: options, decisions by node, versions.",
    )
    quiet: bool = option(
        False,
        group="report",
        flags=("-q", "--quiet"),
        text="Print only warnings and errors.",
    )
    verbose: int = option(
        0,
        group="report",
        flags=("-v", "--verbose"),
        repeated=True,
        text="Print log messages, and the traceback of an internal error. Twice: debug messages too.",
        collect=int,
    )
