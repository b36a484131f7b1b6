"""Defines recurrent cells, and layers that run them over sequences."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, size_at, wrap
from amp_transpiler.paddle.initial_values import Uniform
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.nn.layer.container import LayerList
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BiRNN",
    "GRUCell",
    "LSTMCell",
    "RNNCellBase",
    "SimpleRNN",
    "SimpleRNNCell",
]


class RNNCellBase(Layer):
    """One step of a recurrent network; a subclass defines `forward(inputs, states) -> (outputs, states)`."""

    @property
    def state_shape(self) -> Any:
        """The shape of the states without the batch: a list, or a tuple of lists; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} has no state_shape: define it, or give initial states")

    def get_initial_states(
        self,
        batch_ref: Variable,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """Return states of one number, with the batch of `batch_ref`.

        Args:
            batch_ref: has the batch.
            shape: the shape of the states without the batch; the cell's unless given.
            dtype: must be None: the type is that of `batch_ref`, or float32 for whole numbers.
            init_value: the number.
            batch_dim_idx: where the batch is.

        Raises:
            OptionError: `dtype` is given.
        """
        if dtype is not None:
            raise OptionError("get_initial_states: leave dtype out: states have the type of the inputs")
        shapes = self.state_shape if shape is None else shape
        if isinstance(shapes, tuple) and shapes and not isinstance(shapes[0], int):
            return tuple(_filled(batch_ref, batch_dim_idx, [int(s) for s in sizes], init_value) for sizes in shapes)
        return _filled(batch_ref, batch_dim_idx, [int(s) for s in shapes], init_value)


def _filled(like: Variable, axis: int, sizes: Sequence[int], fill: float) -> Variable:
    b, element = builder_of(like), like.value.dtype
    dtype = element if element is not None and element.is_floating_point() else ir.DataType.FLOAT
    sizes = [size for size in sizes if size >= 0]
    batch = like.shape[axis]
    start = b.constant(fill, dtype)
    if batch >= 0:
        shape = b.constant([batch, *sizes])
    else:
        shape = b.concat([b.slice(b.op("Shape", [like.value]), [axis], [axis + 1], [0]), b.constant(sizes)], 0)
    value = b.op("Expand", [start, shape])
    size = None if like.value.shape is None else like.value.shape[axis]
    value.shape = ir.Shape([size, *sizes])
    return wrap(like, value)


class _Cell(RNNCellBase, abc.ABC):
    """A cell with weights [gates * hidden, inputs] and [gates * hidden, hidden] (`.w_0`, `.w_1`), and two biases.

    Attributes:
        gates: the number of gates.
        operator: ONNX's operator that runs the cell over a sequence.
        order: where ONNX has each of the cell's gates: ONNX's gate i is the cell's `order[i]`.
        states: how many states there are.
    """

    gates: ClassVar[int] = 1
    operator: ClassVar[str] = "RNN"
    order: ClassVar[tuple[int, ...]] = (0,)
    states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_ih_attr: Attr = None,
        weight_hh_attr: Attr = None,
        bias_ih_attr: Attr = None,
        bias_hh_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        if hidden_size < 1 or input_size < 1:
            raise OptionError(f"{type(self).__name__}: sizes must be positive, got {input_size} and {hidden_size}")
        self.input_size, self.hidden_size = input_size, hidden_size
        bound = 1.0 / math.sqrt(hidden_size)
        start, rows = Uniform(-bound, bound), self.gates * hidden_size
        self.weight_ih = self._weight([rows, input_size], weight_ih_attr, start)
        self.weight_hh = self._weight([rows, hidden_size], weight_hh_attr, start)
        self.bias_ih = self.create_parameter([rows], bias_ih_attr, is_bias=True, default_initializer=start)
        self.bias_hh = self.create_parameter([rows], bias_hh_attr, is_bias=True, default_initializer=start)

    @property
    def state_shape(self) -> Any:
        """[hidden], or a tuple of as many as there are states."""
        return [self.hidden_size] if self.states == 1 else tuple([self.hidden_size] for _ in range(self.states))

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of ONNX's operator, besides direction and size."""
        return {}

    def forward(self, inputs: Variable, states: Any = None) -> tuple[Variable, Any]:
        """Compute one step.

        Args:
            inputs: [batch, input size].
            states: [batch, hidden], or a tuple of them; zeros unless given.

        Returns:
            The output, and the states.
        """
        states = self.get_initial_states(inputs) if states is None else states
        hidden = states[0] if isinstance(states, (tuple, list)) else states
        from_input = _affine(inputs, self.weight_ih, self.bias_ih)
        from_hidden = _affine(hidden, self.weight_hh, self.bias_hh)
        return self._step(_parts(from_input, self.gates), _parts(from_hidden, self.gates), states)

    @abc.abstractmethod
    def _step(self, from_input: list[Variable], from_hidden: list[Variable], states: Any) -> tuple[Variable, Any]:
        """Return the output and the states of a step, of the gates' parts."""


def _affine(x: Variable, weight: Variable, bias: Variable | None) -> Variable:
    b = builder_of(x, weight)
    flips = {"transA": 0, "transB": 1}
    return wrap(x, b.op("Gemm", [x.value, weight.value, *([] if bias is None else [bias.value])], flips))


def _parts(x: Variable, count: int) -> list[Variable]:
    if count == 1:
        return [x]
    parts = builder_of(x).nodes("Split", [x.value], {"axis": 1, "num_outputs": count}, outputs=count)
    return [wrap(x, part) for part in parts]


class SimpleRNNCell(_Cell):
    """Computes `h = activation(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh)`.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        activation: `tanh` or `relu`.
        weight_ih_attr: of the input's weight; all start uniformly within `1 / sqrt(hidden_size)`.
        weight_hh_attr: of the state's weight.
        bias_ih_attr: of the input's bias; False for none.
        bias_hh_attr: of the state's bias; False for none.
        name: Paddle's, no effect.

    Raises:
        OptionError: there is no such activation.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        activation: str = "tanh",
        weight_ih_attr: Attr = None,
        weight_hh_attr: Attr = None,
        bias_ih_attr: Attr = None,
        bias_hh_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        if activation not in ("tanh", "relu"):
            raise OptionError(f"SimpleRNNCell: activation must be 'tanh' or 'relu', got {activation!r}")
        super().__init__(input_size, hidden_size, weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr, name)
        self.activation = activation

    def attributes(self) -> dict[str, Any]:
        """Return the activation as ONNX names it."""
        return {"activations": [{"tanh": "Tanh", "relu": "Relu"}[self.activation]]}

    def _step(self, from_input: list[Variable], from_hidden: list[Variable], states: Any) -> tuple[Variable, Any]:
        del states
        total = from_input[0] + from_hidden[0]
        hidden = functional.relu(total) if self.activation == "relu" else functional.tanh(total)
        return hidden, hidden


class LSTMCell(_Cell):
    """Long short-term memory; its gates are input, forget, candidate and output, its states (h, c).

    Args:
        input_size: features of the input.
        hidden_size: features of each state.
        weight_ih_attr: of the input's weight; all start uniformly within `1 / sqrt(hidden_size)`.
        weight_hh_attr: of the state's weight.
        bias_ih_attr: of the input's bias; False for none.
        bias_hh_attr: of the state's bias; False for none.
        proj_size: must be 0.
        name: Paddle's, no effect.

    Raises:
        OptionError: a projection is asked for.
    """

    gates, operator, order, states = 4, "LSTM", (0, 3, 1, 2), 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_ih_attr: Attr = None,
        weight_hh_attr: Attr = None,
        bias_ih_attr: Attr = None,
        bias_hh_attr: Attr = None,
        proj_size: int = 0,
        name: str | None = None,
    ) -> None:
        if proj_size:
            raise OptionError("LSTMCell: proj_size is not available: put a Linear behind it")
        super().__init__(input_size, hidden_size, weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr, name)

    def _step(self, from_input: list[Variable], from_hidden: list[Variable], states: Any) -> tuple[Variable, Any]:
        raw_in, raw_forget, raw_new, raw_out = (x + h for x, h in zip(from_input, from_hidden, strict=True))
        remembered = functional.sigmoid(raw_forget) * states[1]
        cell = remembered + functional.sigmoid(raw_in) * functional.tanh(raw_new)
        hidden = functional.sigmoid(raw_out) * functional.tanh(cell)
        return hidden, (hidden, cell)


class GRUCell(_Cell):
    """A gated recurrent unit; its gates are reset, update and candidate: `h = z * h + (1 - z) * candidate`.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        weight_ih_attr: of the input's weight; all start uniformly within `1 / sqrt(hidden_size)`.
        weight_hh_attr: of the state's weight.
        bias_ih_attr: of the input's bias; False for none.
        bias_hh_attr: of the state's bias; False for none.
        name: Paddle's, no effect.
    """

    gates, operator, order = 3, "GRU", (1, 0, 2)

    def attributes(self) -> dict[str, Any]:
        """Return that the reset gate acts behind the product with the state."""
        return {"linear_before_reset": 1}

    def _step(self, from_input: list[Variable], from_hidden: list[Variable], states: Any) -> tuple[Variable, Any]:
        hidden = states[0] if isinstance(states, (tuple, list)) else states
        reset = functional.sigmoid(from_input[0] + from_hidden[0])
        update = functional.sigmoid(from_input[1] + from_hidden[1])
        candidate = functional.tanh(from_input[2] + reset * from_hidden[2])
        new = (hidden - candidate) * update + candidate
        return new, new


class RNN(Layer):
    """Runs a cell over a sequence.

    `SimpleRNNCell`, `LSTMCell` and `GRUCell` become one operator; other cells are called once for each step, so that
    the length must be known.

    Args:
        cell: the cell.
        is_reverse: whether it runs from the end.
        time_major: whether sequences are [length, batch, ...] instead of [batch, length, ...].
    """

    def __init__(self, cell: RNNCellBase, is_reverse: bool = False, time_major: bool = False) -> None:
        super().__init__()
        self.cell = cell
        self.is_reverse, self.time_major = is_reverse, time_major

    def forward(
        self,
        inputs: Variable,
        initial_states: Any = None,
        sequence_length: Variable | None = None,
        **kwargs: Any,
    ) -> tuple[Variable, Any]:
        """Run the cell.

        Args:
            inputs: [batch, length, features], or with the length first.
            initial_states: the cell's states before the first step; zeros unless given.
            sequence_length: [batch], the steps of each sequence; outputs behind them are 0, and the final states are
                those of its last step.
            kwargs: given to the cell at every step.

        Returns:
            The outputs of all steps, and the final states.
        """
        if isinstance(self.cell, _Cell) and type(self.cell).forward is _Cell.forward and not kwargs:
            return _run([self.cell], self.is_reverse, self.time_major, inputs, [initial_states], sequence_length)
        return self._unrolled(inputs, initial_states, sequence_length, kwargs)

    def _unrolled(
        self, inputs: Variable, states: Any, lengths: Variable | None, kwargs: dict[str, Any]
    ) -> tuple[Variable, Any]:
        b, time = builder_of(inputs), 0 if self.time_major else 1
        count = size_at(inputs, time, "RNN of a cell of one's own")
        states = self.cell.get_initial_states(inputs, batch_dim_idx=1 - time) if states is None else states
        outputs: list[ir.Value] = [inputs.value] * count
        for step in reversed(range(count)) if self.is_reverse else range(count):
            index = b.constant(step)
            here = wrap(inputs, b.op("Gather", [inputs.value, index], {"axis": time}))
            output, new = self.cell(here, states, **kwargs)
            if lengths is not None:
                running = b.unsqueeze(b.compare("Greater", b.cast(lengths.value, ir.DataType.INT64), index), [1])
                output = wrap(inputs, b.where(running, output.value, 0.0))
                new = _mapped(lambda n, old, r=running: wrap(n, b.where(r, n.value, old.value)), new, states)
            states = new
            outputs[step] = b.unsqueeze(output.value, [time])
        return wrap(inputs, b.concat(outputs, time)), states


def _mapped(function: Any, new: Any, old: Any) -> Any:
    """Return `function` of two equal structures, in their structure."""
    if isinstance(new, (tuple, list)):
        return type(new)(_mapped(function, *pair) for pair in zip(new, old, strict=True))
    return function(new, old)


class BiRNN(Layer):
    """Runs a cell over a sequence from its beginning, and another from its end.

    Args:
        cell_fw: the cell that runs from the beginning.
        cell_bw: the cell that runs from the end.
        time_major: whether sequences are [length, batch, ...].
    """

    def __init__(self, cell_fw: RNNCellBase, cell_bw: RNNCellBase, time_major: bool = False) -> None:
        super().__init__()
        self.cell_fw, self.cell_bw, self.time_major = cell_fw, cell_bw, time_major

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Variable | None = None, **kwargs: Any
    ) -> tuple[Variable, Any]:
        """Run both cells; see `RNN.forward`.

        Returns:
            The outputs of both, joined along the features, and a pair of the final states of both.
        """
        starts = [None, None] if initial_states is None else list(initial_states)
        results = []
        for cell, start, reverse in zip((self.cell_fw, self.cell_bw), starts, (False, True), strict=True):
            results.append(RNN(cell, reverse, self.time_major)(inputs, start, sequence_length, **kwargs))
        (first, first_states), (second, second_states) = results
        joined = builder_of(first).concat([first.value, second.value], 2)
        return wrap(first, joined), (first_states, second_states)


def _run(
    cells: Sequence[_Cell],
    reverse: bool,
    time_major: bool,
    inputs: Variable,
    starts: Sequence[Any],
    lengths: Variable | None,
) -> tuple[Variable, Any]:
    """Append ONNX's operator for one cell, or for two in both directions.

    Returns:
        The outputs, and the final states of the cell; of two, a list of both.
    """
    cell = cells[0]
    if inputs.ndim != 3:
        raise InputError(f"{type(cell).__name__}: a sequence has three dimensions, got {inputs!r}")
    if inputs.shape[2] not in (-1, cell.input_size):
        raise InputError(f"{type(cell).__name__} was made for {cell.input_size} features, got {inputs!r}")
    b = builder_of(inputs, cell.weight_ih, lengths)
    x = inputs.value if time_major else b.transpose(inputs.value, [1, 0, 2])
    operands: list[ir.Value | None] = [x, *_weights(b, cells)]
    operands.append(None if lengths is None else b.cast(lengths.value, ir.DataType.INT32))
    if any(start is not None for start in starts):
        batch_axis = 1 if time_major else 0
        initial = [
            member.get_initial_states(inputs, batch_dim_idx=batch_axis) if start is None else start
            for member, start in zip(cells, starts, strict=True)
        ]
        for number in range(cell.states):
            rows = [start[number] if isinstance(start, (tuple, list)) else start for start in initial]
            operands.append(b.concat([b.unsqueeze(row.value, [0]) for row in rows], 0))
    while operands[-1] is None:
        operands.pop()
    one_way = "reverse" if reverse else "forward"
    direction = "bidirectional" if len(cells) == 2 else one_way
    attributes = {"hidden_size": cell.hidden_size, "direction": direction, **cell.attributes()}
    if len(cells) == 2 and "activations" in attributes:
        attributes["activations"] = [*attributes["activations"], *cells[1].attributes()["activations"]]
    results = b.nodes(cell.operator, operands, attributes, outputs=1 + cell.states)
    y = b.transpose(results[0], [0, 2, 1, 3] if time_major else [2, 0, 1, 3])
    outputs = b.reshape(y, [0, 0, len(cells) * cell.hidden_size])
    finals = [
        [wrap(inputs, b.op("Gather", [h, b.constant(n)], {"axis": 0})) for h in results[1:]] for n in range(len(cells))
    ]
    states = [tuple(final) if cell.states > 1 else final[0] for final in finals]
    return wrap(inputs, outputs), states[0] if len(cells) == 1 else states


def _weights(b: GraphBuilder, cells: Sequence[_Cell]) -> list[ir.Value | None]:
    """Return weights and biases as ONNX has them: [directions, gates * hidden, ...], gates in its own order."""
    stacks = [[_reordered(b, cell, parameter) for cell in cells] for parameter in ("weight_ih", "weight_hh")]
    weights: list[ir.Value | None] = [b.concat([b.unsqueeze(row, [0]) for row in stack], 0) for stack in stacks]
    if all(cell.bias_ih is None and cell.bias_hh is None for cell in cells):
        return [*weights, None]
    rows = [b.concat([_bias(b, cell, name) for name in ("bias_ih", "bias_hh")], 0) for cell in cells]
    return [*weights, b.concat([b.unsqueeze(row, [0]) for row in rows], 0)]


def _bias(b: GraphBuilder, cell: _Cell, name: str) -> ir.Value:
    if getattr(cell, name) is None:
        return b.constant([0.0] * (cell.gates * cell.hidden_size), cell.weight_ih.value.dtype)
    return _reordered(b, cell, name)


def _reordered(b: GraphBuilder, cell: _Cell, name: str) -> ir.Value:
    """Return a parameter with its gates in ONNX's order."""
    value: ir.Value = getattr(cell, name).value
    if cell.gates == 1:
        return value
    parts = b.nodes("Split", [value], {"axis": 0, "num_outputs": cell.gates}, outputs=cell.gates)
    return b.concat([parts[gate] for gate in cell.order], 0)


class _Recurrent(LayerList):
    """Runs several layers of a recurrent network, each in one direction or in both.

    Attributes:
        cell_type: the cell.

    Args:
        input_size: features of the input.
        hidden_size: features of each state.
        num_layers: how many layers there are.
        direction: `forward`, or `bidirect` (`bidirectional`).
        time_major: whether sequences are [length, batch, ...] instead of [batch, length, ...].
        dropout: the probability of dropout between layers, in training.
        weight_ih_attr: of the inputs' weights.
        weight_hh_attr: of the states' weights.
        bias_ih_attr: of the inputs' biases; False for none.
        bias_hh_attr: of the states' biases; False for none.
        cell_settings: further settings of the cells.

    Raises:
        OptionError: there is no such direction.
    """

    cell_type: ClassVar[type[_Cell]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        weight_ih_attr: Attr = None,
        weight_hh_attr: Attr = None,
        bias_ih_attr: Attr = None,
        bias_hh_attr: Attr = None,
        **cell_settings: Any,
    ) -> None:
        super().__init__()
        if direction not in ("forward", "bidirect", "bidirectional"):
            raise OptionError(f"{type(self).__name__}: direction must be 'forward' or 'bidirect', got {direction!r}")
        self.num_directions = 1 if direction == "forward" else 2
        self.num_layers, self.time_major, self.dropout = num_layers, time_major, dropout
        self.input_size, self.hidden_size = input_size, hidden_size
        attributes: dict[str, Any] = {
            "weight_ih_attr": weight_ih_attr,
            "weight_hh_attr": weight_hh_attr,
            "bias_ih_attr": bias_ih_attr,
            "bias_hh_attr": bias_hh_attr,
            **cell_settings,
        }
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size * self.num_directions
            cells = [self.cell_type(size, hidden_size, **attributes) for _ in range(self.num_directions)]
            self.append(RNN(cells[0], False, time_major) if len(cells) == 1 else BiRNN(cells[0], cells[1], time_major))
            for cell, suffix in zip(cells, ("", "_reverse"), strict=False):
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    setattr(self, f"{name}_l{layer}{suffix}", getattr(cell, name))

    @property
    def state_components(self) -> int:
        """How many states a cell has."""
        return self.cell_type.states

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Variable | None = None
    ) -> tuple[Variable, Any]:
        """Run all layers.

        Args:
            inputs: [batch, length, features], or with the length first.
            initial_states: [layers * directions, batch, hidden], or a tuple of two for LSTM; zeros unless given.
            sequence_length: [batch], the steps of each sequence.

        Returns:
            [batch, length, directions * hidden], and the final states in the form of the initial ones.
        """
        b, count = builder_of(inputs), self.num_directions
        initial = None if initial_states is None else _as_list(initial_states)
        finals: list[list[ir.Value]] = [[] for _ in range(self.state_components)]
        x = inputs
        for number, layer in enumerate(self):
            cells: list[Any] = [layer.cell] if count == 1 else [layer.cell_fw, layer.cell_bw]
            starts = [None if initial is None else self._start(initial, number * count + n) for n in range(count)]
            x, states = _run(cells, False, self.time_major, x, starts, sequence_length)
            for final in [states] if count == 1 else states:
                for component, state in zip(finals, _as_list(final), strict=True):
                    component.append(b.unsqueeze(state.value, [0]))
            if self.dropout and number < self.num_layers - 1:
                x = functional.dropout(x, self.dropout, training=self.training)
        stacked = [wrap(inputs, b.concat(component, 0)) for component in finals]
        return x, tuple(stacked) if len(stacked) > 1 else stacked[0]

    def _start(self, states: list[Variable], row: int) -> Any:
        """Return one cell's initial states."""
        b = builder_of(*states)
        rows = [wrap(state, b.op("Gather", [state.value, b.constant(row)], {"axis": 0})) for state in states]
        return tuple(rows) if len(rows) > 1 else rows[0]

    def flatten_parameters(self) -> None:
        """Do nothing: Paddle's way to lay parameters out for cuDNN."""


def _as_list(states: Any) -> list[Variable]:
    return list(states) if isinstance(states, (tuple, list)) else [states]


class SimpleRNN(_Recurrent):
    """A recurrent network of `SimpleRNNCell`; `activation` comes behind `dropout`. See `LSTM`'s base."""

    cell_type = SimpleRNNCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        activation: str = "tanh",
        weight_ih_attr: Attr = None,
        weight_hh_attr: Attr = None,
        bias_ih_attr: Attr = None,
        bias_hh_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        del name
        attributes = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        shape = (input_size, hidden_size, num_layers, direction, time_major, dropout)
        super().__init__(*shape, *attributes, activation=activation)


class LSTM(_Recurrent):
    """A recurrent network of `LSTMCell`; its states are (h, c). The arguments are described at its base."""

    cell_type = LSTMCell


class GRU(_Recurrent):
    """A recurrent network of `GRUCell`. The arguments are described at its base."""

    cell_type = GRUCell


check_arguments(globals(), __all__)
