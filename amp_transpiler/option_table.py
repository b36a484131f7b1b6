"""One row for each option of a conversion: `--help`, the page about the command and `transpile`'s docstring show it.

After a change run `python scripts/option_docs.py`, which rewrites the page and the docstring; a test fails until that
is done. Text in backticks is code. `--help` reads the rows itself, so this module imports nothing heavy: targets and
systems describe themselves in tables that are cheap to import.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from amp_transpiler.errors import WrongTypeError
from amp_transpiler.systems.registry import SYSTEMS
from amp_transpiler.targets import TARGETS
from amp_transpiler.targets.devices import DEVICES

__all__ = ["GROUPS", "OPTIONS", "Option", "flag_for", "named_as_in_the_table"]

P = ParamSpec("P")
R = TypeVar("R")

GROUPS = {
    "files": "files",
    "decide": "choosing a precision for each node",
    "check": "checking the result",
    "report": "reporting",
}
"""Group -> its heading, in the order of `--help`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: how the parsed options call it.
        group: a key of `GROUPS`.
        flags: on the command line; without any, the option is a positional argument if it has a metavar, else it exists
            in Python only.
        metavar: placeholder of the value in `--help`. An option with neither metavar nor values is a switch.
        values: the values with a name -> their meaning. If there is a default, no other values are accepted.
        default: the value used if none is given, where it is one of `values`.
        repeated: may be given several times.
        copying: the value with which the files are copied as they are; None if no value does that.
        parameter: the parameter of `transpile` that it sets; None if only the command has it.
        short: a few words, for the options used most, which `--help` shows on one screen; empty: it is none.
        text: one or more sentences, for `--help all` and the page about the command.
        python: the same for `transpile`, where the Python value is of another kind; empty to use `text`.
    """

    name: str
    group: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default: str | None = None
    repeated: bool = False
    copying: str | None = None
    parameter: str | None = None
    short: str = ""
    text: str = ""
    python: str = ""


OPTIONS = (
    Option(
        name="models",
        group="files",
        metavar="MODEL",
        parameter="src",
        text="An fp32 ONNX file; a folder, for every `.onnx` file directly in it except results of former runs "
        "(`*.fp16.onnx`, `*.bf16.onnx`, `*.fp32.onnx`), with `--recursive` for those in the folders inside it, too; or "
        "`-`, for standard input.",
        python="The model: a path, `onnx.ModelProto`, `onnx_ir.Model`, torch's `ONNXProgram` or a `Program`. It is "
        "never changed.",
    ),
    Option(
        name="output",
        group="files",
        flags=("-o",),
        metavar="OUT",
        parameter="dst",
        short="where to write: a file, or a folder with a slash",
        text="The file to write; with a slash at its end, and for several models or a folder of them, the folder; `-` "
        "for standard output. Default: `STEM.fp16.onnx` or `STEM.bf16.onnx` beside the model. An existing file is "
        "replaced, a missing folder is made.",
        python="The file to write; None keeps the result in memory, as `Report.program`.",
    ),
    Option(
        name="recursive",
        group="files",
        flags=("-r", "--recursive"),
        short="take the models of folders inside a folder, too",
        text="Take the models of the folders inside a folder, too, except hidden ones. Behind `-o` the results get the "
        "same folders.",
    ),
    Option(
        name="skip_unchanged",
        group="files",
        flags=("--skip-unchanged",),
        text="Skip a model whose result is there and was made by this command from the same files, with the same "
        "options and versions. A call for several models that was cut goes on so where it ended.",
    ),
    Option(
        name="dry_run",
        group="files",
        flags=("--dry-run",),
        text="Convert and check, but write no model.",
    ),
    Option(
        name="jobs",
        group="files",
        flags=("--jobs",),
        metavar="N",
        short="convert N models at a time",
        text="Convert several models at a time, in N processes. Default: 1.",
    ),
    Option(
        name="level",
        copying="O0",
        group="decide",
        flags=("--level",),
        metavar="LEVEL",
        parameter="level",
        default="auto",
        text="How much runs in lower precision.",
        values={
            "auto": "all that the target can run and that is numerically safe, except nodes that go back to "
            "float32 until the result is accurate",
            "O0": "nothing (the files are copied)",
            "OD": "the white list only",
            "O1": "the white operators of Paddle's lists, and gray ones that follow them",
            "O2": "all that the target can run, even operators on the default black list",
        },
    ),
    Option(
        name="dtype",
        group="decide",
        flags=("--dtype",),
        metavar="float16|bfloat16|float32",
        parameter="dtype",
        short="the format; float16 unless given",
        text="The format to convert to. Default: `float16`, or `bfloat16` with a preset or mixed operators. The source "
        "may be in any of the three: another 16-bit format is made float32 first, exactly. With `float32` all 16-bit "
        "floats inside the model become float32; inputs and outputs follow with `--io-types low`.",
        python="The format to convert to. Default: `float16`, or `bfloat16` with a preset or mixed operators. The "
        "source may be in any of the three: another 16-bit format is made float32 first, exactly. With `float32` all "
        "16-bit floats inside the model become float32; inputs and outputs follow with `keep_io_types=False`.",
    ),
    Option(
        name="target",
        group="decide",
        flags=("--target",),
        metavar="TARGET",
        parameter="target",
        default="cuda",
        text="Whose kernels count.",
        values={name: target.description for name, target in TARGETS.items()},
    ),
    Option(
        name="ort",
        group="decide",
        flags=("--ort",),
        metavar="VERSION",
        parameter="ort",
        text="The ONNX Runtime that is to run the result, such as `1.20`: its kernels, opset and IR version count. "
        "Releases 1.17 to 1.31 are known. Default: the installed one.",
    ),
    Option(
        name="io_types",
        group="decide",
        flags=("--io-types",),
        metavar="keep|low|NAME=low,...",
        parameter="keep_io_types",
        text="Types of the graph's inputs and outputs: `keep` them (default), make all floats `low` (of the new "
        "format), or only those named or matched by a pattern (`past_key_values.*=low`).",
        python="Which inputs and outputs of the graph keep their types: all (True), none (False), or those named or "
        "matched by a pattern. A dict such as `{'past_key_values.*': 'low'}` names those that do not.",
    ),
    Option(
        name="white",
        group="decide",
        flags=("--white",),
        metavar="OP",
        repeated=True,
        parameter="amp_lists",
        text="Run an operator in lower precision wherever the target has a kernel and its values fit. ONNX's name "
        "(`Conv`, `com.microsoft::BiasGelu`), Paddle's (`conv2d`), or a pattern of a whole name.",
        python="Your own white and black operators and black variables, names or patterns of whole names; None for the "
        "default lists.",
    ),
    Option(
        name="black",
        group="decide",
        flags=("--black",),
        metavar="OP",
        repeated=True,
        parameter="amp_lists",
        text="Keep an operator, or those that a pattern matches (`Reduce.*`), in float32.",
    ),
    Option(
        name="black_var",
        group="decide",
        flags=("--black-var",),
        metavar="NAME",
        repeated=True,
        parameter="amp_lists",
        text="Keep the nodes that read or write this value, or those that a pattern matches, in float32.",
    ),
    Option(
        name="guard",
        group="decide",
        flags=("--guard",),
        metavar="REGEX",
        repeated=True,
        parameter="guard",
        text="Only nodes whose name contains a match may run in lower precision.",
        python="Patterns of node names. If any is given, only nodes whose name contains a match may run in lower "
        "precision.",
    ),
    Option(
        name="disable_amp",
        group="decide",
        flags=("--disable-amp",),
        metavar="REGEX",
        repeated=True,
        parameter="disable_amp",
        text="Nodes whose name contains a match stay as they are written.",
        python="Patterns of node names. Nodes whose name contains a match stay as they are written.",
    ),
    Option(
        name="include",
        group="decide",
        flags=("--include",),
        metavar="REGEX",
        repeated=True,
        parameter="include",
        text="Nodes whose name contains a match run in lower precision by force, whatever lists, numerics and ranges "
        "say. An error where a schema forbids it or no provider would run the node.",
        python="Patterns of node names. Nodes whose name contains a match run in lower precision by force, whatever "
        "lists, numerics and ranges say. An error where a schema forbids it or no provider would run the node.",
    ),
    Option(
        name="opset",
        group="decide",
        flags=("--opset",),
        metavar="N",
        parameter="opset",
        text="The opset of the result. Default: the model's, or a higher one in which more nodes can run in lower "
        "precision. A lower one is an error unless the model can be written in it exactly.",
    ),
    Option(
        name="promote",
        group="decide",
        flags=("--promote",),
        parameter="use_promote",
        text="Paddle's promotion: an operator that the lists leave open stays float32 if one of its inputs is float32, "
        "and runs in lower precision otherwise. Constants do not count at levels auto and O2.",
    ),
    Option(
        name="prefer",
        group="decide",
        flags=("--prefer",),
        metavar="WHAT",
        parameter="prefer",
        default="balance",
        short="balance (default), time or size: 16 bits that pay, or one end",
        text="What level auto aims at, among all conversions that keep the limits, float32 among them. Where no times "
        "are predicted (targets `cpu` and `tensorrt`), and for training steps, `balance` is `size`.",
        values={
            "balance": "the smallest file that is predicted at most a tenth slower on the device than the fastest one",
            "time": "the least predicted time",
            "size": "the smallest file: the most computation in lower precision, at the fewest casts",
            "low": "as `size`",
        },
    ),
    Option(
        name="device",
        group="decide",
        flags=("--device",),
        metavar="DEVICE",
        parameter="device",
        default="H100",
        short="the GPU whose times are predicted",
        text="The GPU whose times are predicted, for the report and for `--prefer`.",
        values={name: device.words for name, device in DEVICES.items()},
    ),
    Option(
        name="dims",
        group="decide",
        flags=("--dim",),
        metavar="NAME=SIZE",
        repeated=True,
        parameter="dims",
        text="The size of an open dimension of the inputs, such as `batch=8`, for predicted times. Default: 1 for a "
        "batch, and for others what made-up inputs have.",
        python="Name of an open dimension of the inputs -> its size, for predicted times. Default: 1 for a batch, and "
        "for others what made-up inputs have.",
    ),
    Option(
        name="headroom",
        group="decide",
        flags=("--headroom",),
        metavar="X",
        parameter="headroom",
        text="Level auto with data: a node may run in lower precision only if X times the largest magnitude that it "
        "was seen with fits. Default: 4.",
    ),
    Option(
        name="data_max",
        group="decide",
        flags=("--data-max",),
        metavar="X",
        parameter="data_max",
        text="Keep a node in float32 if a value that it reads or computes is larger than X on the inputs, made-up ones "
        "included. Default: no such threshold.",
    ),
    Option(
        name="init_max",
        group="decide",
        flags=("--init-max",),
        metavar="X",
        parameter="init_max",
        text="Keep a node in float32 if a constant that it reads has a finite number larger than X. Default: no such "
        "threshold.",
    ),
    Option(
        name="max_depth_of_reduction",
        group="decide",
        flags=("--max-depth-of-reduction",),
        metavar="N",
        parameter="max_depth_of_reduction",
        text="Keep a node in float32 if it sums more than N terms into one number: the inner dimension of a matrix "
        "product, input channels times kernel of a convolution, the elements that a ReduceSum adds. Default: no such "
        "threshold.",
    ),
    Option(
        name="policy",
        group="decide",
        flags=("--policy",),
        metavar="POLICY",
        parameter="policy",
        default="paddle",
        text="Whose rules decide. Only `paddle` has levels OD and O2.",
        values={name: system.description for name, system in SYSTEMS.items()},
    ),
    Option(
        name="preset",
        copying="mp0",
        group="decide",
        flags=("--preset",),
        metavar="PRESET",
        parameter="preset",
        text="SambaNova's presets, instead of a policy and level.",
        values={
            "mp0": "nothing (the files are copied)",
            "mp1": "matrix products take inputs in lower precision (SambaNova recommends it)",
            "mp4": "all that the target can run",
            "default": "like mp4, but what follows a cast to float32 in the source stays float32",
        },
    ),
    Option(
        name="mixed_ops",
        group="decide",
        flags=("--mixed-ops",),
        metavar="gemm,softmax",
        parameter="mixed_ops",
        text="SambaNova's mixed operators, with or without a preset; several with commas or spaces.",
        values={
            "gemm": "inputs in lower precision, result in float32",
            "softmax": "input in float32, result in lower precision",
        },
    ),
    Option(
        name="state",
        group="decide",
        flags=("--state",),
        metavar="IN=OUT",
        repeated=True,
        parameter="state",
        text="Output OUT of a training step replaces input IN in the next. The update of a state stays float32. Most "
        "pairs are found: a parameter by its gradient, and moments, running statistics and counters beside one.",
        python="Input -> the output that replaces it in the next run of a training step, for pairs that are not found. "
        "The update of a state stays float32.",
    ),
    Option(
        name="master_weights",
        group="decide",
        flags=("--master-weights",),
        parameter="master_weights",
        text="Require float32 master weights: an error if no trained parameter is found. A parameter is its own master "
        "while it stays float32; one that `--io-types` makes low gets an input and an output for its master anyway.",
        python="True: an error if no trained parameter is found. A parameter is its own float32 master; one that "
        "`keep_io_types` makes low gets an input and an output for its master. False: it gets none, and small updates "
        "vanish. Default: masters wherever parameters become low.",
    ),
    Option(
        name="loss_scaling",
        group="decide",
        flags=("--loss-scaling",),
        parameter="loss_scaling",
        text="Scale the loss of a training step dynamically, so that small float16 gradients do not become zero. The "
        "scale is a new input and output.",
    ),
    Option(
        name="optimize",
        group="decide",
        flags=("--optimize",),
        parameter="optimize",
        text="Let ONNX Runtime's transformers optimizer fuse the model first: attention, normalisation with what is "
        "added before, activations with their bias. The result is compared with the model as given; if the optimizer "
        "fails, or changes what is computed, a warning says so and the model is converted without it. Patterns of node "
        "names then see the fused model's. Not for target `tensorrt`.",
    ),
    Option(
        name="recipe",
        group="decide",
        flags=("--recipe",),
        metavar="R.toml",
        parameter="recipe",
        text="Replay the conversion that a recipe holds, on the same model or on its next export: its options, except "
        "those given beside it, and its decision about each node, found by name. What no longer fits is warned of; "
        "nodes that the recipe does not know are decided anew.",
        python="A recipe (`Report.save_recipe`) whose conversion is replayed, on the same model or on its next export: "
        "its options, except those given beside it, and its decision about each node, found by name. What no longer "
        "fits is warned of; nodes that the recipe does not know are decided anew.",
    ),
    Option(
        name="inputs",
        group="check",
        flags=("--inputs",),
        metavar="DATA.npz|FOLDER",
        parameter="inputs",
        short="your data to compare on",
        text="Samples to compare on: an .npz file, a folder of them, or one of ONNX's `test_data_set_*`. For several "
        "models a place with `{stem}` (the model's name), `{path}` (the same with its folders inside the one that was "
        "named) or `{folder}` (where it lies), such as `samples/{stem}.npz`; or a manifest, a `.toml` or `.json` with "
        'a row for each model or pattern: `"resnet*.onnx" = "samples/resnet.npz"`, from its own folder. Default: '
        "`STEM.inputs.npz` beside the model, else the `test_data_set_0` of a model that is alone in its folder, else "
        "inputs made up from the model's shapes, as with `made-up`.",
        python="Samples to compare on: an .npz file, a folder, a dict, or several dicts. None: inputs made up from the "
        "model's shapes.",
    ),
    Option(
        name="tolerance",
        group="check",
        flags=("--tolerance",),
        metavar="T|NAME=T,...",
        parameter="tolerance",
        short="the largest error of an output, such as 1%",
        text="The largest relative error (of the norm) of an output, such as `0.01` or `1%`; of single outputs, by "
        "names or patterns, `logits=1%,boxes=0.5`; or both, `2%,logits=1%`. Default: 2% in float16 and 5% in bfloat16 "
        "at level auto of policy paddle. Otherwise there is no limit: large errors are only warned of, but values that "
        "became infinite or NaN fail.",
        python="The largest relative error (of the norm) of an output: a fraction, or text such as `1%`, "
        "`logits=1%,boxes=0.5` or `2%,logits=1%`, or a dict of the same by output (a name or pattern). Default: 0.02 "
        "in float16 and 0.05 in bfloat16 at level auto of policy paddle. Otherwise there is no limit: large errors are "
        "only warned of, but values that became infinite or NaN fail.",
    ),
    Option(
        name="mismatch",
        group="check",
        flags=("--mismatch",),
        metavar="M",
        parameter="mismatch",
        text="The largest share of the integers, truth values or texts of an output that may differ, such as `0.001` "
        "or `0.1%`. Default: none may wherever a tolerance applies, but for labels that fp32 itself decided by a "
        "hair's breadth (at most 1% of them); elsewhere there is no limit.",
    ),
    Option(
        name="metric",
        group="check",
        flags=("--metric",),
        metavar="FILE.py:FUNCTION",
        parameter="metric",
        text="Your own measure: a function of the outputs of fp32 and of the result, each a list with a dict (output "
        "to array) for every sample; the less it returns, the better. Level auto finds the best conversion for "
        "which it is at most `--metric-bound`, and no other tolerance holds unless one is given.",
        python="Your own measure, with `metric_bound`: a function of the outputs of fp32 and of the result, each a "
        "list with a dict (output to array) for every sample, or `FILE.py:FUNCTION`; the less it returns, the "
        "better. Level auto finds the best conversion for which it is at most the bound, and no other tolerance "
        "holds unless one is given.",
    ),
    Option(
        name="metric_bound",
        group="check",
        flags=("--metric-bound",),
        metavar="B",
        parameter="metric_bound",
        text="The largest value of `--metric` that is accepted.",
        python="The largest value of `metric` that is accepted.",
    ),
    Option(
        name="frontier",
        group="check",
        flags=("--frontier",),
        parameter="frontier",
        text="Level auto: work out the whole curve between accuracy and speed, from runs on the data, and report "
        "error, predicted time, share of low nodes and casts along it, and what each node adds to the error. A "
        "report in HTML has it anyway.",
        python="Level auto: work out the whole curve between accuracy and speed, from runs on the data: "
        "`Report.frontier`, and the error of each row of `Report.decisions`.",
    ),
    Option(
        name="device_check",
        group="check",
        flags=("--device-check",),
        metavar="WISH",
        parameter="device_check",
        default="auto",
        text="Whether the written file is run on a device: as `amp.Session` opens it and as ONNX Runtime does by "
        "default, three times each on different samples. The verdict is then what the device measured, with the "
        "emulation beside it.",
        values={
            "auto": "where the host's default place is a device",
            "yes": "always; an error where no device answers",
            "no": "never: the verdict is emulated",
        },
    ),
    Option(
        name="no_cache",
        group="check",
        flags=("--no-cache",),
        parameter="cache",
        text="Do not keep, or use, what runs have shown about a model, in the user's cache folder.",
        python="Keep what runs have shown about a model in the user's cache folder, and use what is there.",
    ),
    Option(
        name="no_verify",
        group="check",
        flags=("--no-verify",),
        parameter="verify",
        text="Check only the types of every node's inputs. Skip onnx.checker, opening and running the result in ONNX "
        "Runtime, and the comparison with fp32.",
        python="Check the result with onnx.checker, open and run it in ONNX Runtime, and compare it with the fp32 "
        "model. False: check only the types of every node's inputs.",
    ),
    Option(
        name="benchmark",
        group="check",
        flags=("--benchmark",),
        text="Measure both models in turns, on the GPU or without one on the CPU: latency (median, p90, p99), "
        "throughput, peak memory, time per operator, nodes on the CPU and copies. A result that is slower than fp32 is "
        "said in red.",
    ),
    Option(
        name="explain",
        group="report",
        flags=("--explain",),
        short="the precision of every node, and why",
        text="Print the precision of every node, and the reason.",
    ),
    Option(
        name="report",
        group="report",
        flags=("--report",),
        metavar="OUT.html",
        short="a page with the graph and every node",
        text="Write the report as an HTML page.",
    ),
    Option(
        name="json",
        group="report",
        flags=("--json",),
        metavar="OUT.json",
        text="Write the report as JSON; `-` prints it, and nothing else, to stdout.",
    ),
    Option(
        name="junit",
        group="report",
        flags=("--junit",),
        metavar="OUT.xml",
        text="Write which models were converted, and why others were not, as JUnit XML.",
    ),
    Option(
        name="sarif",
        group="report",
        flags=("--sarif",),
        metavar="OUT.sarif",
        text="Write what failed or looks wrong as SARIF, for the page of a pull request.",
    ),
    Option(
        name="save_recipe",
        group="report",
        flags=("--save-recipe",),
        metavar="R.toml",
        text="Write the conversion as a recipe for `--recipe`: options, decisions by node, versions.",
    ),
    Option(
        name="quiet",
        group="report",
        flags=("-q", "--quiet"),
        text="Print only warnings and errors.",
    ),
    Option(
        name="verbose",
        group="report",
        flags=("-v", "--verbose"),
        repeated=True,
        text="Print log messages, and the traceback of an internal error. Twice: debug messages too.",
    ),
    Option(
        name="progress",
        group="report",
        parameter="progress",
        text="Called with the name of a phase and the fraction of it that is done.",
    ),
)


def flag_for(flag: str) -> str:
    """Return, for a flag that the command has not, what it has instead; empty if nothing is like it."""
    option = _meant(flag)
    if option is None:
        return ""
    if not option.flags:
        return f"{flag} is no option of the command: {option.name!r} is a parameter of transpile only"
    own = [row.flags[-1] for row in OPTIONS if row is option or (row.parameter and row.parameter == option.parameter)]
    if own[0].startswith("--no-") and not _plain(flag).startswith("no_"):
        return f"{flag} is the default; {own[0]} switches it off"
    return f"{flag} is {', '.join(own)} on the command line; see amp-transpile --help all"


def _meant(name: str) -> Option | None:
    """Return the option that a user means, by any of its names: a flag, a parameter, with dashes or underscores."""
    wanted = _plain(name)
    for option in OPTIONS:
        names = (option.name, option.parameter or "", *option.flags, *_OTHER_NAMES.get(option.name, ()))
        if wanted in map(_plain, names):
            return option
    return None


def named_as_in_the_table(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function answer an argument that it does not know with the name that it has for it.

    Raises:
        WrongTypeError: by the function, which is a TypeError, too.
    """
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise WrongTypeError(f"{function.__name__} has no parameter {name!r}{_other_name(name, known)}")
        return function(*args, **kwargs)

    return checked


def _other_name(name: str, known: Mapping[str, object]) -> str:
    from amp_transpiler.graph.name_matching import did_you_mean  # few calls are wrong

    option = _meant(name)
    if option is None:
        return did_you_mean(name, known) or "; see help(transpile)"
    if option.parameter is None:
        return f": {option.flags[-1]} is an option of the command only; the report that transpile returns has it all"
    flag = option.flags[-1] if option.flags else option.metavar
    python = f"{option.parameter}=False" if str(flag).startswith("--no-") else option.parameter
    return f": the command's {flag} is {python} in Python"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


_OTHER_NAMES = {
    "output": ("output", "out"),
    "models": ("model", "path", "source"),
    "no_verify": ("skip_verify",),
    "white": ("white_list", "custom_white_list"),
    "black": ("black_list", "custom_black_list"),
    "io_types": ("keep_io",),
    "dims": ("dim", "shapes"),
    "inputs": ("samples", "data"),
}
"""What users call an option that neither the command nor Python does."""
