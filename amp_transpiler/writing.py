"""The last stage of a conversion: the result is staged, checked as a file, and put in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.errors import CheckFailed
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import Staged, stage
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.job import Job
from amp_transpiler.needless import is_the_source
from amp_transpiler.program.low_values import has_values_of
from amp_transpiler.program.program import Program
from amp_transpiler.program.training_info import split
from amp_transpiler.report.assembly import assemble
from amp_transpiler.report.facts import FileCheck
from amp_transpiler.verification.check_file import check_result
from amp_transpiler.verification.verify import Basis

__all__ = ["as_loaded", "write_result"]


def write_result(job: Job) -> None:
    """Write the result to its destination, after checking the staged file if verification is on."""
    verbatim_source = _source_to_write(job)
    job.facts.is_source_file = verbatim_source is not None
    basis = _basis_of_file(job)
    builds = _wants_engine(job)
    with job.clock.phase("write"), _staged(job, verbatim_source, is_checked=basis is not None or builds) as staged:
        if staged is not None and basis is not None:
            job.facts.file_check = check_result(staged, job.program, basis, job.facts, job.clock.phase)
            _refuse_file(job)
        if staged is not None and builds:
            job.facts.file_check = job.facts.file_check.then(_built(job, staged, basis))
            _refuse_file(job)
        if staged is not None and job.destination is not None:
            job.facts.written_bytes = staged.file_bytes
            staged.commit()
            job.program.source = job.destination


def _refuse_file(job: Job) -> None:
    if fault := job.facts.file_check.findings.failure:
        source = job.facts.task.source
        raise CheckFailed(f"{source}: {fault}; nothing was written", assemble(job.facts, job.destination))


def _wants_engine(job: Job) -> bool:
    """Whether the target's builder is asked, or a note says that there is none."""
    options = job.plan.options
    is_wanted = options.build == "yes" or (options.build == "auto" and options.verify)
    return job.policy.target.builds_engines and is_wanted


def _built(job: Job, staged: Staged, basis: Basis | None) -> FileCheck:
    """Have the target's builder try the file, at the sizes of the samples."""
    from amp_transpiler.verification.engine_check import check_engine, samples_for  # few targets build engines

    options, loaded = job.plan.options, as_loaded(job)
    with job.clock.phase("build"):
        reference = None if basis is None else basis.reference
        samples = samples_for(options.inputs, loaded) if reference is None else reference.samples
        has_float64 = has_values_of(job.program.model, {ir.DataType.DOUBLE})
        return check_engine(
            staged.path,
            loaded,
            samples,
            options.build,
            options.dims or {},
            has_float64=has_float64,
            plugins=job.policy.custom_types,
        )


def _source_to_write(job: Job) -> Program | None:
    """Return the model as it was loaded if it was kept in float32, so that it is written as it is; else None.

    A source that ONNX Runtime does not run is not: what was mended in it on the way makes the result run.
    """
    facts, basis = job.facts, job.basis
    runs = basis is None or basis.reference is not None or basis.known is not None
    if job.is_changed or not (facts.description.kept_float32 and runs and not facts.optimization.fused):
        return None
    loaded = as_loaded(job)
    return loaded if is_the_source(loaded, job.program, job.conversion, job.policy) else None


def as_loaded(job: Job) -> Program:
    """Return the model as it was loaded. Where that program itself is worked on, its file is read once more."""
    if job.program is job.loaded:
        job.loaded = load(job.src)
    return job.loaded


def _basis_of_file(job: Job) -> Basis | None:
    """Take training algorithms out of the graph again; return what the file, whose graph lacks them, is checked by."""
    if job.program.merged is None:
        return job.basis
    split(job.program)
    return None if job.basis is None else job.basis.without_algorithms(job.loaded)


@contextlib.contextmanager
def _staged(job: Job, verbatim_source: Program | None, *, is_checked: bool) -> Iterator[Staged | None]:
    """Write the program next to its destination; to a temporary folder if it is only checked; else nowhere.

    Args:
        job: the program and its destination.
        verbatim_source: the source, to be written in place of the program; None for the program.
        is_checked: the file is checked.
    """
    written, verbatim = (job.program, False) if verbatim_source is None else (verbatim_source, True)
    if job.destination is not None:
        with stage(
            written,
            job.destination,
            progress=lambda done, total: job.clock.tell("write", done / max(1, total)),
            verbatim=verbatim,
        ) as staged:
            yield staged
    elif is_checked:
        with (
            temporary_folder() as folder,
            stage(written, folder / "model.onnx", durable=False, verbatim=verbatim) as staged,
        ):
            yield staged
    else:
        yield None
