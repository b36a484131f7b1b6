"""Messages of `docs/errors.md` that no other test provokes: what a user does, and words of the message.

`tests/cli/provoked.tsv` names the test that provokes each of the others.
"""

import itertools
import pathlib

import numpy as np
import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler import CPUPlace, errors, paddle, static
from amp_transpiler.cli.command import main
from amp_transpiler.paddle.building import program_of
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.paddle.training_log import TrainingLog, append_line, lines_file
from amp_transpiler.runtime.distributed.micro_batches import split_feeds

_names = itertools.count()


def x(*shape, dtype="float32"):
    """Return an input of this shape, with a name of its own."""
    return static.data(f"x{next(_names)}", list(shape), dtype)


def trained(input_shapes):
    return static.from_onnx(onnx.parser.parse_model(MODEL), input_shapes=input_shapes)


def split_into_micro_batches(arrays, size):
    data = static.data("x", [size, 2])
    return split_feeds(data.program, arrays, 2)


def begin_as_one_of_several():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_TRAINERS_NUM", "2")
        paddle.distributed.init_parallel_env()


class WithoutRate(paddle.optimizer.lr.LRScheduler):
    pass


def fleet_with(**settings):
    strategy = paddle.distributed.fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    return paddle.distributed.fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy)


IMAGE = (1, 3, 8, 8)

# Words of the message -> what is done.
BUILT = {
    # layers and functions
    "maxout: the 3 channels of": lambda: F.maxout(x(*IMAGE), 2),
    "prelu: weight of shape": lambda: F.prelu(x(*IMAGE), x(5)),
    "adaptive_max_pool: return_mask=True is not available": lambda: F.adaptive_max_pool2d(
        x(*IMAGE), 3, return_mask=True
    ),
    "x must have 3 dimensions": lambda: F.adaptive_avg_pool1d(x(*IMAGE), 3),
    "expected a positive size, None, or 1 of them": lambda: F.adaptive_avg_pool1d(x(1, 3, 8), 0),
    "the channels must be first, got data_format": lambda: F.max_unpool2d(
        x(1, 4, 4, 3), x(1, 4, 4, 3, dtype="int64"), 2, data_format="NHWC"
    ),
    "norm_type must be a positive whole number": lambda: F.lp_pool2d(x(*IMAGE), 0.5, 2),
    "attention takes [batch, length, heads, size]": lambda: F.scaled_dot_product_attention(*[x(2, 3, 4)] * 3),
    "attention: 3 heads of the query cannot share 2": lambda: F.scaled_dot_product_attention(
        x(1, 4, 3, 8), x(1, 4, 2, 8), x(1, 4, 2, 8), enable_gqa=True
    ),
    "return_softmax must be False": lambda: F.flash_attn_qkvpacked(x(1, 4, 3, 2, 8), return_softmax=True),
    "flash_attn_qkvpacked takes [batch, length": lambda: F.flash_attn_qkvpacked(x(1, 4, 3, 8)),
    "label_smoothing must be from 0 to 1": lambda: F.cross_entropy(x(4, 3), x(4, dtype="int64"), label_smoothing=2),
    "must have an axis for samples and one for classes": lambda: F.cross_entropy(x(4), x(4, dtype="int64")),
    "embedding: row numbers must be int64 or int32": lambda: F.embedding(x(4), x(5, 2)),
    "padding_idx 9 is no row of": lambda: F.embedding(x(4, dtype="int64"), x(5, 2), padding_idx=9),
    "pad: expected 8 or 4 numbers": lambda: F.pad(x(*IMAGE), [1, 2, 3]),
    "expected a positive factor or 2 of them": lambda: F.interpolate(x(*IMAGE), scale_factor=[1, 2, 3]),
    "stride and dilation must be positive": lambda: F.conv2d(x(*IMAGE), x(4, 3, 3, 3), stride=0),
    "with groups=1: expected [channels, filters": lambda: F.conv2d_transpose(x(*IMAGE), x(5, 4, 3, 3)),
    "give output_padding or output_size, not both": lambda: F.conv2d_transpose(
        x(*IMAGE), x(3, 4, 3, 3), stride=2, output_padding=1, output_size=[16, 16]
    ),
    "padding 'SAME' settles the size": lambda: F.conv2d_transpose(
        x(*IMAGE), x(3, 4, 3, 3), padding="SAME", output_size=[16, 16]
    ),
    "expected at least one label a sample": lambda: F.ctc_loss(
        x(5, 2, 4), x(2, 0, dtype="int32"), x(2, dtype="int64"), x(2, dtype="int64")
    ),
    "hsigmoid_loss: expected 2 classes or more": lambda: F.hsigmoid_loss(x(4, 3), x(4, 1, dtype="int64"), 1, x(1, 3)),
    "give both path_table and path_code, or neither": lambda: F.hsigmoid_loss(
        x(4, 3), x(4, 1, dtype="int64"), 5, x(4, 3), path_table=x(4, 2, dtype="int64")
    ),
    "9 cannot be drawn of 5 classes": lambda: F.class_center_sample(x(4, dtype="int64"), 5, 9),
    "triplet_margin_loss: margin must be positive": lambda: F.triplet_margin_with_distance_loss(
        x(4, 3), x(4, 3), x(4, 3), margin=-1
    ),
    "must be normalized_shape": lambda: F.layer_norm(x(4, 3), 5),
    "instance_norm: running statistics are not available": lambda: F.instance_norm(x(*IMAGE), use_input_stats=False),
    "normalize: p must be positive": lambda: F.normalize(x(4, 3), p=-1),
    "return_mask=True needs the channels first": lambda: F.max_pool2d(
        x(*IMAGE), 2, return_mask=True, data_format="NHWC"
    ),
    "divisor_override with ceil_mode=True": lambda: F.avg_pool2d(x(*IMAGE), 2, ceil_mode=True, divisor_override=3),
    "divisor_override must not be 0": lambda: F.avg_pool2d(x(*IMAGE), 2, divisor_override=0),
    "adaptive_avg_pool2d: x must have 4 dimensions": lambda: F.adaptive_avg_pool2d(x(3, 8, 8), 2),
    "output_size must be a positive number, None": lambda: F.adaptive_avg_pool2d(x(*IMAGE), 0),
    "max_pool2d: x must have 4 dimensions": lambda: F.max_pool2d(x(3, 8, 8), 2),
    "kernel_size and stride must be positive": lambda: F.max_pool2d(x(*IMAGE), 0),
    "are no multiple of 2^2": lambda: F.pixel_shuffle(x(*IMAGE), 2),
    "height and width of": lambda: F.pixel_unshuffle(x(*IMAGE), 3),
    "channel_shuffle: the 3 channels": lambda: F.channel_shuffle(x(*IMAGE), 2),
    "fold: expected [batch, a multiple of 4": lambda: F.fold(x(1, 7, 9), [4, 4], 2),
    "affine_grid: expected theta": lambda: F.affine_grid(x(1, 3, 3), [1, 3, 4, 4]),
    "epsilon must be from 0 to 1": lambda: F.label_smooth(x(4, 3), epsilon=2),
    "bmm: expected three axes each": lambda: paddle.bmm(x(2, 3), x(3, 2)),
    "cross: no axis of": lambda: paddle.cross(x(2, 4), x(2, 4)),
    "where: give both x and y, or neither": lambda: paddle.where(x(4, dtype="bool"), x(4)),
    "is_arithmetic=False is not available": lambda: paddle.bitwise_right_shift(
        x(4, dtype="int32"), x(4, dtype="int32"), is_arithmetic=False
    ),
    "quantile: q must be from 0 to 1": lambda: paddle.quantile(x(4), 2),
    "quantile: expected one axis or none": lambda: paddle.quantile(x(4, 3), 0.5, axis=[0, 1]),
    "do not broadcast": lambda: paddle.broadcast_shape([2, 3], [4, 5]),
    "view: an element type": lambda: paddle.view(x(4), "int32"),
    "flatten: start_axis 2 is behind stop_axis 1": lambda: paddle.flatten(x(*IMAGE), 2, 1),
    "t: expected at most two axes": lambda: paddle.t(x(*IMAGE)),
    "into 3 equal parts": lambda: paddle.split(x(4, 4), 3),
    "cannot be split into [1, 1]": lambda: paddle.split(x(4, 4), [1, 1]),
    "as_strided: element": lambda: paddle.as_strided(x(4), [4, 4], [4, 1]),
    "polygamma: n must be 0 or larger": lambda: paddle.polygamma(x(4), -1),
    "shard_index: shard_id must be from 0 to": lambda: paddle.shard_index(x(4, 1, dtype="int64"), 20, 2, 5),
    "diag: expected a vector or a matrix": lambda: paddle.diag(x(*IMAGE)),
    "diag_embed: the last axis of": lambda: paddle.diag_embed(x(2, -1)),
    "diagonal: axes 0 and 1": lambda: paddle.diagonal(x(-1, -1)),
    "has no diagonal at offset 9": lambda: paddle.diagonal(x(3, 3), offset=9),
    "vander: give n": lambda: paddle.vander(x(-1)),
    "Softmax2D takes three or four dimensions": lambda: paddle.nn.Softmax2D()(x(4, 3)),
    "add_parameter: 'w' must be a parameter": lambda: paddle.nn.Layer().add_parameter("w", x(3)),
    "row_conv takes [batch, length, features]": lambda: static.nn.row_conv(x(4, 3), 2),
    "fc needs an input and a size of 1 or more": lambda: static.nn.fc(x(4, 3), 0),
    "from axis 1 on must be known": lambda: static.nn.fc(x(4, -1), 2),
    "is_distributed=True is not available": lambda: static.nn.embedding(
        x(4, dtype="int64"), [5, 2], is_distributed=True
    ),
    "print_phase must be 'forward' or 'both'": lambda: static.Print(x(4), print_phase="backward"),
    "correct and total are not available": lambda: static.accuracy(
        x(4, 3), x(4, 1, dtype="int64"), correct=x(1), total=x(1)
    ),
    "auc: curve must be 'ROC'": lambda: static.auc(x(4, 2), x(4, 1, dtype="int64"), curve="PR"),
    # programs and variables
    "was declared with lod_level=1": lambda: paddle.base.DataFeeder([static.data("x", [1], lod_level=1)]),
    "callbacks see Paddle's operators": lambda: static.append_backward(paddle.mean(x(2)), callbacks=[print]),
    "3 targets, but 1 target_gradients": lambda: static.gradients([x(1), x(1), x(1)], [x(1)], [x(1)]),
    "a branch returns variables and numbers": lambda: static.nn.cond(x(1, dtype="bool"), lambda: "a", lambda: "b"),
    # optimizers, scalers and logs
    "GradScaler: unknown settings": lambda: paddle.amp.GradScaler().load_state_dict({"speed": 3}),
    "GradScaler.unscale_(": lambda: paddle.amp.GradScaler().unscale_(None),
    "GradScaler.step(": lambda: paddle.amp.GradScaler().step(None),
    "GradScaler.update": lambda: paddle.amp.GradScaler().update(),
    "GradScaler.minimize(": lambda: paddle.amp.GradScaler().minimize(None),
    "has no trainable parameter": lambda: (
        static.ModelAverage(0.15).update() if hasattr(static, "ModelAverage") else paddle.incubate.ModelAverage(0.15)
    ),
    "not_finite must be one of": lambda: static.Executor(CPUPlace()).run(static.Program(), not_finite="shrug"),
    "max_sessions must be 1 or more": lambda: static.Executor(CPUPlace(), max_sessions=0),
    "ComposeDataset: the data sets must be of one length": lambda: paddle.io.ComposeDataset(
        [paddle.io.TensorDataset([np.ones(3)]), paddle.io.TensorDataset([np.ones(4)])]
    ),
    "ConcatDataset: give at least one data set": lambda: paddle.io.ConcatDataset([]),
    "WeightedRandomSampler: 5 samples cannot be drawn": lambda: paddle.io.WeightedRandomSampler(
        [1.0, 2.0], 5, replacement=False
    ),
    "InputSpec.unbatch: there is no dimension": lambda: static.InputSpec([]).unbatch(),
    "save: protocol must be 2, 3 or 4": lambda: paddle.save({}, "file", protocol=9),
    "save_inference_model: give at least one variable to fetch": lambda: static.save_inference_model(
        "m", [], [], static.Executor(CPUPlace())
    ),
    "preds must be [samples] or [samples, 1]": lambda: paddle.metric.Precision().update(np.ones((2, 3)), np.ones(2)),
    "TrainingLog.plot: no step was recorded yet": lambda: TrainingLog().plot("loss.svg"),
    "expected one number: take its mean": lambda: TrainingLog().record(np.ones(3)),
    "fetched has 1 values, expected 0": lambda: TrainingLog().record(1.0, [1.0]),
    "TruncatedNormal: a=9": lambda: paddle.nn.initializer.TruncatedNormal(a=9, b=10),
    "of a known size, got shape": lambda: F.batch_norm(x(1, -1, 8, 8), x(3), x(3), x(3), x(3)),
    "the spatial sizes of": lambda: F.adaptive_avg_pool2d(x(1, 3, -1, -1), 3),
    "expected a number or 2 of them": lambda: F.max_pool2d(x(*IMAGE), [1, 2, 3]),
    "save: 'w' is set, expected an array": lambda: paddle.save({"w": {1}}, "file"),
    "tensordot: as many axes of x as of y": lambda: paddle.tensordot(x(2, 3), x(3, 2), axes=[[0, 1], [0]]),
    "nanquantile: q must be from 0 to 1": lambda: paddle.nanquantile(x(4), 2),
    "nanquantile: expected one axis": lambda: paddle.nanquantile(x(4, 3), 0.5, axis=[0, 1]),
    "expected 2 bins and 4 ranges": lambda: paddle.histogramdd(x(5, 2), bins=[3]),
    "matrix_norm: p must be": lambda: paddle.linalg.matrix_norm(x(3, 3), p=7),
    "full_matrices is for square matrices": lambda: paddle.linalg.svd(x(3, 4), full_matrices=True),
    "expected matrices of floats": lambda: paddle.linalg.qr(x(3)),
    "eigenvalues: the size of the matrices": lambda: paddle.linalg.eigvalsh(x(-1, -1)),
    "singular values: the sizes of the matrices": lambda: paddle.linalg.svd(x(-1, 3)),
    "rnnt_loss: labels must be of shape": lambda: F.rnnt_loss(
        x(2, 5, 4, 6), x(2, 9, dtype="int32"), x(2, dtype="int32"), x(2, dtype="int32")
    ),
    "rms_norm: the last axes of": lambda: F.rms_norm(x(4, 3), 5, x(5)),
    "the product of a scalar is written with *": lambda: paddle.matmul(x(), x(3)),
    "a list of attributes must have 1 or": lambda: paddle.nn.TransformerEncoderLayer(8, 2, 8, weight_attr=[None] * 5),
    "register_buffer: 'b' must be a variable": lambda: paddle.nn.Layer().register_buffer("b", 3),
    "padding_idx 9 is no row of a table of 5": lambda: paddle.nn.Embedding(5, 2, padding_idx=9),
    "cannot be made one: known sizes must follow": lambda: paddle.nn.Flatten(1, 2)(x(2, -1, 3, -1)),
    "Unflatten: axis 1 of": lambda: paddle.nn.Unflatten(1, [2, 5])(x(2, 6)),
    "behind axis 1 must be known": lambda: paddle.nn.Unflatten(1, [2, 3])(x(2, 6, -1)),
    "ParameterDict has no parameter 'k'": lambda: paddle.nn.ParameterDict()["k"],
    "padding_mode 'reflect' needs padding as numbers": lambda: paddle.nn.Conv2D(
        3, 4, 3, padding="SAME", padding_mode="reflect"
    )(x(*IMAGE)),
    "HSigmoidLoss: expected 2 classes or more": lambda: paddle.nn.HSigmoidLoss(3, 1),
    "is_custom=True needs path_table and path_code": lambda: paddle.nn.HSigmoidLoss(3, 5, is_custom=True)(
        x(4, 3), x(4, 1, dtype="int64")
    ),
    "cutoffs must ascend from 1 to below 10": lambda: paddle.nn.AdaptiveLogSoftmaxWithLoss(8, 10, [20]),
    "GroupNorm: 3 channels cannot be split into 2 groups": lambda: paddle.nn.GroupNorm(2, 3),
    "get_initial_states: leave dtype out": lambda: paddle.nn.LSTMCell(3, 4).get_initial_states(
        x(2, 3), dtype="float32"
    ),
    "sizes must be positive, got 0 and 4": lambda: paddle.nn.LSTM(0, 4),
    "activation must be 'tanh' or 'relu'": lambda: paddle.nn.SimpleRNNCell(3, 4, activation="step"),
    "proj_size is not available": lambda: paddle.nn.LSTMCell(3, 4, proj_size=2),
    "a sequence has three dimensions": lambda: paddle.nn.LSTM(3, 4)(x(2, 3)),
    "a cache needs eager mode": lambda: paddle.nn.MultiHeadAttention(8, 2)(*[x(1, 4, 8)] * 3, cache=()),
    "one weight_attr and one bias_attr for all parts": lambda: paddle.nn.Transformer(
        8, 2, 1, 1, weight_attr=[None] * 3
    ),
    "set_state_dict: expected": lambda: paddle.optimizer.lr.ReduceOnPlateau(0.1).set_state_dict({}),
    "has no formula of the epoch that a program can compute": lambda: WithoutRate(0.1),
    "expected at least one variable": lambda: program_of(None),
    "x must be a list of variables of a program, got []": lambda: paddle.concat([]),
    "expected at least one variable, got 1 and 2": lambda: paddle.add(1, 2),
    "save: the scope has no value for": lambda: paddle.save({"w": x(3)}, "file"),
    "variables have no attribute 'nonsense'": lambda: x(3).nonsense,
    # lists, regions and rules
    "decorates a function, got 3": lambda: amp.fp16_guard()(3),
    "unknown kind of region 'fast'": lambda: amp.mark_region(
        amp.load(onnx.parser.parse_model(MODEL)), "fast", nodes=".*"
    ),
    "expected a set or list of names, got the string 'Relu'": lambda: amp.AutoMixedPrecisionLists("Relu"),
    "since must be an opset version": lambda: amp.casting_rule("Conv", since=0),
    "ONNX has no such operator": lambda: amp.casting_rule("NoSuchOperator")(print),
    "is never low or float32 itself": lambda: amp.casting_rule("If")(print),
    "expected a function (node, inputs, low_dtype)": lambda: amp.casting_rule("Conv")(3),
    # models to train
    "input_shapes names 'q'": lambda: trained({"q": [1, 4]}),
    "give 2 sizes, -1 for those that stay free": lambda: trained({"x": [1]}),
    "size 0 must be a number from 1": lambda: trained({"x": [0, 4]}),
    "or export the model with that size free": lambda: trained({"x": [2, 4]}),
    # several processes
    "timeout must be a positive number of seconds": lambda: paddle.distributed.init_parallel_env(timeout=-1),
    "so this process is one of several, but": begin_as_one_of_several,
    "no input has an open first dimension; declare it as": lambda: split_into_micro_batches({"x": np.ones((4, 2))}, 4),
    "a batch of 3 cannot be split into 2 equal": lambda: split_into_micro_batches({"x": np.ones((3, 2))}, None),
    "fleet.init: there are no parameter servers": lambda: paddle.distributed.fleet.init(is_collective=False),
    "strategy.lars needs a Momentum optimizer": lambda: fleet_with(lars=True),
    "strategy.lamb needs an Adam optimizer": lambda: fleet_with(lamb=True),
    "the folder cannot be made": lambda: lines_file("/dev/null/log.jsonl"),
    "the log cannot be written": lambda: append_line(pathlib.Path("/dev/null/log.jsonl"), {}),
    # sessions and places
    "no CUDA device answers": static.cuda_places,
    "unknown place": lambda: amp.runtime.places.place_named("TPU"),
    "device_id must be 0 or more": lambda: amp.CUDAPlace(-1),
    "there is no flag": lambda: paddle.set_flags({"FLAGS_speed": 1}),
}


@pytest.mark.parametrize("words", BUILT)
def test_what_a_program_is_refused_for(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = static.Program()
    with (
        static.program_guard(program, static.Program()),
        pytest.raises((errors.AmpError, TypeError, AttributeError)) as caught,
    ):
        BUILT[words]()
    assert words in str(caught.value)


MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 3] y) <float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{ [product] y = MatMul(x, w) }
"""

# Arguments of the command -> words of the message.
COMMANDS = {
    "m.onnx --opset new": "'new' is no opset: expected a number such as 17",
    "m.onnx --dim batch": "'batch' is no NAME=SIZE: expected such as batch=8",
    "m.onnx --headroom 0": "'0' is no headroom: expected a number of at least 1",
    "m.onnx --metric-bound small": "'small' is no number",
    "m.onnx --state a": "'a' is no IN=OUT",
    "m.onnx --state a=b --state a=c": "--state binds input 'a' twice",
    "m.onnx --state a=b": "the model has no input 'a'",
    "m.onnx --state x=b": "the model has no output 'b'",
    "m.onnx --state x=y": "an update has the shape and type of its state",
    "m.onnx --state x=y --level O0": "--level O0 copies the files as they are",
    "m.onnx --loss-scaling --dtype bfloat16": "loss scaling is for float16",
    "m.onnx --master-weights": "no trained parameter was found",
    "m.onnx --max-depth-of-reduction 0": "is no number of terms",
    "m.onnx m2.onnx --save-recipe r.toml": "a recipe is of one model",
    "m.onnx --report /dev/fd/1": "is an open file of this process",
    "m.onnx --recipe gone.toml": "recipe gone.toml: cannot be read",
    "m.onnx --recipe old.toml": "its format is 0, expected",
    "m.onnx --recipe odd.toml": "unknown option 'speed'",
    "m.onnx --recipe flat.toml": "'options' is 3, expected a table",
    "m.onnx --recipe nodes.toml": "node 'product' is 3, expected",
    "m.onnx --ort 1.2": "no kernel table for ONNX Runtime",
    "- -o out.onnx": "standard input: no model comes in; pipe one into the command",
    "m.onnx --metric notes.txt:f --metric-bound 1": "is no Python file",
}
FILES = {
    "old.toml": "format = 0",
    "odd.toml": "format = 1\n[options]\nspeed = 3",
    "flat.toml": "format = 1\noptions = 3",
    "nodes.toml": "format = 1\n[nodes]\nproduct = 3",
    "notes.txt": "no Python",
}


@pytest.mark.parametrize("arguments", COMMANDS)
def test_what_the_command_refuses(arguments, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "m2.onnx"):
        onnx.save(onnx.parser.parse_model(MODEL), name)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    skipped = [] if "--metric" in arguments.split() else ["--no-verify"]
    assert main([*arguments.split(), *skipped]) == 2
    assert COMMANDS[arguments] in capfd.readouterr().err
