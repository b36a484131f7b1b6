"""Models that resemble a training step, and are none: each has an output of an input's shape that is made from it."""

from __future__ import annotations

import dataclasses

import onnx

__all__ = ["NOT_TRAINING", "Lookalike"]


@dataclasses.dataclass(frozen=True, slots=True)
class Lookalike:
    """A model that only resembles a training step.

    Attributes:
        name: in test ids.
        text: the graph, in ONNX's text format.
        why: what tells it from training.
    """

    name: str
    text: str
    why: str

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> agraph {self.text}')
        onnx.checker.check_model(proto, full_check=True)
        return proto


_ROWS = """
rnn | a hidden state is no weight: the recurrent product reads it as data
(float[4,8] x, float[4,16] h, float[8,16] wx, float[16,16] wh, float[16] b) => (float[4,16] y) {
  u = MatMul(x, wx)  r = MatMul(h, wh)  s = Add(u, r)  z = Add(s, b)  y = Tanh(z) }

rnn_leaky | h + rate * (f(h) - h): an update by a product that reads it as data
(float[4,8] x, float[4,16] h) => (float[4,16] y)
<float[8,16] wx = {WX}, float[16,16] wh = {WH}, float rate = {0.1}> {
  u = MatMul(x, wx)  r = MatMul(h, wh)  s = Add(u, r)  z = Tanh(s)  d = Sub(z, h)  e = Mul(rate, d)  y = Add(h, e) }

gru | the gates mix old and new state
(float[4,8] x, float[4,16] h, float[8,16] wz, float[8,16] wr, float[8,16] wn, float[16,16] uz, float[16,16] ur,
 float[16,16] un) => (float[4,16] y) <float one = {1.0}> {
  xz = MatMul(x, wz)  hz = MatMul(h, uz)  az = Add(xz, hz)  z = Sigmoid(az)
  xr = MatMul(x, wr)  hr = MatMul(h, ur)  ar = Add(xr, hr)  r = Sigmoid(ar)
  rh = Mul(r, h)  xn = MatMul(x, wn)  hn = MatMul(rh, un)  an = Add(xn, hn)  n = Tanh(an)
  k = Sub(one, z)  kn = Mul(k, n)  zh = Mul(z, h)  y = Add(kn, zh) }

lstm | a cell state is what the gates made, not a weight
(float[4,8] x, float[4,16] h, float[4,16] c, float[8,64] w, float[16,64] u) => (float[4,16] h_new, float[4,16] c_new) {
  xw = MatMul(x, w)  hu = MatMul(h, u)  a = Add(xw, hu)  i, f, g, o = Split <axis = 1, num_outputs = 4> (a)
  si = Sigmoid(i)  sf = Sigmoid(f)  so = Sigmoid(o)  tg = Tanh(g)
  kept = Mul(sf, c)  new = Mul(si, tg)  c_new = Add(kept, new)  t = Tanh(c_new)  h_new = Mul(so, t) }

rnn_operator | the state of ONNX's own operator
(float[1,4,8] x, float[1,4,16] h, float[1,16,8] w, float[1,16,16] r) => (float[1,4,16] h_new) {
  y, h_new = RNN <hidden_size = 16> (x, w, r, , , h) }

kv_cache_ring | a cache of fixed length whose oldest row goes
(float[1,4,1,8] k, float[1,4,16,8] past, float[1,4,1,8] q) => (float[1,4,16,8] present, float[1,4,1,8] y)
<int64[1] one = {1}, int64[1] end = {100}, int64[1] axis = {2}> {
  rest = Slice(past, one, end, axis)  present = Concat <axis = 2> (rest, k)
  t = Transpose <perm = [0,1,3,2]> (present)  s = MatMul(q, t)  p = Softmax <axis = -1> (s)  y = MatMul(p, present) }

kv_cache_scatter | a cache of fixed length that is written at a position
(float[1,4,1,8] k, float[1,4,16,8] past, float[1,4,1,8] q, int64[1,4,1,8] at)
=> (float[1,4,16,8] present, float[1,4,1,8] y) {
  present = ScatterElements <axis = 2> (past, at, k)
  t = Transpose <perm = [0,1,3,2]> (present)  s = MatMul(q, t)  p = Softmax <axis = -1> (s)  y = MatMul(p, present) }

kv_cache_masked | a cache that a mask blends with the new row
(float[1,4,1,8] k, float[1,4,16,8] past, float[1,4,1,8] q, float[1,1,16,1] mask)
=> (float[1,4,16,8] present, float[1,4,1,8] y) <float one = {1.0}> {
  keep = Sub(one, mask)  old = Mul(past, keep)  new = Mul(k, mask)  present = Add(old, new)
  t = Transpose <perm = [0,1,3,2]> (present)  s = MatMul(q, t)  p = Softmax <axis = -1> (s)  y = MatMul(p, present) }

denoiser_constant | x - A x with a constant A
(float[16,16] x) => (float[16,16] y) <float[16,16] a = {A}> { p = MatMul(a, x)  y = Sub(x, p) }

denoiser_right | x - x A with a constant A
(float[16,16] x) => (float[16,16] y) <float[16,16] a = {A}> { p = MatMul(x, a)  y = Sub(x, p) }

denoiser_conv | the network estimates the noise in an image
(float[1,3,8,8] x) => (float[1,3,8,8] y) <float[4,3,3,3] a = {K1}, float[3,4,3,3] b = {K2}> {
  h = Conv <pads = [1,1,1,1]> (x, a)  r = Relu(h)  n = Conv <pads = [1,1,1,1]> (r, b)  y = Sub(x, n) }

denoiser_network | weights are inputs, too, but it is the image that changes
(float[16,16] x, float[16,16] a, float[16,16] b) => (float[16,16] y) {
  h = MatMul(x, a)  r = Relu(h)  n = MatMul(r, b)  y = Sub(x, n) }

residual | a residual block
(float[8,16] x, float[16,32] a, float[32,16] b) => (float[8,16] y) {
  h = MatMul(x, a)  r = Relu(h)  n = MatMul(r, b)  y = Add(x, n) }

residual_attention | self-attention reads the input in both factors of a product
(float[1,16,16] x, float[16,16] wq, float[16,16] wk) => (float[1,16,16] y) {
  q = MatMul(x, wq)  k = MatMul(x, wk)  t = Transpose <perm = [0,2,1]> (k)  s = MatMul(q, t)
  p = Softmax <axis = -1> (s)  m = MatMul(p, x)  y = Add(x, m) }

gram | x - x x^T x: orthogonalisation, a product of the state with itself
(float[16,16] x) => (float[16,16] y) <float half = {0.5}> {
  t = Transpose <perm = [1,0]> (x)  g = MatMul(t, x)  p = MatMul(x, g)  q = Mul(half, p)  y = Sub(x, q) }

diffusion | a step of a sampler, with its schedule and noise as inputs
(float[1,4,8,8] x, float sigma, float next, float[1,4,8,8] noise) => (float[1,4,8,8] y)
<float[4,4,3,3] k = {K3}> {
  s = Mul(x, sigma)  e = Conv <pads = [1,1,1,1]> (s, k)  d = Sub(next, sigma)  m = Mul(e, d)  u = Add(x, m)
  n = Mul(noise, next)  y = Add(u, n) }

linear_attention | S + k^T v, read as q S: a product of inputs, but of others than the reader's
(float[1,8] q, float[1,8] k, float[1,16] v, float[8,16] state) => (float[8,16] state_new, float[1,16] y)
<float decay = {0.9}> {
  kt = Transpose <perm = [1,0]> (k)  kv = MatMul(kt, v)  old = Mul(decay, state)  state_new = Add(old, kv)
  y = MatMul(q, state_new) }

linear_attention_old | the same, read before it is updated
(float[1,8] q, float[1,8] k, float[1,16] v, float[8,16] state) => (float[8,16] state_new, float[1,16] y) {
  kt = Transpose <perm = [1,0]> (k)  kv = MatMul(kt, v)  state_new = Add(state, kv)  y = MatMul(q, state) }

heat | the heat equation on a grid
(float[1,1,16,16] u) => (float[1,1,16,16] u_new)
<float[1,1,3,3] k = {0.0,1.0,0.0,1.0,-4.0,1.0,0.0,1.0,0.0}, float dt = {0.1}> {
  l = Conv <pads = [1,1,1,1]> (u, k)  d = Mul(dt, l)  u_new = Add(u, d) }

heat_matrix | the same as a product, on a line
(float[16] u) => (float[16] u_new) <float[16,16] a = {A}, float dt = {0.1}> {
  l = MatMul(a, u)  d = Mul(dt, l)  u_new = Add(u, d) }

ista | sparse coding: a gradient step on the code, with a constant dictionary
(float[8,16] z, float[8,12] x) => (float[8,16] z_new)
<float[16,12] w = {D}, float[12,16] wt = {DT}, float rate = {0.1}, float low = {-0.05}, float high = {0.05}> {
  p = MatMul(z, w)  r = Sub(p, x)  g = MatMul(r, wt)  s = Mul(rate, g)  u = Sub(z, s)
  c = Clip(u, low, high)  z_new = Sub(u, c) }

ista_left | the same with the code as columns
(float[16,8] z, float[12,8] x) => (float[16,8] z_new) <float[12,16] w = {DT}, float rate = {0.1}> {
  p = MatMul(w, z)  r = Sub(p, x)  t = Transpose <perm = [1,0]> (w)  g = MatMul(t, r)  s = Mul(rate, g)
  z_new = Sub(z, s) }

running_mean | statistics alone, beside no parameter
(float[8,16] x, float[16] mean) => (float[16] mean_new, float[8,16] y)
<float keep = {0.9}, float take = {0.1}, int64[1] axis = {0}> {
  m = ReduceMean <keepdims = 0> (x, axis)  a = Mul(keep, mean)  b = Mul(take, m)  mean_new = Add(a, b)
  y = Sub(x, mean) }

batch_norm_training | running statistics of the operator, with constant scale and shift
(float[8,16] x, float[16] mean, float[16] variance) => (float[8,16] y, float[16] mean_new, float[16] variance_new)
<float[16] scale = {S}, float[16] shift = {S}> {
  y, mean_new, variance_new = BatchNormalization <training_mode = 1> (x, scale, shift, mean, variance) }

counter | a step number and nothing else
(float[8,16] x, float t) => (float[8,16] y, float t_new) <float one = {1.0}> { t_new = Add(t, one)  y = Mul(x, t) }

kalman | a filter: its gain is a product of the covariance, which only itself reads
(float[4,1] x, float[4,4] p, float[1,1] z) => (float[4,1] x_new, float[4,4] p_new)
<float[1,4] h = {1.0,0.0,0.0,0.0}, float[1,1] r = {0.1}> {
  ht = Transpose <perm = [1,0]> (h)  hp = MatMul(h, p)  pht = MatMul(p, ht)  s0 = MatMul(h, pht)  s = Add(s0, r)
  k = Div(pht, s)  hx = MatMul(h, x)  e = Sub(z, hx)  ke = MatMul(k, e)  x_new = Add(x, ke)
  khp = MatMul(k, hp)  p_new = Sub(p, khp) }

power_iteration | y = A x / |A x|
(float[16] x) => (float[16] y) <float[16,16] a = {A}> {
  p = MatMul(a, x)  q = Mul(p, p)  s = ReduceSum <keepdims = 0> (q)  n = Sqrt(s)  y = Div(p, n) }
"""

# Names in the texts -> how many numbers stand there; what they are does not matter.
_SIZES = {
    "{WX}": 128, "{WH}": 256, "{A}": 256, "{K1}": 108, "{K2}": 108, "{K3}": 144, "{DT}": 192, "{D}": 192, "{S}": 16,
}  # fmt: skip


def _filled(text: str) -> str:
    for name, size in _SIZES.items():
        numbers = ", ".join(f"{(index * 37 % 101 - 50) / 200}" for index in range(size))
        text = text.replace(name, "{" + numbers + "}")
    return text


def _rows() -> tuple[Lookalike, ...]:
    rows = []
    for row in _ROWS.strip().split("\n\n"):
        head, _, text = row.partition("\n")
        name, _, why = head.partition(" | ")
        rows.append(Lookalike(name, _filled(text), why))
    return tuple(rows)


NOT_TRAINING = _rows()
