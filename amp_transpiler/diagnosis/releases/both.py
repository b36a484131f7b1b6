"""Runs a model in two interpreters with their releases of ONNX Runtime, and compares graphs and results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.child_process.interpreter import Interpreter, RunReply
from amp_transpiler.conversion import plain_copy
from amp_transpiler.diagnosis.releases.departure import departures
from amp_transpiler.diagnosis.releases.fusions import fusion_changes, operator_changes, surviving_values
from amp_transpiler.diagnosis.subject import dtype_of
from amp_transpiler.errors import InputError
from amp_transpiler.files.external_data import external_files
from amp_transpiler.files.saving import save
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.program.program import Program
from amp_transpiler.report.comparison import OutputComparison
from amp_transpiler.report.release_difference import ReleaseDeparture, ReleaseRun, RunDifference, Which
from amp_transpiler.runtime.feeds import check_feeds, model_inputs
from amp_transpiler.runtime.ort import CPU_PROVIDER, error_text
from amp_transpiler.verification.compare import compare_outputs

__all__ = ["Both", "Samples"]

_MODEL = "model.onnx"
_MESSAGE = 600  # characters


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """The inputs that models run on.

    Attributes:
        arrays: input name -> array, one dict per sample.
        given: they are the user's, not made up.
    """

    arrays: Sequence[Mapping[str, Any]]
    given: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    """A model in a folder of its own, with its samples.

    Attributes:
        folder: the folder.
        model: the file.
        feeds: files of the samples.
        cuda: whether it runs on CUDA, where an interpreter has a GPU.
    """

    folder: pathlib.Path
    model: pathlib.Path
    feeds: Sequence[pathlib.Path]
    cuda: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Both:
    """Two interpreters, each with the ONNX Runtime that a user names."""

    old: Interpreter
    new: Interpreter

    @property
    def names(self) -> tuple[str, str]:
        """How rows call the releases: by their versions, with the interpreter where both have the same."""
        if self.old.version != self.new.version:
            return self.old.version, self.new.version
        return f"{self.old.version} (old)", f"{self.new.version} (new)"

    def compare(
        self, which: Which, program: Program, samples: Samples, tolerance: float, *, cuda: bool
    ) -> RunDifference:
        """Run a model in both releases.

        Args:
            which: which model it is.
            program: the model.
            samples: what it runs on; other types of floats are converted.
            tolerance: the largest difference of an output that is no change, a fraction.
            cuda: on CUDA where both interpreters have a GPU; else on the CPU.

        Raises:
            InputError: a sample does not fit the model.
        """
        with _opened(program, samples, cuda=cuda) as asked:
            opened, replies = asked, self._run_by_default(asked)
            notes = []
            if replies[0].ran and replies[1].ran and replies[0].provider != replies[1].provider:
                notes.append(f"only one of the releases runs on {_gpu(replies)}, so both ran on the CPU")
                opened = dataclasses.replace(asked, cuda=False)
                replies = self._run_by_default(opened)
            runs = [
                ReleaseRun(
                    release=side.version,
                    python=side.path,
                    stage=reply.stage,
                    message=_line(reply.message, opened.folder),
                )
                for side, reply in zip((self.old, self.new), replies, strict=True)
            ]
            difference = RunDifference(
                model=which,
                provider=next((reply.provider for reply in replies if reply.provider), ""),
                old=runs[0],
                new=runs[1],
                samples=len(samples.arrays),
                given=samples.given,
                notes=tuple(notes),
            )
            if not (replies[0].ran and replies[1].ran):
                return difference
            return self._compared(difference, opened, replies, program, tolerance)

    def _run_by_default(self, opened: _Opened) -> tuple[RunReply, RunReply]:
        replies = [
            side.run(
                opened.model,
                opened.feeds,
                _results(opened, name),
                cuda=opened.cuda,
                optimized=_graph_file(opened, name),
            )
            for name, side in (("old", self.old), ("new", self.new))
        ]
        return replies[0], replies[1]

    def _compared(
        self,
        difference: RunDifference,
        opened: _Opened,
        replies: tuple[RunReply, RunReply],
        program: Program,
        tolerance: float,
    ) -> RunDifference:
        model = onnx.load(opened.model, load_external_data=False)
        names = [info.name for info in model.graph.output]
        unread = {*replies[0].unread, *replies[1].unread}
        outputs = compare_outputs(_arrays(opened, "old", names, unread), _arrays(opened, "new", names, unread))
        graphs = (_graph(opened, "old"), _graph(opened, "new"))
        random = any(node.op_type in RANDOM for node in model.graph.node)
        notes = [*difference.notes]
        if unread:
            notes.append(f"no arrays, and so not compared: {', '.join(sorted(unread))}")
        if random:
            notes.append("the model draws random numbers, so that results differ in any two runs")
        return dataclasses.replace(
            difference,
            outputs=outputs,
            excess=max((_excess(row, tolerance) for row in outputs.values()), default=0.0),
            operators=tuple(operator_changes(*graphs)),
            fusions=fusion_changes(model.graph, graphs, self.names),
            departures=() if random else tuple(self._departures(opened, model, graphs, program)),
            notes=tuple(notes),
        )

    def _departures(
        self, opened: _Opened, model: onnx.ModelProto, graphs: tuple[onnx.GraphProto, onnx.GraphProto], program: Program
    ) -> Iterator[ReleaseDeparture]:
        """Yield where results part without optimizations, and then with the default ones."""
        plain = plain_copy(program)
        fetchable, low = _fetchable(model, plain), dtype_of(plain)
        coarsest = "float32" if low is None else low.name
        surviving = set(surviving_values(model.graph, *graphs))
        for optimized in (False, True):
            values = [name for name in fetchable if not optimized or name in surviving]

            def run_both(
                file: pathlib.Path, names: Sequence[str], *, optimized: bool = optimized
            ) -> tuple[pathlib.Path, pathlib.Path] | None:
                files = (opened.folder / "old.group.npz", opened.folder / "new.group.npz")
                ran = all(
                    side.run(file, opened.feeds[:1], [to], outputs=names, optimize=optimized, cuda=opened.cuda).ran
                    for side, to in zip((self.old, self.new), files, strict=True)
                )
                return files if ran else None

            yield from departures(model, values, opened.folder, run_both, optimized=optimized, coarsest=coarsest)


def _gpu(replies: Sequence[RunReply]) -> str:
    return next(reply.provider for reply in replies if reply.provider != CPU_PROVIDER)


def _line(message: str, folder: pathlib.Path) -> str:
    """Return what a release said as one line, without the places of its sources and of the temporary files."""
    return error_text(ValueError(message.replace(f"{folder}{os.sep}", "")), _MESSAGE) if message else ""


def _excess(row: OutputComparison, tolerance: float) -> float:
    return max(row.relative, row.mismatch) / tolerance


def _fetchable(model: onnx.ModelProto, plain: Program) -> list[str]:
    """Return the results of the main graph that numpy can hold, in the order of the model."""
    typed = {str(value.name): value for node in plain.model.graph for value in node.outputs}
    names = []
    for name in (name for node in model.graph.node for name in node.output if name):
        value = typed.get(name)
        if value is not None and isinstance(value.type, ir.TensorType) and value.dtype in _NUMPY:
            names.append(name)
    return names


_NUMPY = frozenset(
    {
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
        ir.DataType.DOUBLE,
        ir.DataType.BOOL,
        *(ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16, 32, 64)),
    }
)


@contextlib.contextmanager
def _opened(program: Program, samples: Samples, *, cuda: bool) -> Iterator[_Opened]:
    """Put a model and its samples into a folder: the files as they are, if it comes from files.

    Raises:
        InputError: a sample does not fit the model.
    """
    with temporary_folder() as folder:
        model = folder / _MODEL
        if program.source is None:
            save(program, model, durable=False)
        else:
            _bring(program.source, model)
            for file in external_files(program.model):
                _bring(file, folder / os.path.relpath(file, program.source.parent))
        yield _Opened(folder, model, _feed_files(program, samples, folder), cuda)


def _bring(file: pathlib.Path, place: pathlib.Path) -> None:
    """Link a file to a place, or copy it to another file system; ONNX Runtime refuses symbolic links."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


def _feed_files(program: Program, samples: Samples, folder: pathlib.Path) -> list[pathlib.Path]:
    infos = model_inputs(program.model)
    names = {info.name for info in infos}
    files = []
    for number, sample in enumerate(samples.arrays):
        arrays = check_feeds({key: value for key, value in sample.items() if key in names}, infos, lenient=True)
        for key, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiubUSO":
                raise InputError(f"input {key!r} cannot be handed to another interpreter: it is no array of numpy's")
        files.append(folder / f"feeds{number}.npz")
        plain = {key: array.astype(np.str_) if array.dtype == object else array for key, array in arrays.items()}
        np.savez(files[-1], **plain)
    return files


def _results(opened: _Opened, side: str) -> list[pathlib.Path]:
    return [opened.folder / f"{side}{number}.npz" for number in range(len(opened.feeds))]


def _graph_file(opened: _Opened, side: str) -> pathlib.Path:
    folder = opened.folder / side
    folder.mkdir(exist_ok=True)
    return folder / "optimized.onnx"


def _graph(opened: _Opened, side: str) -> onnx.GraphProto:
    return onnx.load(_graph_file(opened, side), load_external_data=False).graph


def _arrays(opened: _Opened, side: str, names: Sequence[str], unread: set[str]) -> Iterator[dict[str, Any]]:
    for file in _results(opened, side):
        with np.load(file) as arrays:
            yield {name: arrays[str(number)] for number, name in enumerate(names) if name not in unread}
