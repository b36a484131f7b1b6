"""The use case of Paddle's pull request 29544 as written there; only the imports and the place are changed."""
# ruff: noqa: ANN001, ANN201, I001, ICN001, N812, NPY002, PLR0402, SIM108, SIM117  # not our style, kept as written
# mypy: disable-error-code="no-untyped-call, no-untyped-def, assignment, attr-defined"

from amp_transpiler import paddle
import numpy
import amp_transpiler.paddle.nn.functional as F
import amp_transpiler.paddle.utils as utils

paddle.enable_static()


def build_model(main_prog, startup_prog, is_train=True):
    with utils.unique_name.guard():
        with paddle.static.program_guard(main_prog, startup_prog):
            data = paddle.static.data(name="image", shape=[None, 1, 28, 28], dtype="float32")
            label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
            conv2d = paddle.static.nn.conv2d(input=data, num_filters=6, filter_size=3)
            # 1) Use fp16_guard to control the range of fp16 kernels used.
            with paddle.static.amp.fp16_guard():
                bn = paddle.static.nn.batch_norm(input=conv2d, act="relu")
                pool = F.max_pool2d(bn, kernel_size=2, stride=2)
                hidden = paddle.static.nn.fc(pool, size=64)
                predict = F.softmax(hidden)
                if is_train:
                    loss = F.cross_entropy(input=predict, label=label, reduction="mean")
                else:
                    loss = predict
                return data, label, loss


train_program = paddle.static.Program()
test_program = paddle.static.Program()
startup_program = paddle.static.Program()
data, label, loss = build_model(train_program, startup_program, True)
build_model(test_program, startup_program, False)

# 2) Create the optimizer and set `multi_precision` to True.
# Setting `multi_precision` to True can avoid the poor accuracy
# or the slow convergence in a way.
optimizer = paddle.optimizer.Adam(learning_rate=0.001, multi_precision=True)

# 3) These ops in `custom_black_list` will keep in the float32 computation type.
amp_list = paddle.static.amp.AutoMixedPrecisionLists(custom_black_list=["pool2d"])
# 4) The entry of Paddle AMP.
# Enable pure fp16 training by setting `use_pure_fp16` to True.
optimizer = paddle.static.amp.decorate(
    optimizer, amp_list, init_loss_scaling=128.0, use_dynamic_loss_scaling=True, use_pure_fp16=True
)

# If you don't use the default_startup_program(), you sholud pass
# your defined `startup_program` into `minimize`. Because it is required
# by the master weight creation process.
optimizer.minimize(loss, startup_program)

place = paddle.CPUPlace()
exe = paddle.static.Executor(place)
exe.run(startup_program)

# 5) Use `amp_init` after FP32 parameters initialization(such as `exe.run(startup_program)`).
# If you want to perform the testing process, you should pass `test_program` into `amp_init`.
optimizer.amp_init(place, test_program=test_program)

x = numpy.random.random(size=(4, 1, 28, 28)).astype("float32")
y = numpy.random.random(size=(4, 1)).astype("int64")
(loss_data,) = exe.run(train_program, feed={data.name: x, label.name: y}, fetch_list=[loss.name])
print(loss_data)
