#!/usr/bin/env python3
"""Count what ONNX Runtime's CUDA provider would ask of a GPU, on a machine that has none.

    python lab/launches.py count model.onnx --feeds inputs.npz       # a JSON line, then a table: a steady-state run
    python lab/launches.py count model.onnx --dim batch=8 --dim sequence=128 --level extended
    python lab/launches.py count model.onnx --providers-option enable_cuda_graph=0 --providers-option prefer_nhwc=1
    python lab/launches.py run script.py args...                     # any program, `launches` importable in it
    python lab/launches.py run --exact-memory script.py args...      # sessions without arenas: tensors' exact bytes

Inside a program started by `run`:

    import launches

    exe.run(main, feed, fetch)                  # the first runs allocate and plan: leave them out
    exe.run(main, feed, fetch)
    with launches.counting() as counts:
        exe.run(main, feed, fetch, return_numpy=False)
    print(counts["launches"], counts["kinds"], counts["memory"])

Needed: Linux on x86-64, gcc, binutils (nm, readelf, c++filt) and the wheel onnxruntime-gpu 1.31; without them it
says so and exits with status 3. Stand-ins for the CUDA driver and libraries (`launches_standin.c`, and a function that
answers "success" for every other symbol) are built once into the temporary folder, under a hash of their sources; this
file then starts itself again with them preloaded, so that no environment has to be set. The provider is the shipped
one: graph optimization, node placement, kernel choice, memory planning and the arena are its own; each kernel, cuBLAS
or cuDNN call and copy ends in a log instead of on a device.

How to read it:
    launches    kernels + cuBLAS products + cuDNN calls: what costs the host some microseconds each. Copies and sets of
                memory are apart. cuBLAS and cuDNN calls count as one launch; a real one may be two or three.
    kinds       the launches by what they do, told by the kernel's name: `cast`, `elementwise`, `reduction`,
                `normalization` (softmax among them), `gemm`, `convolution`, `pooling`, `attention` (what fused
                attention adds to its products), `movement` (transpose, concat, gather, slice and their like), `rnn`,
                `quantization`, `other`. `gemm_types`: products by the type of their operands.
    memcpy      copies by direction, with bytes. HtoD and DtoH within a run are traffic between CPU and CUDA nodes, or
                feeds and fetches that are not bound to the device. `syncs`: waits of the host for a stream or device.
    copies      those copies by themselves: `way`, `bytes`, the launch that they come `before`, `count`.
    products    matrix products, equal ones once with their `count`: `m`, `n`, `k`, `batch`, `transa`, `transb`, leading
                dimensions `lda`, `ldb`, `ldc`, steps from one matrix of a batch to the next `step_a`, `step_b`,
                `step_c` (0 without), and a type for each matrix. Matrices are stored by columns, as cuBLAS has them: a
                product of ONNX shows with its operands in the other order.
    reductions  what `cudnnReduceTensor` was asked for: `operator`, `type`, the shapes `from` and `to`, `count`.
    cpu_nodes   (`count` alone) nodes that the optimized graph runs on the CPU, and `fused`: operators there that ONNX
                Runtime made, from the profile of one run: nodes in a loop count as often as they run. A model whose
                fp32 form is fused and whose low form is not has lost by casts what it won by precision.
    memory      bytes. `session_state`: tensors that the session holds after it was made (weights, and what is made of
                them). `in_use`: the most that all tensors take during a run, session state and outputs included, fed
                inputs not, counted in a second session without an arena. `reserved`: what the arena took from the
                device for the same; it grows in powers of two unless arena_extend_strategy=kSameAsRequested.
                What it takes also depends on where things lie in the host's memory, and may differ by a factor of two:
                addresses are the same in each run where the system lets a process ask for that (containers may not),
                and vary where LAUNCHES_RANDOM_LAYOUT=1 is set, to see by how much. Compare `in_use` where you can.
                Within `counting()`: `reserved_before`, `reserved_after`, `reserved_peak` of the whole process, and
                with `run --exact-memory` also `in_use_before`, `in_use_after`, `in_use_peak`: the tensors that sessions
                took, without those that the program itself put on the device.

What it cannot tell:
    - Nothing computes. Outputs are garbage (mostly zeros) and times mean nothing. Kernels of the CPU provider do run.
    - Where control flow or a shape depends on computed numbers (NonZero, NonMaxSuppression, Loop, If), the run takes
      whatever way garbage leads, if it ends at all. LSTM, GRU and RNN may not run. Such a run may end in an error.
    - Rules of CUDA graph capture are not enforced: what would be refused while capturing is not refused here. A graph's
      later runs show as one `cudaGraphLaunch`, in `api`.
    - cuDNN offers one algorithm without workspace, and the device says that it is an sm_90 with 141 GB: kernels chosen
      by other devices' properties differ, and workspaces are missing from `in_use` and `reserved`.
    - Within `counting()` everything that the process does in that time counts, whichever thread does it; and processes
      that the program starts run on the stand-ins, too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from launches_libraries import MARK, environment, library, under_stand_ins
from launches_log import CPU, CUDA, counts_of, nodes_of
from standin import CannotTell

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

__all__ = ["LaunchesError", "count_model", "counting", "reserved", "table", "under_stand_ins"]

HERE = pathlib.Path(__file__).resolve().parent
LEVELS = {"basic": 1, "extended": 2, "all": 99}
WARM_UP = 2  # the first run plans memory, the second fits it: the third is what every later one does
LaunchesError = CannotTell
CANNOT_TELL = 3  # the exit status where this machine lacks what counting needs


# ---- counting ----
@contextlib.contextmanager
def counting() -> Iterator[dict[str, Any]]:
    """Count what the process asks of CUDA within the block; the counts are in the dictionary when it ends.

    Keys: `launches`, `kinds`, `gemm_types`, `memcpy` (direction -> count and bytes), `memset`, `syncs`, `api`
    (other calls of the runtime), `kernels` (name -> launches), `products`, `reductions`, `copies`, `memory`. Blocks do
    not nest.

    Raises:
        LaunchesError: the process does not run on the stand-ins; the message says how to start it.
    """
    stand_in = library()
    counts: dict[str, Any] = {}
    stand_in.launches_reset_peaks()
    before, tensors_before = stand_in.launches_device_now(), stand_in.launches_tensors_now()
    stand_in.launches_start()
    try:
        yield counts
    finally:
        number = stand_in.launches_stop()
        events = [(stand_in.launches_name(i).decode(), stand_in.launches_number(i)) for i in range(number)]
        counts.update(counts_of(events, stand_in.launches_detail))
        counts["memory"] = {
            "reserved_before": before,
            "reserved_after": stand_in.launches_device_now(),
            "reserved_peak": stand_in.launches_device_peak(),
        }
        if stand_in.launches_tensors_peak():
            counts["memory"] |= {
                "in_use_before": tensors_before,
                "in_use_after": stand_in.launches_tensors_now(),
                "in_use_peak": stand_in.launches_tensors_peak(),
            }


def reserved() -> int:
    """Return the bytes of device memory that the process has taken at this moment."""
    return int(library().launches_device_now())


# ---- `count`: one model ----
def count_model(
    path: str,
    feeds: dict[str, Any] | None = None,
    dims: dict[str, int] | None = None,
    provider_options: dict[str, str] | None = None,
    level: str = "all",
    disabled_optimizers: Sequence[str] = (),
) -> dict[str, Any]:
    """Count the third run of a model; must run on the stand-ins.

    Args:
        path: an ONNX file.
        feeds: input name -> array; made of zeros where None.
        dims: name of a symbolic dimension -> its size in made-up inputs; 1 unless given.
        provider_options: options of the CUDA provider.
        level: how far ONNX Runtime optimizes the graph: "basic", "extended" or "all".
        disabled_optimizers: names of optimizers that stay off.

    Returns:
        The counts of `counting()`, with `cpu_nodes`, `cuda_nodes` and `fused` (operator -> nodes that ran) and
        `memory` as the module's text has it.
    """
    stand_in = library()
    options = dict(provider_options or {})
    settle = stand_in.launches_device_now()
    session = _session(path, options, level, disabled_optimizers)
    values = _values(session, feeds, dims or {})
    taken = stand_in.launches_device_now() - settle
    binding, inputs = _bound(session, values)
    fed = stand_in.launches_device_now() - settle - taken
    for _ in range(WARM_UP):
        session.run_with_iobinding(binding)
    with counting() as counts:
        session.run_with_iobinding(binding)
    arena = stand_in.launches_device_now() - settle - fed
    del binding, inputs, session
    counts["memory"] = {**_exact_memory(path, options, level, disabled_optimizers, values, counts), "reserved": arena}
    return counts


def _session(
    path: str, provider_options: dict[str, str], level: str, disabled: Sequence[str], profile: str | None = None
) -> Any:
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel(LEVELS[level])
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    providers = [(CUDA, {"device_id": "0", **provider_options}), CPU]
    session = ort.InferenceSession(
        path, options, providers=providers, enable_fallback=0, disabled_optimizers=list(disabled)
    )
    if CUDA not in session.get_providers():
        raise LaunchesError("ONNX Runtime did not load the CUDA provider on the stand-ins")
    return session


def _values(session: Any, feeds: dict[str, Any] | None, dims: dict[str, int]) -> dict[str, Any]:
    """Return an array for each input: the feed, in the input's type, or zeros."""
    import numpy as np

    types = {"float": "float32", "double": "float64", "bool": "bool_"}
    values = {}
    for info in session.get_inputs():
        kind = re.fullmatch(r"tensor\((\w+)\)", info.type)
        if kind is None or kind[1] == "string":
            raise LaunchesError(f"input {info.name!r} is a {info.type}: only tensors of numbers can be bound")
        name = types.get(kind[1], kind[1])
        if feeds is not None:
            if info.name not in feeds:
                raise LaunchesError(f"the feeds lack input {info.name!r}; they have {', '.join(feeds) or 'none'}")
            array = np.asarray(feeds[info.name])
        else:
            shape = [size if isinstance(size, int) else dims.get(size or "", 1) for size in info.shape]
            array = np.zeros(shape, "float32" if name == "bfloat16" else name)
        if array.dtype.kind == "f" and name in ("float16", "float32", "float64"):
            array = array.astype(name)
        if name == "bfloat16":
            array = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        values[info.name] = array
    return values


def _bound(session: Any, values: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return a binding with inputs and outputs on the device, so far as they can be, and what keeps them alive."""
    import onnxruntime as ort

    binding, arrays = session.io_binding(), []
    for info in session.get_inputs():
        array = values[info.name]
        if "bfloat16" in info.type:  # which numpy does not know: its bits, in main memory, too
            value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, 16)
        else:
            value = ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        arrays.append(value)
        binding.bind_ortvalue_input(info.name, value)
    _bind_outputs(session, binding)
    return binding, arrays


def _bind_outputs(session: Any, binding: Any) -> None:
    for info in session.get_outputs():
        on_device = info.type.startswith("tensor(") and "string" not in info.type
        binding.bind_output(info.name, *(("cuda", 0) if on_device else ("cpu",)))


def _exact_memory(
    path: str,
    provider_options: dict[str, str],
    level: str,
    disabled: Sequence[str],
    values: dict[str, Any],
    counts: dict[str, Any],
) -> dict[str, int]:
    """Run a second session that has no arena, and profiles: its memory; its nodes are added to `counts`."""
    stand_in, addresses = library(), _own_allocator()
    before = stand_in.launches_tensors_now()
    with tempfile.TemporaryDirectory() as folder:
        session = _session(path, {**provider_options, **addresses}, level, disabled, profile=f"{folder}/profile")
        state = stand_in.launches_tensors_now() - before
        binding, inputs = _bound(session, values)
        fed = stand_in.launches_tensors_now() - before - state
        for _ in range(WARM_UP):
            session.run_with_iobinding(binding)
        binding.clear_binding_outputs()  # the buffers that it holds since the first run: the counted one takes its own
        _bind_outputs(session, binding)
        stand_in.launches_reset_peaks()
        session.run_with_iobinding(binding)
        in_use = stand_in.launches_tensors_peak() - before - fed
        events = json.loads(pathlib.Path(session.end_profiling()).read_text())
        del binding, inputs, session
    counts.update(nodes_of(events))
    return {"session_state": state, "in_use": in_use}


def _own_allocator() -> dict[str, str]:
    """Return the provider options with which a session has no arena and takes each tensor by itself."""
    hooks = {"gpu_external_alloc": "alloc", "gpu_external_free": "free", "gpu_external_empty_cache": "empty"}
    stand_in = library()
    return {
        option: str(ctypes.cast(getattr(stand_in, f"launches_tensor_{what}"), ctypes.c_void_p).value)
        for option, what in hooks.items()
    }


def _without_arenas() -> None:
    """Have every session that the program makes from now on take each tensor by itself."""
    import onnxruntime as ort

    make, options = ort.InferenceSession.__init__, _own_allocator()

    def init(
        self: Any,
        model: Any,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
        **rest: Any,
    ) -> None:
        pairs = [p if isinstance(p, tuple) else (p, {}) for p in providers or ()]
        if provider_options:
            pairs = [(name, options_of) for (name, _), options_of in zip(pairs, provider_options, strict=True)]
        pairs = [(name, {**options_of, **options} if name == CUDA else options_of) for name, options_of in pairs]
        make(self, model, sess_options, pairs or providers, None, **rest)

    ort.InferenceSession.__init__ = init


def table(counts: dict[str, Any]) -> str:
    """Return the counts of a model as a short text."""
    megabytes = {key: f"{value / 2**20:.1f} MB" for key, value in counts["memory"].items()}
    copies = ", ".join(f"{n['count']} {way} {n['bytes']} B" for way, n in counts["memcpy"].items())
    rows = {
        "launches": counts["launches"],
        **{f"  {kind}": number for kind, number in counts["kinds"].items()},
        "gemm operands": ", ".join(f"{n} {name}" for name, n in counts["gemm_types"].items()) or "none",
        "memcpy": copies or "none",
        "memset": f"{counts['memset']['count']}, {counts['memset']['bytes']} B",
        "stream syncs": counts["syncs"],
        "nodes": f"{counts['cuda_nodes']} on CUDA, {counts['cpu_nodes']} on the CPU"
        + (f" ({', '.join(f'{n} {op}' for op, n in counts['cpu_ops'].items())})" if counts["cpu_ops"] else ""),
        "fused": ", ".join(f"{n} {op}" for op, n in counts["fused"].items()) or "none",
        "memory": ", ".join(f"{key} {value}" for key, value in megabytes.items()),
    }
    return "\n".join(f"{name:16} {value}" for name, value in rows.items())


# ---- the command ----
def _fix_addresses() -> None:
    """Have the programs started from here laid out at the same addresses each time, where the system allows it.

    ONNX Runtime orders some of its allocations by where things lie, so that what the arena takes differs by up to a
    factor of two from run to run.
    """
    if os.environ.get("LAUNCHES_RANDOM_LAYOUT", "0") != "0":
        return
    personality = ctypes.CDLL(None).personality
    personality.argtypes, current = [ctypes.c_ulong], 0xFFFFFFFF
    personality(personality(current) | 0x0040000)  # ADDR_NO_RANDOMIZE


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launches.py", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    count = commands.add_parser("count", help="count the steady-state run of a model: a JSON line, then a table")
    count.add_argument("model")
    count.add_argument("--feeds", help="an .npz file with an array for each input; zeros unless given")
    count.add_argument(
        "--dim",
        type=_pair,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a symbolic dimension of made-up inputs (1)",
    )
    count.add_argument(
        "--providers-option",
        type=_pair,
        action="append",
        default=[],
        metavar="K=V",
        help="an option of the CUDA provider",
    )
    count.add_argument("--level", choices=LEVELS, default="all", help="graph optimization (%(default)s)")
    count.add_argument(
        "--disable-optimizer",
        action="append",
        default=[],
        metavar="NAME",
        help="an optimizer of ONNX Runtime that stays off",
    )
    count.add_argument("--json", action="store_true", help="the JSON line alone")
    run = commands.add_parser("run", help="run a Python program on the stand-ins")
    run.add_argument(
        "--exact-memory", action="store_true", help="sessions without arenas: counting() tells what tensors take"
    )
    run.add_argument("script")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _count(options: argparse.Namespace) -> int:
    import numpy as np

    feeds = None
    try:
        if options.feeds:
            with np.load(options.feeds, allow_pickle=False) as file:
                feeds = dict(file)
        dims = {name: int(size) for name, size in options.dim}
        counts = count_model(
            options.model, feeds, dims, dict(options.providers_option), options.level, options.disable_optimizer
        )
    except Exception as error:  # noqa: BLE001  whatever refuses the model is the answer asked for
        print(json.dumps({"model": options.model, "error": " ".join(str(error).split())}), flush=True)
        return 1
    print(json.dumps({"model": options.model, **counts}), flush=True)
    if not options.json:
        print(table(counts), flush=True)
    return 0


def _run(options: argparse.Namespace) -> int:
    for path in pathlib.Path(os.environ[MARK]).glob("lib*.so*"):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)  # before a program preloads the real ones that pip installed
    sys.modules["launches"] = sys.modules[__name__]
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(pathlib.Path(options.script).resolve().parent)
    sys.path.append(str(HERE))
    if options.exact_memory:
        _without_arenas()
    runpy.run_path(options.script, run_name="__main__")
    return 0


def main() -> int:
    """Start again on the stand-ins, then do what is asked."""
    options = _parser().parse_args()
    for file in filter(
        None, (getattr(options, "model", None), getattr(options, "feeds", None), getattr(options, "script", None))
    ):
        if not pathlib.Path(file).is_file():
            print(f"launches.py: there is no file {file}", file=sys.stderr)
            return 2
    if under_stand_ins():
        return _count(options) if options.command == "count" else _run(options)
    try:
        environ = environment()
    except LaunchesError as error:
        print(f"launches.py: {error}", file=sys.stderr)
        return CANNOT_TELL
    _fix_addresses()
    command = [sys.executable, __file__, *sys.argv[1:]]
    if options.command == "run":
        os.execve(sys.executable, command, environ)  # noqa: S606  no shell is wanted: the arguments are the user's
    status = subprocess.run(command, check=False, env=environ).returncode
    if status < 0:  # a kernel of the CPU provider may trip over garbage
        print(
            json.dumps({"model": options.model, "error": f"the run died: {signal.Signals(-status).name}"}), flush=True
        )
    return 1 if status < 0 else status


if __name__ == "__main__":
    sys.exit(main())
