"""Stage "options": is each option of ONNX Runtime that the package sets or offers right on the device? Does it pay?

A variant is ONNX Runtime's default with one setting changed. It runs four times: three samples, and the first again.
Right is what equals the CPU's float32 as well as the default does in each of these runs; the fault of `fuse_conv_bias`
shows from the second run on. Time and memory stand beside those of the default in the same process (inference) or of
the same step (training, a process for each variant, since what an arena took stays in its process).
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import amp_transpiler as amp
from amp_transpiler.runtime.feeds import reordered
from amp_transpiler.runtime.places import Place, place_named, to_host
from amp_transpiler.verification.compare import compare_outputs
from gpu.conversions import VARIANTS, outputs
from gpu.names import MODELS_WITH_OPTIONS
from gpu.records import Record, Task, Unavailable, attempt, timed

__all__ = ["options"]

SAMPLES = 3
WAYS = {"fp32.float32", "auto.float16"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A session of ONNX Runtime with something else than its defaults.

    Attributes:
        provider: options of the CUDA provider.
        disabled: optimizers that stay off.
    """

    provider: Mapping[str, str] = dataclasses.field(default_factory=dict)
    disabled: tuple[str, ...] = ()


SETTINGS: Mapping[str, Setting] = {
    "default": Setting(),
    "arena_extend_strategy=kSameAsRequested": Setting({"arena_extend_strategy": "kSameAsRequested"}),
    "cudnn_conv_algo_search=HEURISTIC": Setting({"cudnn_conv_algo_search": "HEURISTIC"}),
    "prefer_nhwc=1": Setting({"prefer_nhwc": "1"}),
    "prefer_nhwc=1, fuse_conv_bias=1": Setting({"prefer_nhwc": "1", "fuse_conv_bias": "1"}),
    "without MatMulAddFusion": Setting(disabled=("MatMulAddFusion",)),
    "default again": Setting(),  # how much two measurements of the same differ
}
CONVOLUTIONS = {"cudnn_conv_algo_search=HEURISTIC", "prefer_nhwc=1", "prefer_nhwc=1, fuse_conv_bias=1"}

# Variant of a step -> what `_change` makes of its session.
STEP_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "ours": {},
    "session.use_env_allocators=0": {"settings": {"shared_memory": False}, "shares": False},
    "disable_synchronize_execution_providers=0": {"shares": True, "synchronizes": True},
    "arena kNextPowerOfTwo": {"arena": {"arena_extend_strategy": 0}},
    "max_dead_bytes_per_chunk of ONNX Runtime": {"arena": {"max_dead_bytes_per_chunk": None}},
    "memory patterns, reuse and order of ONNX Runtime": {"settings": {"lean": False}},
    "cuda_graph": {"cuda_graph": True},
}
FEWER = ("ours", "memory patterns, reuse and order of ONNX Runtime", "cuda_graph")


def options(task: Task) -> None:
    """Measure the settings of a model's sessions, or of a step's."""
    if task.name in MODELS_WITH_OPTIONS:
        _of_model(task)
    else:
        _of_step(task)


# ---- inference ----
def _of_model(task: Task) -> None:
    if not (task.folder / f"{task.name}.feeds.npz").exists():
        raise Unavailable("it was not prepared")
    with np.load(task.folder / f"{task.name}.feeds.npz") as file:
        samples = [reordered(dict(file), shift) for shift in range(SAMPLES)]
    place = place_named(task.place)
    source = VARIANTS[0].path(task.folder, task.name)
    right = [outputs(source, sample) for sample in samples]
    for variant in VARIANTS:
        path = variant.path(task.folder, task.name)
        if variant.file not in WAYS or not path.exists():
            continue
        for name, setting in SETTINGS.items():
            if name in CONVOLUTIONS and task.name.startswith(("bert", "gpt2")):
                continue
            attempt(
                task,
                name,
                variant.file,
                lambda path=path, setting=setting: _measured(str(path), setting, samples, right, place, tiny=task.tiny),  # type: ignore[misc]
            )
        attempt(
            task,
            "amp.Session",
            variant.file,
            lambda path=path: _ours(str(path), samples, right, place, tiny=task.tiny),  # type: ignore[misc]
        )


def _measured(
    path: str,
    setting: Setting,
    samples: list[dict[str, np.ndarray]],
    right: list[dict[str, np.ndarray]],
    place: Place,
    *,
    tiny: bool,
) -> Iterator[Record]:
    import onnxruntime

    before = place.memory_in_use()
    providers = list(place.providers(dict(setting.provider) if place.has_provider_options else None))
    session = onnxruntime.InferenceSession(
        path, providers=providers, enable_fallback=0, disabled_optimizers=list(setting.disabled)
    )
    if session.get_providers()[0] != (providers[0][0] if isinstance(providers[0], tuple) else providers[0]):
        raise RuntimeError(f"asked for {providers[0]}, the session has {session.get_providers()}")
    wrapped = amp.Session.over(session, place)
    yield _judged(wrapped, samples, right, before, place, tiny=tiny)


def _ours(
    path: str, samples: list[dict[str, np.ndarray]], right: list[dict[str, np.ndarray]], place: Place, *, tiny: bool
) -> Iterator[Record]:
    before = place.memory_in_use()
    with amp.Session(path, place, cache=False) as session:
        yield {**_judged(session, samples, right, before, place, tiny=tiny), "cuda_graph": session.cuda_graph}


def _judged(
    session: amp.Session,
    samples: list[dict[str, np.ndarray]],
    right: list[dict[str, np.ndarray]],
    before: int | None,
    place: Place,
    *,
    tiny: bool,
) -> Record:
    errors = []
    for sample, expected in [*zip(samples, right, strict=True), (samples[0], right[0])]:
        results = session.run(sample)
        named = {info.name: np.asarray(value, np.float32) for info, value in zip(session.outputs, results, strict=True)}
        rows = compare_outputs([expected], [named]).values()
        errors.append(max(float("inf") if row.nonfinite else row.relative for row in rows))
    record: Record = {"errors": errors, **timed(session.bind(samples[0]), tiny=tiny, seconds=0.4)}
    after = place.memory_in_use()
    record["memory"] = None if before is None or after is None else after - before
    return record


# ---- steps ----
def _of_step(task: Task) -> None:
    chosen = STEP_VARIANTS if task.name.startswith("transformer") else {name: STEP_VARIANTS[name] for name in FEWER}
    dtype = task.name.rsplit(".", 1)[1]
    for name, changes in chosen.items():
        attempt(task, name, dtype, lambda changes=changes: _in_a_process(task, changes))  # type: ignore[misc]


def _in_a_process(task: Task, changes: Mapping[str, Any]) -> Iterator[Record]:
    order = json.dumps({"name": task.name, "place": task.place, "tiny": task.tiny, "changes": changes})
    done = subprocess.run(
        [sys.executable, __file__, order], check=False, capture_output=True, text=True, timeout=40, env=os.environ
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    yield json.loads(done.stdout.splitlines()[-1])


def _change(changes: Mapping[str, Any]) -> None:
    """Have the sessions of steps opened with other settings in this process, which ends with the measurement."""
    from amp_transpiler.runtime import compile as compiling, places, runs, shared_memory

    settings, parts = changes.get("settings", {}), vars(compiling)
    make = parts["SessionSettings"]
    parts["SessionSettings"] = lambda **usual: make(**{**usual, **settings})
    arena = {**vars(shared_memory)["_ARENA"], **changes.get("arena", {})}
    vars(shared_memory)["_ARENA"] = {name: value for name, value in arena.items() if value is not None}
    if changes.get("shares") is False:
        setattr(places.CUDAPlace, "queues_steps", lambda _: False)  # noqa: B010  a method of a frozen class
    if changes.get("synchronizes"):
        setattr(runs.Runs, "_prepare", _prepare_with_waits)  # noqa: B010  likewise


def _prepare_with_waits(self: Any) -> None:
    import onnxruntime

    self._options = onnxruntime.RunOptions()
    self._uploads = self._place.uploads()


def _step(name: str, place_name: str, changes: Mapping[str, Any], *, tiny: bool) -> Record:
    from amp_transpiler import static
    from programs.ours import training_step
    from programs.sizes import NETWORKS, feeds_of, small

    network_name, level, dtype = name.split(".")
    network = small(NETWORKS[network_name]) if tiny else NETWORKS[network_name]
    place = place_named(place_name)
    _change(changes)
    step, feeds, before = training_step(network, level, dtype), feeds_of(network), place.memory_in_use()
    graph = bool(changes.get("cuda_graph")) and place.has_provider_options
    executor = static.Executor(place, cuda_graph=graph)
    executor.run(step.startup)
    losses = [float(np.asarray(executor.run(step.main, feeds, [step.loss.name])[0]).reshape(())) for _ in range(6)]
    last: list[Any] = []

    def run() -> None:
        last[:] = executor.run(step.main, feeds, [step.loss.name], return_numpy=False)

    record: Record = {"losses": losses, **timed(run, tiny=tiny, wait=lambda: to_host(last[0]))}
    after = place.memory_in_use()
    return {**record, "memory": None if before is None or after is None else after - before}


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(json.dumps(_step(request["name"], request["place"], request["changes"], tiny=request["tiny"])))
