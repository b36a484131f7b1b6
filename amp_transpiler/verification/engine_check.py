"""Has TensorRT's own parser and builder try the written file, before it is put in its place."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import numpy as np

from amp_transpiler.child_process.child import TIMED_OUT, RuntimeCrash, lease
from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.files.saving import stage
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.graph.input_roles import CannotSynthesise, ModelInput
from amp_transpiler.graph.input_sizes import Guess, shapes
from amp_transpiler.program.program import Program
from amp_transpiler.report.facts import FileCheck, Findings
from amp_transpiler.report.verdict import Judgement, Verdict
from amp_transpiler.runtime.engines import EngineBuild, Profile, Span, has_builder
from amp_transpiler.targets import Target
from amp_transpiler.targets.tensorrt import BuildWish
from amp_transpiler.verification.inputs import Inputs, given_inputs

__all__ = [
    "check_build_wish",
    "check_engine",
    "guessed_profile",
    "profile_of",
    "samples_for",
]

logger = logging.getLogger(__name__)

Samples: TypeAlias = Sequence[Mapping[str, Any]]
Builder: TypeAlias = Callable[[pathlib.Path, Profile], EngineBuild]

_INSTALL = "pip install 'amp-transpiler[tensorrt]'"
_NOT_BUILT = (
    f"not built: {_INSTALL} (Linux or Windows on x86-64) brings TensorRT-RTX's builder, which then tries each result"
)
_FLOAT64 = "--float64 float32-io makes it float32, and compares the result with the source"
_TIMEOUT = 900.0  # seconds; most models take less than one
_MOST_SIZES = 64  # elements of an integer input that may hold sizes


def check_build_wish(wish: str, target: Target) -> None:
    """Say so if a wish cannot be carried out.

    Raises:
        OptionError: there is no such value, or no engine is built for the target.
        EnvironmentProblem: an engine has to be built, and there is no builder.
    """
    if wish not in get_args(BuildWish):
        raise OptionError(f"build is {wish!r}: expected 'auto', 'yes' or 'no'")
    if wish != "yes":
        return
    if not target.builds_engines:
        raise OptionError(
            f"build is 'yes', but no engine is built for target {target.name}: choose target tensorrt, or leave it out"
        )
    if not has_builder():
        raise EnvironmentProblem(
            f"build is 'yes', but TensorRT-RTX's builder is not installed: {_INSTALL} (Linux or Windows on x86-64), or "
            "leave the option out"
        )


def check_engine(
    path: pathlib.Path,
    source: Program,
    samples: Samples,
    wish: str,
    dims: Mapping[str, int],
    builder: Builder | None = None,
    *,
    has_float64: bool = False,
    plugins: Collection[str] = (),
) -> FileCheck:
    """Build an engine of the written file, and throw it away.

    Args:
        path: the written file.
        source: the program as the user gave it: what the builder refuses of that, too, is no fault of the conversion.
        samples: inputs whose sizes count; empty for sizes that are guessed.
        wish: `yes` or `auto`; a builder that cannot be used is a failure or a note.
        dims: sizes of open dimensions by name, for guesses.
        builder: builds; None for TensorRT-RTX in a child process.
        has_float64: the written file has values of float64, a type that TensorRT does not have.
        plugins: full names of operators whose types the user declares, which plugins of the user implement.

    Returns:
        What it showed. It fails if the result is refused and the source is not; with `yes` also if both are.
    """
    if builder is None:
        problem = _problem()
        if problem:
            return _unknown(problem, wish)
        builder = _built
    profile = profile_of(samples) if samples else guessed_profile(source, dims)
    try:
        engine = builder(path, profile)
    except RuntimeCrash as crash:
        if crash.signal in (TIMED_OUT, "SIGKILL"):
            return _unknown(f"not built: {_words_of(crash)}", wish)
        engine = EngineBuild("TensorRT-RTX", fault=_words_of(crash))
    if not engine.fault:
        narrowed = f"{engine.builder} makes float64 float32, inputs and outputs included, which was not compared"
        notes = (f"{narrowed}: {_FLOAT64}",) if has_float64 else ()
        return FileCheck((f"{engine.builder} builds an engine",), findings=Findings(notes=notes), engine=engine)
    if engine.operator and engine.operator in {operator.rpartition("::")[2] for operator in plugins}:
        return _unknown(
            f"not built: {engine.builder} refuses the result as it does the source: it has no operator "
            f"'{engine.operator}', and the plugin that you declared for it is not loaded here",
            wish,
        )
    fault = _fault(engine)
    remedy = f"the result has float64, which TensorRT lacks: {_FLOAT64}; " if has_float64 else ""
    if wish != "yes" and _refuses_source(source, profile, builder):
        note = f"fault of the source: {engine.builder} refuses it, too; of the result: {fault}"
        return FileCheck(findings=Findings(notes=(note + f"; {remedy}".rstrip("; "),)), engine=engine)
    failure = f"{engine.builder} refuses the result: {fault}. {remedy}{_remedy(engine)}"
    judgement = Judgement(Verdict.FAILED, {"why": f"{engine.builder} refuses the result"})
    return FileCheck(findings=Findings(judgement, failure=failure), engine=engine)


def _problem() -> str:
    """Return why the builder cannot be used; empty if it can."""
    if not has_builder():
        return _NOT_BUILT
    with lease() as child:
        _, reason = child.ask("engine_builder")
    return f"not built: TensorRT-RTX's builder does not load: {reason}" if reason else ""


def _unknown(reason: str, wish: str) -> FileCheck:
    """Note that nothing was built; that is a failure where it was asked for."""
    if wish != "yes":
        return FileCheck(findings=Findings(notes=(reason,)))
    return FileCheck(findings=Findings(Judgement(Verdict.FAILED, {"why": reason}), failure=reason))


def _built(path: pathlib.Path, profile: Profile) -> EngineBuild:
    with lease() as child:
        engine = child.ask("build_engine", str(path.absolute()), profile, timeout=_TIMEOUT)
    assert isinstance(engine, EngineBuild)
    return engine


def _words_of(crash: RuntimeCrash) -> str:
    if crash.signal == TIMED_OUT:
        return f"TensorRT's builder gave no answer within {_TIMEOUT:.0f} s"
    return f"TensorRT's builder ended its process ({crash.signal})"


def _fault(engine: EngineBuild) -> str:
    if not engine.node:
        return engine.fault
    operator = f" ({engine.operator})" if engine.operator else ""
    return f"node '{engine.node}'{operator}: {engine.fault}"


def _remedy(engine: EngineBuild) -> str:
    black = f"--black {engine.operator} keeps such nodes in float32" if engine.operator else ""
    node = "" if black or not engine.node else "--disable-amp keeps the node in float32"
    return f"{black or node or '--level O1 leaves more in float32'}; --build no writes it without this check"


def _refuses_source(source: Program, profile: Profile, builder: Builder) -> bool:
    """Whether the builder refuses the source, too."""
    with temporary_folder() as folder, stage(source, folder / "model.onnx", durable=False, verbatim=True) as staged:
        try:
            return bool(builder(staged.path, profile).fault)
        except RuntimeCrash as crash:
            logger.info("the source: %s", _words_of(crash))
            return True


def profile_of(samples: Samples) -> Profile:
    """Return the sizes that samples span, and the numbers of their small integer inputs; the first sample is the usual.

    Args:
        samples: input -> array, a dict a sample.
    """
    arrays = {name: [np.asarray(sample[name]) for sample in samples if name in sample] for name in samples[0]}
    tensors = {name: row for name, row in arrays.items() if all(array.ndim == row[0].ndim for array in row)}
    integers = {
        name: row
        for name, row in tensors.items()
        if row[0].dtype.kind in "iu" and row[0].size <= _MOST_SIZES and len({array.shape for array in row}) == 1
    }
    return Profile(
        {name: _span([array.shape for array in row]) for name, row in tensors.items()},
        {name: _span([tuple(map(int, array.ravel())) for array in row]) for name, row in integers.items()},
    )


def _span(rows: Sequence[tuple[int, ...]]) -> Span:
    return tuple(map(min, zip(*rows, strict=True))), rows[0], tuple(map(max, zip(*rows, strict=True)))


def guessed_profile(source: Program, dims: Mapping[str, int]) -> Profile:
    """Return likely sizes of inputs of which there is no sample."""
    try:
        inputs = [ModelInput.of(value) for value in source.model.graph.inputs if not value.is_initializer()]
    except CannotSynthesise:  # an input is no tensor, which has no size
        return Profile({})
    sizes = shapes(inputs, Guess(), dict(dims))
    return Profile({name: (shape, shape, shape) for name, shape in sizes.items()})


def samples_for(inputs: Inputs | None, source: Program) -> Samples:
    """Return the samples that the user gave; empty for none."""
    return () if inputs is None else given_inputs(inputs, source.model)
