"""Makes of a model a checked mixed-precision model: load, prepare, decide, rewrite, compare, check, save."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from amp_transpiler.conversion import Conversion, adds_nothing, convert, is_the_source, plain_copy, prepare
from amp_transpiler.errors import CheckFailed, OptionError
from amp_transpiler.files.copy_files import copy_model
from amp_transpiler.files.loading import Source
from amp_transpiler.files.saving import DefaultPlace, Staged, check_destination, stage
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.job import Job, Marks, begin, with_program
from amp_transpiler.option_table import named_as_in_the_table
from amp_transpiler.passes.training.aids import add_training_aids
from amp_transpiler.precision.limits import HEADROOM, Mismatch, Tolerance, checked_headroom, with_limits
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.preference import Preference, objective_of, recorded
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.thresholds import checked_thresholds
from amp_transpiler.precision.training import NO_STATE, UNSCALED, TrainingWishes, holds_gradients
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.program.program import Program
from amp_transpiler.program.training_info import split
from amp_transpiler.report import Report, Verdict
from amp_transpiler.report.clock import Clock, Progress
from amp_transpiler.report.describe import describe_copy, describe_needless, describe_result
from amp_transpiler.report.predictions import add_errors, as_its_source, predict_times
from amp_transpiler.report.recipe import Recipe, as_settings, digest
from amp_transpiler.systems.choice import (
    DEFAULT_DTYPE,
    DtypeName,
    LevelName,
    PolicyName,
    PresetName,
    Request,
    TargetName,
    choose_policy,
)
from amp_transpiler.systems.program_names import IoTypes
from amp_transpiler.targets.devices import DEFAULT_DEVICE, checked_dims, device_for
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.check_file import check_result
from amp_transpiler.verification.child import start_early
from amp_transpiler.verification.default_device import DeviceCheck, checked_wish
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.verification.transformers import (
    NotOptimized,
    attentions_to_fuse,
    check_optimizable,
    check_optimized,
    optimized,
)
from amp_transpiler.verification.user_metric import MetricFunction, load_metric
from amp_transpiler.verification.verify import Basis, Questions, check_source, convert_and_compare

__all__ = ["DefaultPlace", "transpile"]


@named_as_in_the_table
def transpile(
    src: Source,
    dst: str | os.PathLike[str] | None = None,
    *,
    level: LevelName = "auto",
    dtype: DtypeName = DEFAULT_DTYPE,
    target: TargetName = "cuda",
    keep_io_types: IoTypes = True,
    amp_lists: UserLists | None = None,
    use_promote: bool = False,
    guard: str | Collection[str] = (),
    disable_amp: str | Collection[str] = (),
    inputs: Inputs | None = None,
    tolerance: Tolerance | None = None,
    verify: bool = True,
    policy: PolicyName = "paddle",
    preset: PresetName | None = None,
    mixed_ops: str | Collection[str] = (),
    opset: int | None = None,
    include: str | Collection[str] = (),
    ort: str | None = None,
    mismatch: Mismatch | None = None,
    progress: Progress | None = None,
    state: Mapping[str, str] | None = None,
    master_weights: bool | None = None,
    loss_scaling: bool = False,
    optimize: bool = False,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    prefer: Preference = "balance",
    device: str = DEFAULT_DEVICE.name,
    dims: Mapping[str, int] | None = None,
    headroom: float = HEADROOM,
    data_max: float | None = None,
    init_max: float | None = None,
    max_depth_of_reduction: int | None = None,
    metric: str | MetricFunction | None = None,
    metric_bound: float | None = None,
    frontier: bool = False,
    cache: bool = True,
    device_check: DeviceCheck = "auto",
) -> Report:
    """Convert an fp32 model to mixed precision, check it, and write it.

    Args:
        src: The model: a path, `onnx.ModelProto`, `onnx_ir.Model`, torch's `ONNXProgram` or a `Program`. It is never
            changed.
        dst: The file to write; None keeps the result in memory, as `Report.program`.
        level: How much runs in lower precision. `auto` (default): all that the target can run and that is numerically
            safe, except nodes that go back to float32 until the result is accurate; `O0`: nothing (the files are
            copied); `OD`: the white list only; `O1`: the white operators of Paddle's lists, and gray ones that follow
            them; `O2`: all that the target can run, even operators on the default black list.
        dtype: The format to convert to. Default: `float16`, or `bfloat16` with a preset or mixed operators. The source
            may be in any of the three: another 16-bit format is made float32 first, exactly. With `float32` all 16-bit
            floats inside the model become float32; inputs and outputs follow with `keep_io_types=False`.
        target: Whose kernels count. `cuda` (default): ONNX Runtime's CUDA provider; `cpu`: ONNX Runtime's CPU provider;
            `any`: both providers; `tensorrt`: TensorRT (ONNX's schemas decide, since there is no kernel table).
        keep_io_types: Which inputs and outputs of the graph keep their types: all (True), none (False), or those named
            or matched by a pattern. A dict such as `{'past_key_values.*': 'low'}` names those that do not.
        amp_lists: Your own white and black operators and black variables, names or patterns of whole names; None for
            the default lists.
        use_promote: Paddle's promotion: an operator that the lists leave open stays float32 if one of its inputs is
            float32, and runs in lower precision otherwise. Constants do not count at levels auto and O2.
        guard: Patterns of node names. If any is given, only nodes whose name contains a match may run in lower
            precision.
        disable_amp: Patterns of node names. Nodes whose name contains a match stay as they are written.
        inputs: Samples to compare on: an .npz file, a folder, a dict, or several dicts. None: inputs made up from the
            model's shapes.
        tolerance: The largest relative error (of the norm) of an output: a fraction, or text such as `1%`,
            `logits=1%,boxes=0.5` or `2%,logits=1%`, or a dict of the same by output (a name or pattern). Default: 0.02
            in float16 and 0.05 in bfloat16 at level auto of policy paddle. Otherwise there is no limit: large errors
            are only warned of, but values that became infinite or NaN fail.
        verify: Check the result with onnx.checker, open and run it in ONNX Runtime, and compare it with the fp32 model.
            False: check only the types of every node's inputs.
        policy: Whose rules decide. Only `paddle` has levels OD and O2. `paddle` (default): Paddle's lists and levels;
            `torch`: PyTorch's autocast classes; `raf`: RAF's casting rules; `mxnet`: MXNet's conversion lists.
        preset: SambaNova's presets, instead of a policy and level. `mp0`: nothing (the files are copied); `mp1`: matrix
            products take inputs in lower precision (SambaNova recommends it); `mp4`: all that the target can run;
            `default`: like mp4, but what follows a cast to float32 in the source stays float32.
        mixed_ops: SambaNova's mixed operators, with or without a preset; several with commas or spaces. `gemm`: inputs
            in lower precision, result in float32; `softmax`: input in float32, result in lower precision.
        opset: The opset of the result. Default: the model's, or a higher one in which more nodes can run in lower
            precision. A lower one is an error unless the model can be written in it exactly.
        include: Patterns of node names. Nodes whose name contains a match run in lower precision by force, whatever
            lists, numerics and ranges say. An error where a schema forbids it or no provider would run the node.
        ort: The ONNX Runtime that is to run the result, such as `1.20`: its kernels, opset and IR version count.
            Releases 1.17 to 1.31 are known. Default: the installed one.
        mismatch: The largest share of the integers, truth values or texts of an output that may differ, such as `0.001`
            or `0.1%`. Default: none may wherever a tolerance applies, but for labels that fp32 itself decided by a
            hair's breadth (at most 1% of them); elsewhere there is no limit.
        progress: Called with the name of a phase and the fraction of it that is done.
        state: Input -> the output that replaces it in the next run of a training step, for pairs that are not found.
            The update of a state stays float32.
        master_weights: True: an error if no trained parameter is found. A parameter is its own float32 master; one that
            `keep_io_types` makes low gets an input and an output for its master. False: it gets none, and small updates
            vanish. Default: masters wherever parameters become low.
        loss_scaling: Scale the loss of a training step dynamically, so that small float16 gradients do not become zero.
            The scale is a new input and output.
        optimize: Let ONNX Runtime's transformers optimizer fuse the model first: attention, normalisation with what is
            added before, activations with their bias. The result is compared with the model as given; if the optimizer
            fails, or changes what is computed, a warning says so and the model is converted without it. Patterns of
            node names then see the fused model's. Not for target `tensorrt`.
        recipe: A recipe (`Report.save_recipe`) whose conversion is replayed, on the same model or on its next export:
            its options, except those given beside it, and its decision about each node, found by name. What no longer
            fits is warned of; nodes that the recipe does not know are decided anew.
        prefer: What level auto aims at, among all conversions that keep the limits, float32 among them. Where no times
            are predicted (targets `cpu` and `tensorrt`), and for training steps, `balance` is `size`. `balance`
            (default): the smallest file that is predicted at most a tenth slower on the device than the fastest one;
            `time`: the least predicted time; `size`: the smallest file: the most computation in lower precision, at the
            fewest casts; `low`: as `size`.
        device: The GPU whose times are predicted, for the report and for `--prefer`. `H100` (default): 80 GB, 3,350
            GB/s, 989 TFLOP/s; `H200`: 141 GB, 4,800 GB/s, 989 TFLOP/s; `A100`: 80 GB, 2,039 GB/s, 312 TFLOP/s; `L4`: 24
            GB, 300 GB/s, 121 TFLOP/s; `T4`: 16 GB, 320 GB/s, 65 TFLOP/s; `RTX4090`: 24 GB, 1,008 GB/s, 165 TFLOP/s.
        dims: Name of an open dimension of the inputs -> its size, for predicted times. Default: 1 for a batch, and for
            others what made-up inputs have.
        headroom: Level auto with data: a node may run in lower precision only if X times the largest magnitude that it
            was seen with fits. Default: 4.
        data_max: Keep a node in float32 if a value that it reads or computes is larger than X on the inputs, made-up
            ones included. Default: no such threshold.
        init_max: Keep a node in float32 if a constant that it reads has a finite number larger than X. Default: no such
            threshold.
        max_depth_of_reduction: Keep a node in float32 if it sums more than N terms into one number: the inner dimension
            of a matrix product, input channels times kernel of a convolution, the elements that a ReduceSum adds.
            Default: no such threshold.
        metric: Your own measure, with `metric_bound`: a function of the outputs of fp32 and of the result, each a list
            with a dict (output to array) for every sample, or `FILE.py:FUNCTION`; the less it returns, the better.
            Level auto finds the best conversion for which it is at most the bound, and no other tolerance holds unless
            one is given.
        metric_bound: The largest value of `metric` that is accepted.
        frontier: Level auto: work out the whole curve between accuracy and speed, from runs on the data:
            `Report.frontier`, and the error of each row of `Report.decisions`.
        cache: Keep what runs have shown about a model in the user's cache folder, and use what is there.
        device_check: Whether the written file is run on a device: as `amp.Session` opens it and as ONNX Runtime does by
            default, three times each on different samples. The verdict is then what the device measured, with the
            emulation beside it. `auto` (default): where the host's default place is a device; `yes`: always; an error
            where no device answers; `no`: never: the verdict is emulated.

    Returns:
        The report, with the converted program.

    Raises:
        InputError: the model, an option or the output place is wrong. Nothing is written.
        CheckFailed: the result is invalid or not accurate enough. Nothing is written.

    Example::

        import amp_transpiler as amp

        report = amp.transpile("model.onnx", "model.fp16.onnx", inputs="samples.npz", tolerance="1%")
        print(report.verdict)
        print([row.name for row in report.decisions if row.precision == "float32"])
    """
    arguments = dict(locals())
    if isinstance(recipe, (str, os.PathLike)):
        recipe = Recipe.read(recipe)
        return transpile(**{**arguments, **_added_by(recipe, arguments), "recipe": recipe})
    request = Request(
        policy=policy,
        level=level,
        dtype=dtype,
        target=target,
        use_promote=use_promote,
        preset=preset,
        mixed_ops=mixed_ops,
        opset=opset,
        ort=ort,
    )
    # A wrong option is reported before the model is read.
    chosen = _with_wishes(choose_policy(request), state, master_weights=master_weights, loss_scaling=loss_scaling)
    chosen = dataclasses.replace(chosen, limits=with_limits(chosen.limits, tolerance, mismatch))
    if recipe is not None:  # which is the outcome of a search, if one was needed
        chosen = dataclasses.replace(chosen, settled=recipe.settled(), search_runs=0)
    limited = metric is not None or not chosen.limits.are_none  # a default limit is one like any other
    asked = Questions(
        inputs,
        load_metric(metric, metric_bound),
        frontier=frontier,
        cache=cache,
        limited=limited,
        required=tolerance is not None or metric is not None or mismatch is not None,
        device_check=checked_wish(device_check, verify=verify),
    )
    formats = "" if chosen.copies else chosen.low.name
    gpu = device_for(device, chosen.target.name, formats, runs_on_gpu=chosen.target.runs_on_gpu)
    chosen = dataclasses.replace(chosen, device=gpu.name, dims=checked_dims(dims))
    chosen = _aimed(
        chosen,
        asked,
        prefer,
        checked_headroom(headroom),
        has_tolerance=tolerance is not None,
        replays=recipe is not None,
    )
    decides = not chosen.copies and chosen.low is not FLOAT32
    thresholds = checked_thresholds(data_max, init_max, max_depth_of_reduction, decides=decides, runs=verify)
    chosen = dataclasses.replace(chosen, thresholds=thresholds)
    if optimize:
        check_optimizable(chosen)
    marks = Marks(keep_io_types, guard, disable_amp, include)
    job = Job(
        src,
        dst,
        amp_lists,
        marks,
        recipe,
        asked,
        settings=as_settings(_changed(arguments)) | recorded(prefer, chosen),
        verify=verify,
        optimize=optimize,
    )
    return _run(job, request, chosen, Clock(progress))


def _changed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `transpile` that are not its defaults. A default that is written out counts as none."""
    parameters = inspect.signature(transpile).parameters
    return {name: value for name, value in arguments.items() if not _is_default(value, parameters[name].default)}


def _is_default(value: Any, default: Any) -> bool:
    if default is DEFAULT_DTYPE:  # which stands for another format with SambaNova's options
        return value is default
    return value is default or (isinstance(value, (str, tuple)) and value == default)


def _added_by(recipe: Recipe, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a recipe that the caller has not given otherwise."""
    changed = _changed(arguments)
    return {name: value for name, value in recipe.arguments().items() if name not in changed}


def _aimed(
    policy: Policy, asked: Questions, prefer: Preference, headroom: float, *, has_tolerance: bool, replays: bool
) -> Policy:
    """Return the policy with what level auto aims at.

    Raises:
        OptionError: an option has no meaning at another level or for the target, or is no value of its kind.
    """
    decides = policy.objective != "rules"
    objective = objective_of(prefer, policy, replays=replays)
    for name, is_given in (
        ("headroom", headroom != HEADROOM),
        ("frontier", asked.frontier),
    ):
        if is_given and not decides:
            raise OptionError(f"{name} has a meaning at level auto only, which decides by cost: drop one of the two")
    if asked.metric is not None and not has_tolerance:
        policy = dataclasses.replace(policy, limits=dataclasses.replace(policy.limits, tolerance=math.inf))
    return dataclasses.replace(policy, objective=objective, headroom=headroom) if decides else policy


def _run(job: Job, request: Request, chosen: Policy, clock: Clock) -> Report:
    """Convert one model."""
    with clock.phase("load"):
        begun = begin(job, request, chosen)
    loaded, source, program = begun.given, begun.source, begun.program
    chosen, report, destination = begun.policy, begun.report, begun.destination
    if chosen.copies:
        return _copied(source, chosen, report, destination, clock)
    if job.verify or job.optimize:
        start_early()
    reference: Reference | None = None
    if job.optimize:
        with clock.phase("optimize"):
            program, reference = _optimized(source, program, report, job)
            chosen = with_program(chosen, program, job.marks)
    ranges = RangeFaults(chosen.low, strict=chosen.strict_ranges)
    with clock.phase("prepare"):
        chosen, is_changed = _prepare(program, chosen, ranges, report)
        needless = None if is_changed or report.fused else adds_nothing(program, chosen, ranges, report.opset[0])
    if needless is not None:
        return _left_alone(report, loaded, needless, _place_of_copy(job, destination), clock)
    is_priced = _is_priced(job, chosen)
    basis: Basis | None = None
    prepared = program
    if job.verify:
        check_source(source, program, clock.phase)
        program, conversion, failure, basis = convert_and_compare(
            source, program, chosen, ranges, job.asked, report, clock.phase, reference
        )
    else:
        prepared = program.clone() if is_priced else program
        with clock.phase("convert"):
            conversion, failure = convert(program, chosen, ranges), ""
        report.verdict = f"{Verdict.NOT_CHECKED}: verification was switched off"
    _describe(report, program, conversion, chosen, job.recipe)
    destination = _place_of_result(job, destination, loaded, report)
    if is_priced:
        with clock.phase("predict"):
            predict_times(report, prepared, chosen, ranges, at_once=job.asked.frontier)
    if basis is not None and basis.evidence is not None:
        add_errors(report, prepared, basis.evidence, chosen)
    if failure:
        raise CheckFailed(failure, report)
    as_given = not is_changed and _is_as_given(loaded, program, conversion, chosen, basis, report)
    _write(program, destination, _basis_of_file(loaded, program, basis), report, clock, loaded if as_given else None)
    return _timed(report, clock)


def _is_priced(job: Job, policy: Policy) -> bool:
    """Whether times are predicted. A conversion by rules that is not compared keeps no source for that."""
    keeps_source = job.verify or policy.objective != "rules" or bool(policy.dims)
    return keeps_source and policy.target.has_prices and policy.low is not FLOAT32


def _is_as_given(
    loaded: Program, program: Program, conversion: Conversion, policy: Policy, basis: Basis | None, report: Report
) -> bool:
    """Whether a model was kept in float32 and is written as it was given, which the report then says.

    A source that ONNX Runtime does not run is not: what was mended in it on the way makes the result run.
    """
    runs = basis is None or basis.reference is not None or basis.known is not None
    if not (report.kept_float32 and runs and not report.fused and is_the_source(loaded, program, conversion, policy)):
        return False
    report.opset = (report.opset[0], report.opset[0])
    report.weight_bytes = (report.weight_bytes[0], report.weight_bytes[0])
    as_its_source(report)
    return True


def _place_of_copy(job: Job, destination: pathlib.Path | None) -> pathlib.Path | None:
    """Return where a source is copied that is what was asked for already; None for a place that nobody named."""
    return None if isinstance(job.dst, DefaultPlace) and not job.dst.is_named else destination


def _place_of_result(
    job: Job, destination: pathlib.Path | None, loaded: Program, report: Report
) -> pathlib.Path | None:
    """Return where the result is written: one that is float32 throughout has another name, unless the user gave it."""
    if not report.kept_float32 or not isinstance(job.dst, DefaultPlace) or job.dst.float32 is None:
        return destination
    check_destination(job.dst.float32, loaded)
    report.destination = str(job.dst.float32)
    return job.dst.float32


def _optimized(source: Program, program: Program, report: Report, job: Job) -> tuple[Program, Reference | None]:
    """Return the program as ONNX Runtime's optimizer leaves it, or as it is, with a warning, if that failed.

    Returns:
        The program, and what fp32 computes, if it was compared with that.
    """
    plain = plain_copy(program)
    try:
        fused = optimized(plain)
        reference = check_optimized(source, plain, fused.program, job.asked.inputs) if job.verify else None
    except NotOptimized as reason:
        report.warnings = (*report.warnings, f"not optimized: {reason}")
        return program, None
    report.fused = fused.operators
    report.notes = (*report.notes, fused.note)
    return fused.program, reference


def _with_wishes(
    policy: Policy, state: Mapping[str, str] | None, *, master_weights: bool | None, loss_scaling: bool
) -> Policy:
    """Return the policy with the user's wishes about a training step."""
    wishes = TrainingWishes(state=state or {}, master_weights=master_weights, loss_scaling=loss_scaling)
    wishes.check(policy.low.name, copies=policy.copies)
    return dataclasses.replace(policy, wishes=wishes)


def _basis_of_file(loaded: Program, program: Program, basis: Basis | None) -> Basis | None:
    """Take training algorithms out of the graph again; return what the file, whose graph lacks them, is checked by."""
    if program.merged is None:
        return basis
    split(program)
    return None if basis is None else basis.without_algorithms(loaded)


def _prepare(program: Program, policy: Policy, ranges: RangeFaults, report: Report) -> tuple[Policy, bool]:
    """Prepare a program, and give its training step what it needs in lower precision.

    Returns:
        The policy for it, and whether it got anything.
    """
    prepare(program, policy, ranges)
    warnings = tuple(policy.wishes.warnings(program.step, policy.low.name))
    if program.step is None and not program.is_training and holds_gradients(program.model):
        warnings += (NO_STATE,)
    aided = add_training_aids(program, policy)
    report.warnings = (*report.warnings, *warnings, *aided.warnings)
    if not report.fused and not report.warnings and (count := attentions_to_fuse(program, policy)):
        report.notes = (*report.notes, _offer(count))
    policy = aided.policy
    if program.step is not None and policy.objective == "balance":  # in training memory counts as well as time
        policy = dataclasses.replace(policy, objective="low")
    return policy, aided.changed


def _offer(attentions: int) -> str:
    what = "1 attention as one operator" if attentions == 1 else f"{attentions} attentions as one operator each"
    return f"--optimize would write {what}"


def _describe(report: Report, program: Program, conversion: Conversion, policy: Policy, recipe: Recipe | None) -> None:
    describe_result(report, program, conversion, policy)
    if recipe is not None:
        misfits = recipe.misfits(report.decisions, digest(report.source))
        report.warnings = (*report.warnings, *(f"recipe: {misfit}" for misfit in misfits))
    if not report.low_nodes:
        report.warnings = tuple(warning for warning in report.warnings if warning != UNSCALED)


def _left_alone(
    report: Report,
    source: Program,
    needless: tuple[Program, Conversion],
    destination: pathlib.Path | None,
    clock: Clock,
) -> Report:
    """Report that there is nothing to do, and copy the source to a destination that the user named."""
    describe_needless(report, *needless, _copy_files(source, destination, clock))
    return _timed(report, clock)


def _timed(report: Report, clock: Clock) -> Report:
    report.seconds, report.phases = clock.total(), clock.phases
    return report


def _copied(source: Program, policy: Policy, report: Report, destination: pathlib.Path | None, clock: Clock) -> Report:
    """Give the source back as it is."""
    if policy.low_io:
        raise OptionError(f"{report.asked} changes nothing, so inputs and outputs cannot become {policy.low.name}")
    describe_copy(report, source, _copy_files(source, destination, clock))
    return _timed(report, clock)


def _copy_files(source: Program, destination: pathlib.Path | None, clock: Clock) -> int | None:
    """Copy the source's files, or write a source that came from memory; return the bytes written, None for nothing."""
    with clock.phase("write"):
        if destination is None:
            return None
        if source.source is not None:
            return copy_model(source.source, destination)
        with stage(source, destination) as staged:
            written = staged.file_bytes
            staged.commit()
            return written


def _write(
    program: Program,
    destination: pathlib.Path | None,
    basis: Basis | None,
    report: Report,
    clock: Clock,
    verbatim_source: Program | None = None,
) -> None:
    """Write the program to `destination`, after checking the staged file if verification is on.

    Args:
        program: the result.
        destination: the file, or None.
        basis: what the file is checked against; None for no check.
        report: gets what the checks find, and the file's size.
        clock: times it.
        verbatim_source: the source, to be written in place of the program; None for the program.
    """
    with clock.phase("write"), _staged(program, destination, basis is not None, clock, verbatim_source) as staged:
        if staged is not None and basis is not None:
            check_result(staged, program, basis, report, clock.phase)
        if staged is not None and destination is not None:
            report.file_bytes = (report.file_bytes[0], staged.file_bytes)
            staged.commit()
            program.source = destination


@contextlib.contextmanager
def _staged(
    program: Program, destination: pathlib.Path | None, verify: bool, clock: Clock, verbatim_source: Program | None
) -> Iterator[Staged | None]:
    """Write the program next to its destination; to a temporary folder if it is only checked; else nowhere."""
    written, verbatim = (program, False) if verbatim_source is None else (verbatim_source, True)
    if destination is not None:
        with stage(
            written,
            destination,
            progress=lambda done, total: clock.tell("write", done / max(1, total)),
            verbatim=verbatim,
        ) as staged:
            yield staged
    elif verify:
        with (
            temporary_folder() as folder,
            stage(written, folder / "model.onnx", durable=False, verbatim=verbatim) as staged,
        ):
            yield staged
    else:
        yield None
