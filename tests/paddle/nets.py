"""Small programs that the tests of Paddle's behaviours train."""

import numpy as np

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable

CPU = amp.CPUPlace()


def nodes(program, op_type=None, role=None):
    """List nodes of every scope, or those of one operator, or of one part of a training step."""
    return [
        node
        for node in all_nodes(program.model)
        if op_type in (None, node.op_type) and (role is None or role_of(node) == role)
    ]


def reads(node):
    """Element types that a node takes, '-' for an input left out."""
    return ["-" if value is None else value.dtype.name for value in node.inputs]


def makes(node):
    """Element types that a node gives."""
    return [value.dtype.name for value in node.outputs]


def works_in(node):
    """Element type of a node's first input."""
    return reads(node)[0]


class Net:
    """A decorated program, its startup program and its values."""

    def __init__(self, main, startup, loss, optimizer):
        self.main, self.startup, self.loss, self.optimizer = main, startup, loss, optimizer
        self.scope = static.Scope()
        self.executor = static.Executor(CPU)

    def start(self, **amp_init):
        """Make the initial values and round the low ones."""
        self.executor.run(self.startup, scope=self.scope)
        if hasattr(self.optimizer, "amp_init"):
            self.optimizer.amp_init(CPU, self.scope, **amp_init)
        return self

    def step(self, feed, fetch=None):
        """Run the program once; returns what is fetched, the loss unless said otherwise."""
        fetch = [self.loss] if fetch is None else fetch
        return self.executor.run(self.main, feed=feed, fetch_list=fetch, scope=self.scope)

    def state(self):
        """Copies of everything in the scope."""
        return {name: np.array(value) for name, value in self.scope.items()}


class OneLayer(Net):
    """`loss = factor * mean((x @ w - 1)^2)`, the product inside fp16_guard; w starts at 0.5, 4 x 4."""

    weight = "w"
    outputs = 4

    @property
    def master(self):
        return self.optimizer.master_weights[self.weight]

    @property
    def scale_name(self):
        return self.optimizer.get_loss_scaling().name

    def counter(self, key):
        [name] = [name for name in self.main.persistables if key in name]
        return name

    @property
    def has_counters(self):
        return any("num_good_steps" in name for name in self.main.persistables)

    @property
    def good_name(self):
        return self.counter("num_good_steps")

    @property
    def bad_name(self):
        return self.counter("num_bad_steps")

    def scaling_names(self):
        return {self.scale_name, self.good_name, self.bad_name}

    def run(self, x, fetch=None, factor=1.0):
        """One step on a row of `x`, a number."""
        feed = {"x": np.full((1, 4), x, np.float32), "factor": np.array([factor], np.float32)}
        return self.step(feed, fetch)


def one_layer(optimizer, *, start=True, **decorated):
    """A `OneLayer` whose optimizer is decorated with `decorated`."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x, factor = static.data("x", [None, 4]), static.data("factor", [1])
        w = create_persistable(Persistable("w", "parameter"), (4, OneLayer.outputs), 0.5)
        with amp.fp16_guard():
            product = x @ w
        off = product - 1.0
        builder = main.builder()
        loss = static.Variable(main, builder.mean((off * off).value, keepdims=False).name) * factor
        wrapped = static.amp.decorate(optimizer, **decorated)
        wrapped.minimize(loss, startup)
    net = OneLayer(main, startup, loss, wrapped)
    return net.start() if start else net
