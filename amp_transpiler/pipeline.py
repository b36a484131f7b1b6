"""Makes of a model a checked mixed-precision model: `transpile`, and the stages that a model goes through."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from amp_transpiler import stages, writing
from amp_transpiler.files.loading import Source
from amp_transpiler.files.saving import DefaultPlace
from amp_transpiler.job import Job
from amp_transpiler.ops.fusions import NO_FUSION
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.deciding import CustomTypes, Rescale, SplitSums
from amp_transpiler.options.table import RECORDED, named_as_in_the_table
from amp_transpiler.plan import Plan, plan
from amp_transpiler.precision.limits import Mismatch, Tolerance
from amp_transpiler.precision.policy import Float64Choice
from amp_transpiler.precision.preference import Preference, recorded
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.report import Report
from amp_transpiler.report.assembly import assemble
from amp_transpiler.report.clock import Clock, Progress
from amp_transpiler.report.recipe import Recipe, as_settings
from amp_transpiler.systems.option_names import (
    DEFAULT_DTYPE,
    DtypeName,
    LevelName,
    PolicyName,
    PresetName,
    TargetName,
)
from amp_transpiler.systems.program_names import IoTypes
from amp_transpiler.targets.tensorrt import BuildWish
from amp_transpiler.verification.default_device import DeviceCheck
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.verification.user_metric import MetricFunction

__all__ = ["STAGES", "DefaultPlace", "run", "transpile"]

STAGES: tuple[Callable[[Job], None], ...] = (
    stages.load_source,  # the model is read, and marked with the user's words about nodes
    stages.copy_unchanged,  # the end, where the options ask for no change
    stages.optimize_source,  # only if asked: ONNX Runtime's optimizer fuses it first
    stages.prepare_program,  # rewritten without a change of what it computes
    stages.leave_needless,  # the end, where it is what was asked for already
    stages.decide_and_compare,  # a precision for each node, the rewriting, the comparison with float32; searched for
    stages.describe,  # every decision and its reason, in the report
    stages.predict,  # times and errors
    stages.recommend,  # what its sessions should be opened with
    stages.refuse_failure,  # the end, where the result is not accurate enough
    writing.write_result,  # staged, checked as a file, put in its place
)
"""The stages of a conversion, in order. A stage may end it."""


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
    device: str = "H100",
    dims: Mapping[str, int] | None = None,
    headroom: float = 4.0,
    data_max: float | None = None,
    init_max: float | None = None,
    max_depth_of_reduction: int | None = None,
    metric: str | MetricFunction | None = None,
    metric_bound: float | None = None,
    frontier: bool = False,
    cache: bool = True,
    device_check: DeviceCheck = "auto",
    fuse: str | None = None,
    build: BuildWish = "auto",
    pad_weights: bool = False,
    rescale: Rescale = "auto",
    custom_op_types: CustomTypes | None = None,
    float32_inputs: Mapping[str, str | Collection[int]] | None = None,
    float64: Float64Choice = "keep",
    split_sums: SplitSums = "auto",
) -> Report:
    """Convert an float32 model to mixed precision, check it, and write it.

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
            `any`: both providers; `tensorrt`: TensorRT (ONNX's schemas decide, since there is no kernel table);
            `tensorrt-rtx`: TensorRT for RTX, likewise; `webgpu`: onnxruntime-web's WebGPU provider; `coreml`: Core ML
            (schemas only, arithmetic unknown); `directml`: DirectML (schemas only, arithmetic unknown); `openvino`:
            OpenVINO (schemas only, arithmetic unknown); `qnn`: Qualcomm's QNN (schemas only, arithmetic unknown).
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
        verify: Check the result with onnx.checker, open and run it in ONNX Runtime, and compare it with the float32
            model. False: check only the types of every node's inputs.
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
            or `0.1%`. Default: none may wherever a tolerance applies, but for labels that float32 itself decided by a
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
            node names then see the fused model's. Not for targets without ONNX Runtime's kernels, such as `tensorrt`.
        recipe: A recipe (`Report.save_recipe`) whose conversion is replayed, on the same model or on its next export:
            its options, except those given beside it, and its decision about each node, found by name. What no longer
            fits is warned of; nodes that the recipe does not know are decided anew.
        prefer: What level auto aims at, among all conversions that keep the limits, float32 among them. Where no times
            are predicted (other targets than `cuda` and `any`), and for training steps, `balance` is `size`. `balance`
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
            ones included. Default: 65504, which float16 holds, where a level or policy other than auto decides for a
            target that builds engines (tensorrt, tensorrt-rtx); no such threshold elsewhere, nor with inf.
        init_max: Keep a node in float32 if a constant that it reads has a finite number larger than X. Default: no such
            threshold.
        max_depth_of_reduction: Keep a node in float32 if it sums more than N terms into one number: the inner dimension
            of a matrix product, input channels times kernel of a convolution, the elements that a ReduceSum adds.
            Default: no such threshold.
        metric: Your own measure, with `metric_bound`: a function of the outputs of float32 and of the result, each a
            list with a dict (output to array) for every sample, or `FILE.py:FUNCTION`; the less it returns, the better.
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
        fuse: Write several nodes as one operator before deciding. `standard`: normalisations and GELU as ONNX's own
            operators, where the model's opset has them; on `cuda` attention, too (`ai.onnx::Attention`), where a fused
            kernel takes it: the model is brought to opset 23 for it, unless `--opset` names another. `contrib`:
            attention, sums before normalisations and biases before GELU, too, as operators of ONNX Runtime, which then
            is the only one that runs the result; only for targets `cuda`, `cpu`, `webgpu`. Attention that stays in
            pieces gets products that read rows as they lie (`FusedMatMul`). A fusion is left out by its name behind a
            minus sign: `contrib,-BiasGelu`. Names: `Attention`, `ai.onnx::Attention`, `FusedMatMul`,
            `LayerNormalization`, `RMSNormalization`, `SimplifiedLayerNormalization`, `Gelu`, `com.microsoft::Gelu`,
            `FastGelu`, `SkipLayerNormalization`, `SkipSimplifiedLayerNormalization`, `BiasGelu`. One that the target
            lacks, or computes wrongly, is left out, and so is a small attention that is predicted to be faster without.
            What your lists name stays as it is, and so do nodes of which a region holds only some. Default: at level
            auto and O2 of policy paddle, for target `cuda`, `contrib` without those that no device has confirmed
            (`Attention`; in bfloat16 also `BiasGelu`) or that `onnx.checker` refuses (`SimplifiedLayerNormalization`),
            for targets `tensorrt`, `tensorrt-rtx` and `webgpu` `standard`, unless the result stays float32 or is better
            without; else `none`.
        build: Target `tensorrt` and `tensorrt-rtx`: whether TensorRT-RTX's own parser and builder try the written file,
            on the CPU, before it is put in its place. A file that it refuses is an error that names node and reason,
            unless the source is refused, too. `auto` (default): where TensorRT-RTX's builder is installed (extra
            `tensorrt`) and the result is verified; `yes`: always; an error without the builder; `no`: never.
        pad_weights: Give the weight of a matrix product more columns, of zeros, with a Slice behind the product, or
            more rows, with a Pad in front of a MatMul, where that is predicted to save time on `--device`: kernels for
            tensor cores want 8 numbers, or a multiple, in a row. GPT-2's last product has 50,257 columns. Only for
            target `cuda`, and no device has confirmed what it saves.
        rescale: Multiply constants by powers of two, where the ranges of values forbid lower precision, so that they
            fit: what is linear or homogeneous is scaled along, and a normalisation takes the scale back, its epsilon
            with it. `auto` (default): level auto with runs on samples, where the result is better for it and float32
            results on the samples are equal to the bit; `no`: never; a dict: these constants, by name -> the exponent
            of the power, as `Report.rescaled` has them.
        custom_op_types: The types that operators without a schema, such as plugins of TensorRT, take and return in the
            result: a dict of operator (with or without domain) -> lists of the types of its inputs and outputs, out of
            `fp16`, `bf16`, `fp32` and `any` (as in the source), or `fp16` for every float; or texts such as
            `Scale:[fp16,fp32]:[fp16]`. They bind: casts are put around the operators as they say.
        float32_inputs: Operator -> indices of inputs that stay float32 while others are in lower precision, such as
            `{'Pow': [1]}`. An error where no form of the operator has that.
        float64: What becomes of float64 in the source. The report says which constants are rounded; one beyond
            float32's range is an error. Nodes that take float64 only and nodes of `disable_amp` keep it, between casts.
            The result is compared with the float64 source. `keep` (default): float64 stays as it is; `float32`: all but
            inputs and outputs becomes float32 first, so that it may run in lower precision; `float32-io`: inputs and
            outputs, too.
        split_sums: Compute a product in 2 to 16 parts in lower precision, each over some of its terms, and add these up
            in float32, where the target adds up in the 16-bit format itself and the whole product overflows or loses
            too much inside. `auto` (default): level auto with runs on samples, where that costs less in bytes,
            multiplications and kernels than float32, and the result is smaller for it; `no`: never; a dict: these
            products, by node name -> how many parts, as `Report.in_parts` has them.

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
    keywords = {name: value for name, value in locals().items() if name not in ("src", "dst")}
    return run(src, dst, ConversionOptions(**keywords))


def run(src: Source, dst: str | os.PathLike[str] | None, options: ConversionOptions) -> Report:
    """Convert a model; see `transpile`."""
    options = _with_recipe(options)
    what = plan(options)  # a wrong option is reported before the model is read
    job = Job(src, dst, what, _settings(options, what), Clock(options.progress))
    for stage in STAGES:
        stage(job)
        if job.is_done:
            break
    return assemble(job.facts, job.destination, job.clock)


def _with_recipe(options: ConversionOptions) -> ConversionOptions:
    """Return the options with those of a recipe's file that the caller has not given otherwise."""
    if options.recipe is None or isinstance(options.recipe, Recipe):
        return options
    recipe, changed = Recipe.read(options.recipe, RECORDED), options.changed()
    added = {name: value for name, value in recipe.arguments().items() if name not in changed}
    return dataclasses.replace(options, **{**added, "recipe": recipe})


def _settings(options: ConversionOptions, what: Plan) -> dict[str, Any]:
    """Return the options that a recipe of the conversion holds, in the order of `transpile`'s parameters.

    Without a word about fusions a recipe replays none, whatever is the default.
    """
    changed = options.changed()
    if what.fusions == NO_FUSION:
        changed.pop("fuse", None)
    in_order = {name: changed[name] for name in inspect.signature(transpile).parameters if name in changed}
    return as_settings(in_order, RECORDED) | recorded(options.prefer, what.policy)
