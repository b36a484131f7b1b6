"""Declares the options of a conversion, which `transpile` takes and the command has flags for.

After a change run `python scripts/option_docs.py`: it writes the signature and the docstring of `transpile`, and the
page about the command; a test fails until that is done. Text in backticks is code. `--help` reads the fields, so this
module imports nothing heavy: targets and systems describe themselves in tables that are cheap to import.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from amp_transpiler.options.deciding import DecidingOptions
from amp_transpiler.options.option import declarations, option
from amp_transpiler.options.reading import mismatch, number, tolerance
from amp_transpiler.systems.option_names import DEFAULT_DTYPE
from amp_transpiler.targets.tensorrt import BuildWish

if TYPE_CHECKING:
    from amp_transpiler.precision.limits import Mismatch, Tolerance
    from amp_transpiler.report.clock import Progress
    from amp_transpiler.verification.default_device import DeviceCheck
    from amp_transpiler.verification.inputs import Inputs
    from amp_transpiler.verification.user_metric import MetricFunction

__all__ = ["ConversionOptions"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions(DecidingOptions):
    """The options of one conversion, in the order of `--help`; the words of each are its documentation."""

    inputs: Inputs | None = option(
        None,
        group="check",
        flags=("--inputs",),
        metavar="DATA.npz|FOLDER",
        short="your data to compare on",
        text="Samples to compare on: an .npz file, a folder of them, or one of ONNX's `test_data_set_*`. For several "
        "models a place with `{stem}` (the model's name), `{path}` (the same with its folders inside the one that was "
        "named) or `{folder}` (where it lies), such as `samples/{stem}.npz`; or a manifest, a `.toml` or `.json` with "
        'a row for each model or pattern: `"resnet*.onnx" = "samples/resnet.npz"`, from its own folder. Default: '
        "`STEM.inputs.npz` beside the model, else the `test_data_set_0` of a model that is alone in its folder, else "
        "inputs made up from the model's shapes, as with `made-up`.",
        python="Samples to compare on: an .npz file, a folder, a dict, or several dicts. None: inputs made up from the "
        "model's shapes.",
        held_as=("text",),
        in_recipes=False,
    )
    tolerance: Tolerance | None = option(
        None,
        group="check",
        flags=("--tolerance",),
        metavar="T|NAME=T,...",
        read=tolerance,
        short="the largest error of an output, such as 1%",
        text="The largest relative error (of the norm) of an output, such as `0.01` or `1%`; of single outputs, by "
        "names or patterns, `logits=1%,boxes=0.5`; or both, `2%,logits=1%`. Default: 2% in float16 and 5% in bfloat16 "
        "at level auto of policy paddle. Otherwise there is no limit: large errors are only warned of, but values that "
        "became infinite or NaN fail.",
        python="The largest relative error (of the norm) of an output: a fraction, or text such as `1%`, "
        "`logits=1%,boxes=0.5` or `2%,logits=1%`, or a dict of the same by output (a name or pattern). Default: 0.02 "
        "in float16 and 0.05 in bfloat16 at level auto of policy paddle. Otherwise there is no limit: large errors are "
        "only warned of, but values that became infinite or NaN fail.",
        held_as=("number", "word", "limits"),
    )
    mismatch: Mismatch | None = option(
        None,
        group="check",
        flags=("--mismatch",),
        metavar="M",
        read=mismatch,
        text="The largest share of the integers, truth values or texts of an output that may differ, such as `0.001` "
        "or `0.1%`. Default: none may wherever a tolerance applies, but for labels that float32 itself decided by a "
        "hair's breadth (at most 1% of them); elsewhere there is no limit.",
        held_as=("number", "word", "limits"),
    )
    metric: str | MetricFunction | None = option(
        None,
        group="check",
        flags=("--metric",),
        metavar="FILE.py:FUNCTION",
        text="Your own measure: a function of the outputs of float32 and of the result, each a list with a dict "
        "(output to array) for every sample; the less it returns, the better. Level auto finds the best conversion for "
        "which it is at most `--metric-bound`, and no other tolerance holds unless one is given.",
        python="Your own measure, with `metric_bound`: a function of the outputs of float32 and of the result, each a "
        "list with a dict (output to array) for every sample, or `FILE.py:FUNCTION`; the less it returns, the "
        "better. Level auto finds the best conversion for which it is at most the bound, and no other tolerance "
        "holds unless one is given.",
        held_as=("text",),
        in_recipes=False,
    )
    metric_bound: float | None = option(
        None,
        group="check",
        flags=("--metric-bound",),
        metavar="B",
        read=number,
        text="The largest value of `--metric` that is accepted.",
        python="The largest value of `metric` that is accepted.",
        held_as=("number",),
        in_recipes=False,
    )
    frontier: bool = option(
        False,
        group="check",
        flags=("--frontier",),
        text="Level auto: work out the whole curve between accuracy and speed, from runs on the data, and report "
        "error, predicted time, share of low nodes and casts along it, and what each node adds to the error. A "
        "report in HTML has it anyway.",
        python="Level auto: work out the whole curve between accuracy and speed, from runs on the data: "
        "`Report.frontier`, and the error of each row of `Report.decisions`.",
        auto_only=True,
    )
    device_check: DeviceCheck = option(
        "auto",
        group="check",
        flags=("--device-check",),
        metavar="WISH",
        values={
            "auto": "where the host's default place is a device",
            "yes": "always; an error where no device answers",
            "no": "never: the verdict is emulated",
        },
        text="Whether the written file is run on a device: as `amp.Session` opens it and as ONNX Runtime does by "
        "default, three times each on different samples. The verdict is then what the device measured, with the "
        "emulation beside it.",
        held_as=("word",),
        in_recipes=False,
    )
    build: BuildWish = option(
        "auto",
        group="check",
        flags=("--build",),
        metavar="WISH",
        values={
            "auto": "where TensorRT-RTX's builder is installed (extra `tensorrt`) and the result is verified",
            "yes": "always; an error without the builder",
            "no": "never",
        },
        text="Target `tensorrt` and `tensorrt-rtx`: whether TensorRT-RTX's own parser and builder try the written "
        "file, on the CPU, before it is put in its place. A file that it refuses is an error that names node and "
        "reason, unless the source is refused, too.",
        held_as=("word",),
        in_recipes=False,
    )
    cache: bool = option(
        True,
        group="check",
        name="no_cache",
        flags=("--no-cache",),
        for_copies=True,
        text="Do not keep, or use, what runs have shown about a model, in the user's cache folder.",
        python="Keep what runs have shown about a model in the user's cache folder, and use what is there.",
        held_as=("flag",),
        in_recipes=False,
    )
    verify: bool = option(
        True,
        group="check",
        name="no_verify",
        flags=("--no-verify",),
        for_copies=True,
        text="Check only the types of every node's inputs. Skip onnx.checker, opening and running the result in ONNX "
        "Runtime, and the comparison with float32.",
        python="Check the result with onnx.checker, open and run it in ONNX Runtime, and compare it with the float32 "
        "model. False: check only the types of every node's inputs.",
        held_as=("flag",),
        in_recipes=False,
    )
    progress: Progress | None = option(
        None,
        group="report",
        text="Called with the name of a phase and the fraction of it that is done.",
    )

    def keywords(self) -> dict[str, Any]:
        """Return the options as `transpile` takes them."""
        return {name: getattr(self, name) for name in declarations(ConversionOptions)}

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults. A default that is written out counts as none."""
        declared = declarations(ConversionOptions)
        return {
            name: value for name, value in self.keywords().items() if not _is_default(value, declared[name].default)
        }

    def checked(self) -> ConversionOptions:
        """Return the options with the values that count, where a field has a check.

        Raises:
            OptionError: a value is none of its kind.
        """
        checks = {name: declared.check for name, declared in declarations(ConversionOptions).items()}
        values = {name: check(getattr(self, name)) for name, check in checks.items() if check is not None}
        return dataclasses.replace(self, **values)


def _is_default(value: Any, default: Any) -> bool:
    if default is DEFAULT_DTYPE:  # which stands for another format with SambaNova's options
        return value is default
    return value is default or (isinstance(value, (str, tuple, float)) and value == default)
