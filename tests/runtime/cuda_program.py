"""The program of test_on_cuda.py: it runs on stand-ins, and tells in one line of JSON what it saw."""

from __future__ import annotations

import gc
import json
import sys
import tempfile

import ml_dtypes
import numpy as np
from amp_transpiler.nn import functional

import amp_transpiler as amp
import launches
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace, to_host
from amp_transpiler.runtime.values import device_of, to_ort

PLACE = CUDAPlace(0)
DTYPES = {
    **{name: np.dtype(name) for name in ("float32", "float16", "int64", "bool")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
}


def read_back(dtype):
    array = np.array([[1, 0, 2], [3, 1, 0]]).astype(dtype)
    value = PLACE.hold(to_ort(array))
    again = CPUPlace().hold(value)
    same = [bool((back == array).all()) for back in (to_host(value), to_host(again))]
    return [*same, *device_of(value)]


def network(level=None):
    main, startup = static.Program(), static.Program()
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        x, label = static.data("x", ["n", 3, 16, 16]), static.data("label", ["n", 1], "int64")
        hidden = functional.relu(static.nn.batch_norm(static.nn.conv2d(x, 16, 3, padding=1)))
        logits = static.nn.fc(tensor.mean(hidden, axis=[2, 3]), 10)
        test = main.clone(for_test=True)
        loss = functional.cross_entropy(logits, label)
        adam = optimizer.AdamW(0.1, multi_precision=level == "O2")
        if level:
            adam = static.amp.decorate(adam, level=level, dtype="bfloat16")
        adam.minimize(loss, startup)
    return main, startup, loss, test, x, logits


def feed(rows):
    return {"x": np.zeros((rows, 3, 16, 16), np.float32), "label": np.zeros((rows, 1), np.int64)}


def shapes(sizes):
    """Train with feeds of these sizes; return the most memory taken, what is left, and what is left after closing."""
    main, startup, loss, *_ = network()
    scope, peak = static.Scope(), 0
    with static.Executor(PLACE) as executor:
        executor.run(startup, scope=scope)
        for rows in sizes:
            for _ in range(2):
                executor.run(main, feed(rows), [loss], scope)
                peak = max(peak, launches.reserved())
        held = launches.reserved()
        scope.clear()
    gc.collect()
    executor.close()
    return peak, held, launches.reserved()


def bfloat16():
    """Return what each way of reading a bfloat16 value from the device gives."""
    main, startup, loss, test, x, logits = network("O2")
    scope, executor = static.Scope(), static.Executor(PLACE)
    with static.scope_guard(scope), tempfile.TemporaryDirectory() as folder:
        executor.run(startup)
        executor.run(main, feed(4), [loss])
        low = next(name for name in scope if scope[name].dtype == ml_dtypes.bfloat16)
        differences = {
            "fetched": executor.run(main, feed(4), [loss, low])[1].dtype.name,
            "in the scope": scope[low].dtype.name,
            "test program": executor.run(test, feed(4), [low, logits])[0].dtype.name,
        }
        static.save(main, f"{folder}/saved")
        static.load(main, f"{folder}/saved")
        differences["saved"] = scope[low].dtype.name
        static.save_inference_model(f"{folder}/served", [x], [logits], executor, program=test)
        differences["inference model"] = amp.Session(f"{folder}/served.onnx", CPUPlace()).outputs[0].dtype
    return differences


def on_the_cpu():
    """Train on the stand-ins, then go on on the CPU with the same scope, whose numbers are those of the device."""
    main, startup, loss, *_ = network("O2")
    scope = static.Scope()
    with static.Executor(PLACE) as executor:
        executor.run(startup, scope=scope)
        executor.run(main, feed(4), [loss], scope)
    on_device = {name: scope[name].tobytes() for name in scope}
    moved = []
    with static.Executor(CPUPlace()) as executor:
        state = executor._steps._state
        executor._steps._state = lambda *arguments: moved.append(state(*arguments)) or moved[-1]
        executor.run(main, feed(4), [loss], scope)
        stacks = {stack.name: stack for step in executor._steps._steps.values() for stack in step.stacks}
    state_values = {}
    for name, value in moved[0].items():
        state_values |= stacks[name].parted(to_host(value)) if name in stacks else {name: to_host(value)}
    same = [array.tobytes() == on_device[name] for name, array in state_values.items() if name in on_device]
    return [scope.held(next(iter(scope))).device_name(), len(same) > 1 and all(same)]


def steps():
    """Count a step that nothing is read of, and one whose loss is."""
    main, startup, loss, *_ = network()
    scope, executor, fed = static.Scope(), static.Executor(PLACE), feed(4)
    executor.run(startup, scope=scope)
    for _ in range(2):
        executor.run(main, fed, [loss], scope)
    told = {"fed_bytes": sum(array.nbytes for array in fed.values())}
    for key, numpy in (("queued", False), ("fetched", True)):
        with launches.counting() as counts:
            executor.run(main, fed, [loss], scope, return_numpy=numpy)
        told[key] = {"syncs": counts["syncs"], "HtoD": counts["memcpy"]["HtoD"]["bytes"], "api": counts["api"]}
    return told


def graphs():
    """Count a step that is captured, for each of the two sets of buffers; and say why another one is not."""
    main, startup, loss, *_ = network()
    scope, executor, fed = static.Scope(), static.Executor(PLACE, cuda_graph=True), feed(4)
    executor.run(startup, scope=scope)
    told = []
    for step in range(6):
        fed["x"][...] = step
        with launches.counting() as counts:
            [value] = executor.run(main, fed, [loss], scope, return_numpy=False)
        told.append([counts["launches"], counts["api"].get("cudaGraphLaunch", 0), counts["syncs"]])
    return {"steps": told, "HtoD": counts["memcpy"]["HtoD"]["bytes"], "device": value.device_name()}


def options_of(given):
    """Return the options of a step's session, or the error that they raise."""
    main, startup, loss, *_ = network()
    try:
        with static.Executor(PLACE, provider_options=given) as executor, static.scope_guard(static.Scope()):
            executor.run(startup)
            executor.run(main, feed(4), [loss])
            session = next(reversed(executor._steps._steps.values())).session
            return session.get_provider_options()["CUDAExecutionProvider"]
    except EnvironmentProblem as error:
        return str(error)


def main():
    told = {"read_back": {name: read_back(dtype) for name, dtype in DTYPES.items()}}
    told |= {"bfloat16": bfloat16(), "cpu_after_cuda": on_the_cpu(), **steps()}
    gc.collect()
    static.Executor(PLACE).close()
    told["graphs"] = graphs()
    told["before"] = launches.reserved()
    told["largest"], told["held"], told["closed"] = shapes([100])
    told["hundred"], *_ = shapes(np.random.default_rng(0).permutation(np.arange(1, 101)))
    told["options"] = {name: options_of({name: value}) for name, value in {"use_tf32": "0", "nonsense": "1"}.items()}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
