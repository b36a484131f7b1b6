"""Declares the options that choose a precision for each node: levels, lists, thresholds, rewriting of the model.

`conversion.py` adds those that check and report, and says what to run after a change.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from amp_transpiler.errors import OptionError
from amp_transpiler.ops.fusions import checked_fusions
from amp_transpiler.options.option import Option, option
from amp_transpiler.options.reading import (
    custom_op_types,
    dimension,
    dtype_name,
    float32_inputs,
    fusions,
    headroom,
    io_types,
    mixed_operators,
    number,
    number_of_terms,
    opset_number,
    regular_expression,
    rescale,
    split_sums,
    state_pair,
    user_lists,
)
from amp_transpiler.precision.limits import HEADROOM, checked_headroom
from amp_transpiler.systems.option_names import (
    DEFAULT_DTYPE,
    DtypeName,
    LevelName,
    PolicyName,
    PresetName,
    TargetName,
)
from amp_transpiler.systems.registry import SYSTEMS
from amp_transpiler.targets import TARGETS
from amp_transpiler.targets.devices import DEFAULT_DEVICE, DEVICES, checked_dims, find_device

if TYPE_CHECKING:
    from amp_transpiler.precision.policy import Float64Choice
    from amp_transpiler.precision.preference import Preference
    from amp_transpiler.precision.user_lists import UserLists
    from amp_transpiler.report.recipe import Recipe
    from amp_transpiler.systems.program_names import IoTypes

__all__ = ["CustomTypes", "DecidingOptions", "Rescale", "SplitSums"]


Rescale: TypeAlias = Literal["auto", "no"] | Mapping[str, int]
"""`auto` and `no`, or the constants that are multiplied -> the exponents of their powers of two."""

SplitSums: TypeAlias = Literal["auto", "no"] | Mapping[str, int]
"""`auto` and `no`, or the products that are computed in parts, by node name -> how many parts."""

CustomTypes: TypeAlias = Mapping[str, "str | tuple[Sequence[str], Sequence[str]]"] | str | Collection[str]
"""Operator -> `fp16`, or the types of its inputs and outputs; or texts such as `Scale:[fp16,fp32]:[fp16]`."""

_FARTHEST = 252  # no float32 constant is multiplied by more


def _checked_rescale(choice: Rescale) -> Rescale:
    if isinstance(choice, Mapping):
        if all(map(_is_exponent, choice.values())):
            return {str(name): exponent for name, exponent in choice.items()}
    elif choice in ("auto", "no"):
        return choice
    raise OptionError(f"rescale is {choice!r}: expected 'auto', 'no' or a dict of constants and exponents")


def _is_exponent(exponent: object) -> bool:
    return isinstance(exponent, int) and not isinstance(exponent, bool) and abs(exponent) <= _FARTHEST


def _checked_split_sums(choice: SplitSums) -> SplitSums:
    if isinstance(choice, Mapping):
        from amp_transpiler.precision.split_sums import PARTS  # few calls name products

        if all(count in PARTS and not isinstance(count, bool) for count in choice.values()):
            return {str(name): count for name, count in choice.items()}
        raise OptionError(f"split_sums has {choice!r}: expected numbers of parts out of {', '.join(map(str, PARTS))}")
    if choice in ("auto", "no"):
        return choice
    raise OptionError(f"split_sums is {choice!r}: expected 'auto', 'no' or a dict of products and numbers of parts")


def _collected_types(pairs: list[tuple[str, str]]) -> dict[str, str] | None:
    return _checked_types([f"{operator}:{types}" for operator, types in pairs])


def _checked_types(declared: CustomTypes | None) -> dict[str, str] | None:
    if declared is None:
        return None
    from amp_transpiler.precision.custom_types import checked_custom_types  # few calls have them

    return checked_custom_types(declared)


def _checked_inputs(declared: Mapping[str, str | Collection[int]] | None) -> dict[str, str] | None:
    if declared is None:
        return None
    from amp_transpiler.precision.float32_inputs import checked_inputs  # few calls have them

    return checked_inputs(declared)


def _checked_fusions(choice: str | None) -> str | None:
    return None if choice is None else checked_fusions(choice)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecidingOptions:
    """The options that choose a precision for each node, in the order of `--help`."""

    level: LevelName = option(
        "auto",
        group="decide",
        flags=("--level",),
        metavar="LEVEL",
        values={
            "auto": "all that the target can run and that is numerically safe, except nodes that go back to "
            "float32 until the result is accurate",
            "O0": "nothing (the files are copied)",
            "OD": "the white list only",
            "O1": "the white operators of Paddle's lists, and gray ones that follow them",
            "O2": "all that the target can run, even operators on the default black list",
        },
        copying="O0",
        for_copies=True,
        text="How much runs in lower precision.",
        held_as=("word",),
    )
    dtype: DtypeName = option(
        DEFAULT_DTYPE,
        group="decide",
        flags=("--dtype",),
        metavar="float16|bfloat16|float32",
        read=dtype_name,
        for_copies=True,
        short="the format; float16 unless given",
        text="The format to convert to. Default: `float16`, or `bfloat16` with a preset or mixed operators. The source "
        "may be in any of the three: another 16-bit format is made float32 first, exactly. With `float32` all 16-bit "
        "floats inside the model become float32; inputs and outputs follow with `--io-types low`.",
        python="The format to convert to. Default: `float16`, or `bfloat16` with a preset or mixed operators. The "
        "source may be in any of the three: another 16-bit format is made float32 first, exactly. With `float32` all "
        "16-bit floats inside the model become float32; inputs and outputs follow with `keep_io_types=False`.",
        held_as=("word",),
    )
    target: TargetName = option(
        "cuda",
        group="decide",
        flags=("--target",),
        metavar="TARGET",
        values={name: target.description for name, target in TARGETS.items()},
        for_copies=True,
        text="Whose kernels count.",
        held_as=("word",),
    )
    ort: str | None = option(
        None,
        group="decide",
        flags=("--ort",),
        metavar="VERSION",
        for_copies=True,
        text="The ONNX Runtime that is to run the result, such as `1.20`: its kernels, opset and IR version count. "
        "Releases 1.17 to 1.31 are known. Default: the installed one.",
        held_as=("word",),
    )
    keep_io_types: IoTypes = option(
        True,
        group="decide",
        name="io_types",
        flags=("--io-types",),
        metavar="keep|low|NAME=low,...",
        read=io_types,
        text="Types of the graph's inputs and outputs: `keep` them (default), make all floats `low` (of the new "
        "format), or only those named or matched by a pattern (`past_key_values.*=low`).",
        python="Which inputs and outputs of the graph keep their types: all (True), none (False), or those named or "
        "matched by a pattern. A dict such as `{'past_key_values.*': 'low'}` names those that do not.",
        held_as=("flag", "word", "list", "table"),
    )
    amp_lists: UserLists | None = option(
        None,
        group="decide",
        name="white",
        flags=("--white",),
        metavar="OP",
        repeated=True,
        text="Run an operator in lower precision wherever the target has a kernel and its values fit. ONNX's name "
        "(`Conv`, `com.microsoft::BiasGelu`), Paddle's (`conv2d`), or a pattern of a whole name.",
        python="Your own white and black operators and black variables, names or patterns of whole names; None for the "
        "default lists.",
        further=(
            Option(
                group="decide",
                name="black",
                flags=("--black",),
                metavar="OP",
                repeated=True,
                text="Keep an operator, or those that a pattern matches (`Reduce.*`), in float32.",
            ),
            Option(
                group="decide",
                name="black_var",
                flags=("--black-var",),
                metavar="NAME",
                repeated=True,
                text="Keep the nodes that read or write this value, or those that a pattern matches, in float32.",
            ),
        ),
        held_as=("lists",),
        collect=user_lists,
    )
    guard: str | Collection[str] = option(
        (),
        group="decide",
        flags=("--guard",),
        metavar="REGEX",
        repeated=True,
        read=regular_expression,
        text="Only nodes whose name contains a match may run in lower precision.",
        python="Patterns of node names. If any is given, only nodes whose name contains a match may run in lower "
        "precision.",
        held_as=("text", "list"),
    )
    disable_amp: str | Collection[str] = option(
        (),
        group="decide",
        flags=("--disable-amp",),
        metavar="REGEX",
        repeated=True,
        read=regular_expression,
        text="Nodes whose name contains a match stay as they are written.",
        python="Patterns of node names. Nodes whose name contains a match stay as they are written.",
        held_as=("text", "list"),
    )
    include: str | Collection[str] = option(
        (),
        group="decide",
        flags=("--include",),
        metavar="REGEX",
        repeated=True,
        read=regular_expression,
        text="Nodes whose name contains a match run in lower precision by force, whatever lists, numerics and ranges "
        "say. An error where a schema forbids it or no provider would run the node.",
        python="Patterns of node names. Nodes whose name contains a match run in lower precision by force, whatever "
        "lists, numerics and ranges say. An error where a schema forbids it or no provider would run the node.",
        held_as=("text", "list"),
    )
    custom_op_types: CustomTypes | None = option(
        None,
        group="decide",
        flags=("--custom-op-types",),
        metavar="OP:[TYPES]:[TYPES]",
        repeated=True,
        read=custom_op_types,
        text="The types that an operator without a schema, such as a plugin of TensorRT, takes and returns in the "
        "result: `Scale:[fp16,fp32]:[fp16]`, one of `fp16`, `bf16`, `fp32` and `any` (as in the source) for each input "
        "and output, or `Scale:fp16` for every float. They bind: casts are put around the operator as they say.",
        python="The types that operators without a schema, such as plugins of TensorRT, take and return in the result: "
        "a dict of operator (with or without domain) -> lists of the types of its inputs and outputs, out of `fp16`, "
        "`bf16`, `fp32` and `any` (as in the source), or `fp16` for every float; or texts such as "
        "`Scale:[fp16,fp32]:[fp16]`. They bind: casts are put around the operators as they say.",
        held_as=("table",),
        collect=_collected_types,
        check=_checked_types,
    )
    float32_inputs: Mapping[str, str | Collection[int]] | None = option(
        None,
        group="decide",
        flags=("--float32-inputs",),
        metavar="OP:INDICES",
        repeated=True,
        read=float32_inputs,
        text="Keep inputs of an operator, by index, in float32 while others are in lower precision, such as `Pow:1`. "
        "An error where no form of the operator has that.",
        python="Operator -> indices of inputs that stay float32 while others are in lower precision, such as "
        "`{'Pow': [1]}`. An error where no form of the operator has that.",
        held_as=("table",),
        collect=dict,
        check=_checked_inputs,
    )
    float64: Float64Choice = option(
        "keep",
        group="decide",
        flags=("--float64",),
        metavar="CHOICE",
        values={
            "keep": "float64 stays as it is",
            "float32": "all but inputs and outputs becomes float32 first, so that it may run in lower precision",
            "float32-io": "inputs and outputs, too",
        },
        text="What becomes of float64 in the source. The report says which constants are rounded; one beyond "
        "float32's range is an error. Nodes that take float64 only and nodes of `--disable-amp` keep it, between "
        "casts. The result is compared with the float64 source.",
        python="What becomes of float64 in the source. The report says which constants are rounded; one beyond "
        "float32's range is an error. Nodes that take float64 only and nodes of `disable_amp` keep it, between casts. "
        "The result is compared with the float64 source.",
        held_as=("word",),
    )
    opset: int | None = option(
        None,
        group="decide",
        flags=("--opset",),
        metavar="N",
        read=opset_number,
        text="The opset of the result. Default: the model's, or a higher one in which more nodes can run in lower "
        "precision. A lower one is an error unless the model can be written in it exactly.",
        held_as=("count",),
    )
    use_promote: bool = option(
        False,
        group="decide",
        name="promote",
        flags=("--promote",),
        text="Paddle's promotion: an operator that the lists leave open stays float32 if one of its inputs is float32, "
        "and runs in lower precision otherwise. Constants do not count at levels auto and O2.",
        held_as=("flag",),
    )
    prefer: Preference = option(
        "balance",
        group="decide",
        flags=("--prefer",),
        metavar="WHAT",
        values={
            "balance": "the smallest file that is predicted at most a tenth slower on the device than the fastest one",
            "time": "the least predicted time",
            "size": "the smallest file: the most computation in lower precision, at the fewest casts",
            "low": "as `size`",
        },
        short="balance: 16 bits that pay; or time, or size",
        text="What level auto aims at, among all conversions that keep the limits, float32 among them. Where no times "
        "are predicted (other targets than `cuda` and `any`), and for training steps, `balance` is `size`.",
        held_as=("word",),
    )
    device: str = option(
        DEFAULT_DEVICE.name,
        group="decide",
        flags=("--device",),
        metavar="DEVICE",
        values={name: device.words for name, device in DEVICES.items()},
        short="the GPU whose times are predicted",
        text="The GPU whose times are predicted, for the report and for `--prefer`.",
        held_as=("word",),
        in_recipes=False,
        check=lambda name: find_device(name).name,
    )
    dims: Mapping[str, int] | None = option(
        None,
        group="decide",
        flags=("--dim",),
        metavar="NAME=SIZE",
        repeated=True,
        read=dimension,
        text="The size of an open dimension of the inputs, such as `batch=8`, for predicted times. Default: 1 for a "
        "batch, and for others what made-up inputs have.",
        python="Name of an open dimension of the inputs -> its size, for predicted times. Default: 1 for a batch, and "
        "for others what made-up inputs have.",
        held_as=("counts",),
        in_recipes=False,
        collect=dict,
        check=checked_dims,
    )
    headroom: float = option(
        HEADROOM,
        group="decide",
        flags=("--headroom",),
        metavar="X",
        read=headroom,
        text="Level auto with data: a node may run in lower precision only if X times the largest magnitude that it "
        "was seen with fits. Default: 4.",
        held_as=("number",),
        in_recipes=False,
        check=checked_headroom,
        auto_only=True,
    )
    data_max: float | None = option(
        None,
        group="decide",
        flags=("--data-max",),
        metavar="X",
        read=number,
        text="Keep a node in float32 if a value that it reads or computes is larger than X on the inputs, made-up ones "
        "included. Default: 65504, which float16 holds, where a level or policy other than auto decides for a target "
        "that builds engines (tensorrt, tensorrt-rtx); no such threshold elsewhere, nor with inf.",
        held_as=("number",),
        in_recipes=False,
    )
    init_max: float | None = option(
        None,
        group="decide",
        flags=("--init-max",),
        metavar="X",
        read=number,
        text="Keep a node in float32 if a constant that it reads has a finite number larger than X. Default: no such "
        "threshold.",
        held_as=("number",),
        in_recipes=False,
    )
    max_depth_of_reduction: int | None = option(
        None,
        group="decide",
        flags=("--max-depth-of-reduction",),
        metavar="N",
        read=number_of_terms,
        text="Keep a node in float32 if it sums more than N terms into one number: the inner dimension of a matrix "
        "product, input channels times kernel of a convolution, the elements that a ReduceSum adds. Default: no such "
        "threshold.",
        held_as=("count",),
        in_recipes=False,
    )
    policy: PolicyName = option(
        "paddle",
        group="decide",
        flags=("--policy",),
        metavar="POLICY",
        values={name: system.description for name, system in SYSTEMS.items()},
        for_copies=True,
        text="Whose rules decide. Only `paddle` has levels OD and O2.",
        held_as=("word",),
    )
    preset: PresetName | None = option(
        None,
        group="decide",
        flags=("--preset",),
        metavar="PRESET",
        values={
            "mp0": "nothing (the files are copied)",
            "mp1": "matrix products take inputs in lower precision (SambaNova recommends it)",
            "mp4": "all that the target can run",
            "default": "like mp4, but what follows a cast to float32 in the source stays float32",
        },
        copying="mp0",
        for_copies=True,
        text="SambaNova's presets, instead of a policy and level.",
        held_as=("word",),
    )
    mixed_ops: str | Collection[str] = option(
        (),
        group="decide",
        flags=("--mixed-ops",),
        metavar="gemm,softmax",
        read=mixed_operators,
        values={
            "gemm": "inputs in lower precision, result in float32",
            "softmax": "input in float32, result in lower precision",
        },
        for_copies=True,
        text="SambaNova's mixed operators, with or without a preset; several with commas or spaces.",
        held_as=("word", "list"),
    )
    state: Mapping[str, str] | None = option(
        None,
        group="decide",
        flags=("--state",),
        metavar="IN=OUT",
        repeated=True,
        read=state_pair,
        text="Output OUT of a training step replaces input IN in the next. The update of a state stays float32. Most "
        "pairs are found: a parameter by its gradient, and moments, running statistics and counters beside one.",
        python="Input -> the output that replaces it in the next run of a training step, for pairs that are not found. "
        "The update of a state stays float32.",
        held_as=("table",),
        collect=dict,
    )
    master_weights: bool | None = option(
        None,
        group="decide",
        flags=("--master-weights",),
        text="Require float32 master weights: an error if no trained parameter is found. A parameter is its own master "
        "while it stays float32; one that `--io-types` makes low gets an input and an output for its master anyway.",
        python="True: an error if no trained parameter is found. A parameter is its own float32 master; one that "
        "`keep_io_types` makes low gets an input and an output for its master. False: it gets none, and small updates "
        "vanish. Default: masters wherever parameters become low.",
        held_as=("flag",),
    )
    loss_scaling: bool = option(
        False,
        group="decide",
        flags=("--loss-scaling",),
        text="Scale the loss of a training step dynamically, so that small float16 gradients do not become zero. The "
        "scale is a new input and output.",
        held_as=("flag",),
    )
    optimize: bool = option(
        False,
        group="decide",
        flags=("--optimize",),
        text="Let ONNX Runtime's transformers optimizer fuse the model first: attention, normalisation with what is "
        "added before, activations with their bias. The result is compared with the model as given; if the optimizer "
        "fails, or changes what is computed, a warning says so and the model is converted without it. Patterns of node "
        "names then see the fused model's. Not for targets without ONNX Runtime's kernels, such as `tensorrt`.",
        held_as=("flag",),
    )
    fuse: str | None = option(
        None,
        group="decide",
        flags=("--fuse",),
        metavar="contrib|standard|none",
        read=fusions,
        text="Write several nodes as one operator before deciding. `standard`: normalisations and GELU as ONNX's own "
        "operators, where the model's opset has them; on `cuda` attention, too (`ai.onnx::Attention`), where a fused "
        "kernel takes it: the model is brought to opset 23 for it, unless `--opset` names another. "
        "`contrib`: attention, sums before normalisations and biases "
        "before GELU, too, as operators of ONNX Runtime, which then is the only one that runs the result; only for "
        "targets `cuda`, `cpu`, `webgpu`. Attention that stays in pieces gets products that read rows as they lie "
        "(`FusedMatMul`). A fusion is left out by its name behind a minus sign: `contrib,-BiasGelu`. "
        "Names: `Attention`, `ai.onnx::Attention`, `FusedMatMul`, `LayerNormalization`, `RMSNormalization`, "
        "`SimplifiedLayerNormalization`, "
        "`Gelu`, `com.microsoft::Gelu`, `FastGelu`, `SkipLayerNormalization`, `SkipSimplifiedLayerNormalization`, "
        "`BiasGelu`. One that the target lacks, or computes wrongly, is left out, and so is a small attention that is "
        "predicted to be faster without. What your lists name stays as it is, and so do "
        "nodes of which a region holds only some. Default: at level auto and O2 of policy paddle, for target `cuda`, "
        "`contrib` without those that no device has confirmed (`Attention`; in bfloat16 also "
        "`BiasGelu`) or that `onnx.checker` refuses (`SimplifiedLayerNormalization`), for "
        "targets `tensorrt`, `tensorrt-rtx` and `webgpu` `standard`, unless the result stays float32 or is better "
        "without; else `none`.",
        check=_checked_fusions,
        held_as=("word",),
    )
    pad_weights: bool = option(
        False,
        group="decide",
        flags=("--pad-weights",),
        text="Give the weight of a matrix product more columns, of zeros, with a Slice behind the product, or more "
        "rows, with a Pad in front of a MatMul, where that is predicted to save time on `--device`: kernels for tensor "
        "cores want 8 numbers, or a multiple, in a row. "
        "GPT-2's last product has 50,257 columns. Only for target `cuda`, and no device has confirmed what it saves.",
        held_as=("flag",),
    )
    rescale: Rescale = option(
        "auto",
        group="decide",
        flags=("--rescale",),
        metavar="auto|no",
        read=rescale,
        text="Multiply constants by powers of two, where the ranges of values forbid lower precision, so that they "
        "fit: what is linear or homogeneous is scaled along, and a normalisation takes the scale back, its epsilon "
        "with it. `auto` (default): level auto with runs on samples, where the result is better for it and float32 "
        "results on the samples are equal to the bit; `no`: never.",
        python="Multiply constants by powers of two, where the ranges of values forbid lower precision, so that they "
        "fit: what is linear or homogeneous is scaled along, and a normalisation takes the scale back, its epsilon "
        "with it. `auto` (default): level auto with runs on samples, where the result is better for it and float32 "
        "results on the samples are equal to the bit; `no`: never; a dict: these constants, by name -> the exponent "
        "of the power, as `Report.rescaled` has them.",
        check=_checked_rescale,
        held_as=("word", "counts"),
        auto_only=True,
    )
    split_sums: SplitSums = option(
        "auto",
        group="decide",
        flags=("--split-sums",),
        metavar="auto|no",
        read=split_sums,
        text="Compute a product in 2 to 16 parts in lower precision, each over some of its terms, and add these up in "
        "float32, where the target adds up in the 16-bit format itself and the whole product overflows or loses too "
        "much inside. `auto` (default): level auto with runs on samples, where that costs less in bytes, "
        "multiplications and kernels than float32, and the result is smaller for it; `no`: never.",
        python="Compute a product in 2 to 16 parts in lower precision, each over some of its terms, and add these up "
        "in float32, where the target adds up in the 16-bit format itself and the whole product overflows or loses too "
        "much inside. `auto` (default): level auto with runs on samples, where that costs less in bytes, "
        "multiplications and kernels than float32, and the result is smaller for it; `no`: never; "
        "a dict: these products, by node name -> how many parts, as `Report.in_parts` has them.",
        check=_checked_split_sums,
        held_as=("word", "counts"),
        auto_only=True,
    )
    recipe: str | os.PathLike[str] | Recipe | None = option(
        None,
        group="decide",
        flags=("--recipe",),
        metavar="R.toml",
        text="Replay the conversion that a recipe holds, on the same model or on its next export: its options, except "
        "those given beside it, and its decision about each node, found by name. What no longer fits is warned of; "
        "nodes that the recipe does not know are decided anew.",
        python="A recipe (`Report.save_recipe`) whose conversion is replayed, on the same model or on its next export: "
        "its options, except those given beside it, and its decision about each node, found by name. What no longer "
        "fits is warned of; nodes that the recipe does not know are decided anew.",
        held_as=("text",),
        in_recipes=False,
    )
