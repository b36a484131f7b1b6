"""What a rank does in the tests: every scenario named on the command line; results go to a folder, one file a rank.

worker.py FOLDER SCENARIO...
"""

import logging
import pathlib
import pickle
import sys

import numpy as np

from amp_transpiler import distributed
from amp_transpiler.errors import AmpError
from tests.distributed import networks

SCALED = {"init_loss_scaling": 2.0**12, "incr_every_n_steps": 2}
# name -> network, arguments of the executor
RUNS = {
    "fp32": (networks.perceptron, {}, {}),
    "clipped": (networks.perceptron, {"optimizer": "momentum"}, {"bucket_bytes": 100}),
    "lamb": (networks.perceptron, {"optimizer": "lamb"}, {"bucket_bytes": 0}),
    "O1": (networks.perceptron, {"level": "O1", **SCALED}, {}),
    "O2": (networks.perceptron, {"level": "O2", **SCALED}, {}),
    "O2 bfloat16": (networks.perceptron, {"level": "O2", "dtype": "bfloat16"}, {}),
    "accumulated": (networks.perceptron, {}, {"accumulate_steps": 2}),
    "accumulated O2": (networks.perceptron, {"level": "O2", **SCALED}, {"accumulate_steps": 2}),
    "synchronous": (networks.convnet, {}, {"sync_batch_norm": True}),
    "synchronous O2": (networks.convnet, {"level": "O2", **SCALED}, {"sync_batch_norm": True}),
    "apart": (networks.convnet, {}, {}),
    "grouped": (networks.equal_layers, {}, {}),
    "grouped sharded": (networks.equal_layers, {}, {"shard_optimizer": True}),
    "sharded": (networks.perceptron, {}, {"shard_optimizer": True}),
    "sharded O2": (networks.perceptron, {"level": "O2", **SCALED}, {"shard_optimizer": True}),
}
STEPS = 3


def train(name, folder):
    build, network, options = RUNS[name]
    net, exe = start(build, network, options)
    losses = [step(net, exe, feed) for feed in networks.batches(net, STEPS)]
    whole = folder / f"{name}.safetensors"
    exe.save(net.main, whole, net.scope)
    return {"losses": losses, "state": net.state()}


def start(build, network, options, seed=None):
    net = build(**network)
    if seed is not None:
        net.main.random_seed = net.startup.random_seed = seed
    exe = distributed.DataParallelExecutor(**options)
    return net.start(exe), exe


def step(net, exe, feed, fetch=None):
    part = networks.share(feed, distributed.get_rank(), distributed.get_world_size())
    fetched = exe.run(net.main, part, fetch or [net.loss], scope=net.scope)
    return fetched if fetch else float(np.asarray(fetched[0], np.float32).mean())


SCENARIOS = dict.fromkeys(RUNS, train)


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


@scenario
def overflow(name, folder):
    """The second step's batch is infinite on rank 1 alone."""
    net, exe = start(networks.perceptron, {"level": "O2", **SCALED, "decr_every_n_nan_or_inf": 1}, {})
    flag, scale, states = net.optimizer.found_inf.name, net.optimizer.get_loss_scaling().name, []
    for index, feed in enumerate(networks.batches(net, 3)):
        if index == 1:
            feed["x"][-1] = np.inf
        values = step(net, exe, feed, [flag, scale])
        states.append((bool(values[0].any()), float(values[1].item()), net.state()))
    return states


@scenario
def first_values(name, folder):
    """Each rank draws other initial values."""
    net, exe = start(networks.perceptron, {}, {}, seed=distributed.get_rank() + 1)
    step(net, exe, next(networks.batches(net, 1)))
    return net.state()


@scenario
def masks(name, folder):
    """Dropout on equal feeds."""
    net, exe = start(networks.equal_layers, {"dropout": 0.5, "optimizer": "sgd"}, {"accumulate_steps": 2})
    feed = {"x": np.ones((8, 6), np.float32), "label": np.ones((8, 1), np.int64)}
    dropped = next(n.outputs[0].name for n in net.main.model.graph if n.op_type == "Dropout")
    before = net.state()
    values = [exe.run(net.main, feed, [dropped], scope=net.scope)[0] for _ in range(2)]
    return {"values": [value == 0 for value in values], "before": before, "after": net.state()}


@scenario
def resumed(name, folder):
    """Two steps, a checkpoint, two steps; and the two again from the checkpoint, by another executor."""
    network = {"level": "O2", **SCALED, "dropout": 0.2}
    result = {}
    for sharded in (False, True):
        net, exe = start(networks.equal_layers, network, {"shard_optimizer": sharded})
        feeds = list(networks.batches(net, 4))
        path = folder / f"resumed_{sharded}"
        for feed in feeds[:2]:
            step(net, exe, feed)
        exe.save(net.main, path, net.scope)
        for feed in feeds[2:]:
            step(net, exe, feed)
        exe.save(net.main, folder / f"straight_{sharded}", net.scope)
        again, exe = start(networks.equal_layers, network, {"shard_optimizer": sharded}, seed=7)
        exe.load(again.main, path, again.scope)
        for feed in feeds[2:]:
            step(again, exe, feed)
        exe.save(again.main, folder / f"again_{sharded}", again.scope)
        result[sharded] = net.state(), again.state()
    return result


@scenario
def errors(name, folder):
    """What is refused, on every rank alike."""
    messages = {}
    net, exe = start(networks.perceptron, {"optimizer": ["sgd", "adamw"][distributed.get_rank()]}, {})
    messages["unequal"] = raised(lambda: step(net, exe, next(networks.batches(net, 1))))
    net, exe = start(networks.perceptron, {}, {})
    messages["missing file"] = raised(lambda: exe.load(net.main, folder / "nothing", net.scope))
    messages["not finite"] = raised(
        lambda: exe.run(
            net.main, networks.share(next(networks.batches(net, 1)), 0, 2), [], net.scope, not_finite="stop"
        )
    )
    messages["place"] = raised(lambda: distributed.DataParallelExecutor(place="elsewhere"))
    net, exe = start(networks.perceptron, {}, {})
    feed = next(networks.batches(net, 1))
    part = networks.share(feed, distributed.get_rank(), 2)
    step(net, exe, feed)
    before = net.state()
    short = {key: array[: 3 - distributed.get_rank()] for key, array in part.items()}
    messages["batches"] = raised(lambda: exe.run(net.main, short, [net.loss], scope=net.scope))
    messages["kept"] = all(array.tobytes() == before[key].tobytes() for key, array in net.state().items())
    step(net, exe, feed)  # the ranks are still together
    messages["goes on"] = not all(array.tobytes() == before[key].tobytes() for key, array in net.state().items())
    messages["mean"] = distributed.mean(float(distributed.get_rank()))
    return messages


def raised(act):
    try:
        act()
    except AmpError as error:
        return type(error).__name__, str(error)
    return None


def main(folder, names):
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    env = distributed.init_parallel_env(timeout=30.0)
    results = {name: SCENARIOS[name](name, folder) for name in names}
    (folder / f"rank{env.rank}.pickle").write_bytes(pickle.dumps(results))
    distributed.barrier()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
