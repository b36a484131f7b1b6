"""Gradients of LSTM, GRU and RNN. The letters are those of ONNX's definitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr, concat
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.recurrence import Way, part, stacked, ways_of
from amp_transpiler.autodiff.scanning import Exprs, scan

_Parts = dict[str, Expr]  # gradients of one direction: x, w, r, wb, rb, h, c, p


@gradient("RNN")
def rnn(gs: Sequence[Expr | None], *_inputs: Expr | None, node: NodeGradient) -> Gradients:
    """`H = f(X W' + H R' + b)`."""
    return _joined(node, [_rnn_way(way) for way in ways_of(node, gs, ["Tanh"])])


def _rnn_way(way: Way) -> _Parts:
    _, slope = way.activations[0].with_slope(_sum_of_products(way))
    low = way.x.dtype

    def step(dh: Expr, _: Exprs, factors: Exprs) -> tuple[list[Expr], list[Expr]]:
        d = (dh * factors[0]).cast(low)
        return [(d @ way.r).wide()], [d]

    (first,), (d,) = way.back(step, [way.masked(slope)])
    return _weights(way, d, d) | {"h": first}


@gradient("GRU")
def gru(
    gs: Sequence[Expr | None], *_inputs: Expr | None, node: NodeGradient, linear_before_reset: int = 0
) -> Gradients:
    """`H = (1 - z) n + z H`, with `n = g(X W' + (r H) R' + b)`, or `g(X W' + r (H R' + b))` if linear before reset."""
    one_way = _linear_gru_way if linear_before_reset else _gru_way
    return _joined(node, [one_way(way) for way in ways_of(node, gs, ["Sigmoid", "Tanh"])])


def _linear_gru_way(way: Way) -> _Parts:
    f, g = way.activations
    xz, xr, xn = way.gates(_product(way.x, way.w, way.bias and way.bias[0]), 3)
    hz, hr, u = way.gates(_product(way.before, way.r, way.bias and way.bias[1]), 3)
    (z, z_slope), (r, r_slope) = f.with_slope(xz + hz), f.with_slope(xr + hr)
    n, n_slope = g.with_slope(xn + r * u)
    to_z, to_n = (way.before.wide() - n) * z_slope, way.masked((1 - z) * n_slope)
    to_state = concat([way.masked(to_z), to_n * u * r_slope, to_n * r], 2)

    def step(dh: Expr, _: Exprs, factors: Exprs) -> tuple[list[Expr], list[Expr]]:
        slopes, keep = factors
        d = (concat([dh, dh, dh], 1) * slopes).cast(way.x.dtype)
        return [(d @ way.r).wide() + dh * keep], [d, dh]

    (first,), (d, dh) = way.back(step, [to_state, way.masked(z, 1.0)], keeps=False)
    dz, dr, _ = way.gates(d, 3)
    return _weights(way, concat([dz, dr, (dh * to_n).cast(d.dtype)], 2), d) | {"h": first}


def _gru_way(way: Way) -> _Parts:
    f, g = way.activations
    h, low = way.hidden, way.x.dtype
    r_gates, r_new = way.r.slice([0], [2 * h], [0]), way.r.slice([2 * h], [3 * h], [0])
    b = None if way.bias is None else way.bias[1]
    xz, xr, xn = way.gates(_product(way.x, way.w, way.bias and way.bias[0]), 3)
    hz, hr = way.gates(_product(way.before, r_gates, b and b.slice([0], [2 * h], [0])), 2)
    (z, z_slope), (r, r_slope) = f.with_slope(xz + hz), f.with_slope(xr + hr)
    before = way.before.wide()
    reset = (r * before).cast(low)
    n, n_slope = g.with_slope(xn + _product(reset, r_new, b and b.slice([2 * h], [3 * h], [0])))
    to_z, to_n = way.masked((before - n) * z_slope), way.masked((1 - z) * n_slope)

    def step(dh: Expr, _: Exprs, factors: Exprs) -> tuple[list[Expr], list[Expr]]:
        to_z, to_n, to_r, r, keep = factors
        dn = (dh * to_n).cast(low)
        q = (dn @ r_new).wide()
        d = concat([dh * to_z, q * to_r], 1).cast(low)
        return [dh * keep + q * r + (d @ r_gates).wide()], [d, dn]

    (first,), (d, dn) = way.back(step, [to_z, to_n, before * r_slope, r, way.masked(z, 1.0)], keeps=False)
    whole = concat([d, dn], 2)
    parts = _weights(way, whole, whole) | {"h": first}
    parts["r"] = concat([way.by_weights(d, way.before), way.by_weights(dn, reset)], 0)
    return parts


@gradient("LSTM")
def lstm(gs: Sequence[Expr | None], *_inputs: Expr | None, node: NodeGradient, input_forget: int = 0) -> Gradients:
    """`C = f C + i g`, `H = o h(C)`; with peepholes `i` and `f` read the cell before the step and `o` that after it."""
    ways = ways_of(node, gs, ["Sigmoid", "Tanh", "Tanh"])
    cells = [way.first.zeros_like() if (c := node.optional(6)) is None else part(c, way.index) for way in ways]
    peepholes = [None if (p := node.optional(7)) is None else part(p, way.index) for way in ways]
    pairs = zip(ways, cells, peepholes, strict=True)
    return _joined(node, [_lstm_way(way, c.wide(), p, bool(input_forget)) for way, c, p in pairs])


def _lstm_way(way: Way, first_cell: Expr, peephole: Expr | None, coupled: bool) -> _Parts:
    f_act, g_act, _ = way.activations
    xi, xo, xf, xg = way.gates(_sum_of_products(way), 4)
    g, g_slope = g_act.with_slope(xg)
    peep_i, peep_o, peep_f = (None,) * 3 if peephole is None else _thirds(peephole.wide())

    def gates(xi: Expr, xf: Expr, cell: Expr | None) -> tuple[Expr, Expr]:
        i = f_act.value(_plus(xi, peep_i, cell))
        return i, 1 - i if coupled else f_act.value(_plus(xf, peep_f, cell))

    def step_with_peepholes(states: Exprs, items: Exprs) -> tuple[Exprs, Exprs]:
        i, f = gates(items[0], items[1], states[0])
        following = states[0] * f + i * items[2]
        return [following if way.inside is None else items[3].where(following, states[0])], [states[0]]

    def step(states: Exprs, items: Exprs) -> tuple[Exprs, Exprs]:
        return [states[0] * items[0] + items[1]], [states[0]]

    if peephole is not None:
        items = [xi, xf, g] + ([] if way.inside is None else [way.inside])
        _, (cell,) = scan(step_with_peepholes, [first_cell], items, backwards=way.backwards)
        i, f = gates(xi, xf, cell)
    else:
        i, f = gates(xi, xf, None)
        factors = [way.masked(f, 1.0), way.masked(i * g)]
        _, (cell,) = scan(step, [first_cell], factors, backwards=way.backwards)
    return _lstm_back(way, cell, (i, f, g, g_slope), (xi, xo, xf), (peep_i, peep_o, peep_f), coupled)


def _lstm_back(
    way: Way,
    cell: Expr,
    gates: tuple[Expr, ...],
    sums: tuple[Expr, ...],
    peepholes: tuple[Expr | None, ...],
    coupled: bool,
) -> _Parts:
    """Go back through an LSTM.

    Args:
        way: the direction.
        cell: the cell before each step.
        gates: i, f, g and the slope of g.
        sums: what i, o and f are functions of, but for peepholes.
        peepholes: of i, o and f; None without.
        coupled: whether f is 1 - i.
    """
    f_act, _, h_act = way.activations
    (i, f, g, g_slope), (xi, xo, xf), (peep_i, peep_o, peep_f) = gates, sums, peepholes
    after = cell * f + i * g
    h, h_slope = dataclasses.replace(h_act, clip=0.0).with_slope(after)  # only the sums are clipped
    o, o_slope = f_act.with_slope(_plus(xo, peep_o, after))
    i_slope = f_act.with_slope(_plus(xi, peep_i, cell))[1]
    to_o, to_g = h * o_slope, i * g_slope
    to_i = (g - cell if coupled else g) * i_slope
    to_f = f.zeros_like() if coupled else cell * f_act.with_slope(_plus(xf, peep_f, cell))[1]
    to_c = _plus(o * h_slope, peep_o, to_o)
    keep = _plus(_plus(f, peep_i, to_i), peep_f, to_f)
    slopes = way.masked(concat([to_i, to_o, to_f, to_g], 2))

    def step(dh: Expr, states: Exprs, factors: Exprs) -> tuple[list[Expr], list[Expr]]:
        to_c, slopes, keep = factors
        dc = states[0] + dh * to_c
        d = (concat([dc, dh, dc, dc], 1) * slopes).cast(way.x.dtype)
        return [(d @ way.r).wide(), dc * keep], [d]

    (first, first_cell), (d,) = way.back(step, [way.masked(to_c), slopes, way.masked(keep, 1.0)], cell=True)
    parts = _weights(way, d, d) | {"h": first, "c": first_cell}
    if peep_i is not None:
        di, do, df, _ = way.gates(d.wide(), 4)
        parts["p"] = concat([(x * y).sum([0, 1], keepdims=False) for x, y in ((di, cell), (do, after), (df, cell))], 0)
    return parts


def _plus(x: Expr, factor: Expr | None, y: Expr | None) -> Expr:
    """`x + factor y`, without the second term where it has no factor."""
    return x if factor is None or y is None else x + factor * y


def _thirds(x: Expr) -> tuple[Expr, ...]:
    size = x.sizes[0] // 3
    return tuple(x.slice([i * size], [(i + 1) * size], [0]) for i in range(3))


def _product(data: Expr, weight: Expr, bias: Expr | None) -> Expr:
    """`data weight' + bias`, in float32 after the product."""
    product = (data @ weight.T).wide()
    return product if bias is None else product + bias.wide()


def _sum_of_products(way: Way) -> Expr:
    """The values that the gates are computed from."""
    of_data = _product(way.x, way.w, None if way.bias is None else way.bias[0].wide() + way.bias[1].wide())
    return of_data + _product(way.before, way.r, None)


def _weights(way: Way, d: Expr, of_state: Expr) -> _Parts:
    """Return the gradients of data, weights and biases.

    Args:
        way: the direction.
        d: the gradient of what the data's product is added to, [T, B, G H].
        of_state: the same of the state's product.
    """
    parts = {"x": d @ way.w, "w": way.by_weights(d, way.x), "r": way.by_weights(of_state, way.before)}
    if way.bias is not None:
        of_data = d.sum([0, 1], keepdims=False)
        parts["b"] = concat([of_data, of_data if of_state is d else of_state.sum([0, 1], keepdims=False)], 0)
    return parts


def _joined(node: NodeGradient, ways: Sequence[_Parts]) -> Gradients:
    """Return the gradients of the node's inputs from those of its directions."""
    x = ways[0]["x"] if len(ways) == 1 else ways[0]["x"] + ways[1]["x"]

    def of(name: str) -> Expr | None:
        return stacked([way.get(name) for way in ways])

    gradients = [x.with_shape_of(node.input(0)), of("w"), of("r"), of("b"), None, of("h"), of("c"), of("p")]
    return gradients[: len(node.inputs)]
