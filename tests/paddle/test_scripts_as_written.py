"""Static-graph scripts as Paddle's users write them, with the import changed and nothing else: digits with a
DataLoader, a sentiment LSTM, wide and deep with `fleet`, a detection head."""

import math

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle import nn, static
from amp_transpiler.paddle.distributed import fleet
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.paddle.regularizer import L2Decay

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _fresh():
    paddle.enable_static()
    paddle.seed(2023)
    main, startup = static.Program(), static.Program()
    with (
        static.scope_guard(static.Scope()),
        static.program_guard(main, startup),
        paddle.utils.unique_name.guard(),
    ):
        yield
    paddle.seed(0)


class Digits(paddle.io.Dataset):
    def __init__(self, mode="train", transform=None):
        datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, whose digits these are, is missing")
        digits = datasets.load_digits()
        part = slice(0, 1280) if mode == "train" else slice(1280, None)
        self.images, self.labels, self.transform = digits.images[part], digits.target[part], transform

    def __getitem__(self, idx):
        image = np.reshape(self.images[idx], [1, 8, 8]).astype("float32") / 16.0
        if self.transform:
            image = self.transform(image)
        return image, np.array(self.labels[idx]).astype("int64").reshape([1])

    def __len__(self):
        return len(self.labels)


@pytest.mark.parametrize("use_amp", [False, True])
def test_digits_with_a_data_loader(use_amp, tmp_path):
    img = static.data(name="img", shape=[None, 1, 8, 8], dtype="float32")
    label = static.data(name="label", shape=[None, 1], dtype="int64")
    conv1 = static.nn.conv2d(input=img, filter_size=3, num_filters=20, padding=1, act="relu")
    pool1 = F.max_pool2d(conv1, kernel_size=2, stride=2)
    conv2 = static.nn.conv2d(static.nn.batch_norm(pool1), filter_size=3, num_filters=50, padding=1, act="relu")
    pool2 = F.avg_pool2d(conv2, kernel_size=2, stride=2)
    hidden = F.dropout(static.nn.fc(x=pool2, size=64, activation="relu"), p=0.1, mode="upscale_in_train")
    prediction = static.nn.fc(x=hidden, size=10, activation="softmax")
    loss = F.cross_entropy(input=prediction, label=label, reduction="none", use_softmax=False)
    avg_loss = paddle.mean(loss)
    acc = static.accuracy(input=prediction, label=label)
    main, startup = static.default_main_program(), static.default_startup_program()
    test_program = main.clone(for_test=True)
    scheduler = paddle.optimizer.lr.PiecewiseDecay(boundaries=[40, 80], values=[0.05, 0.02, 0.01])
    optimizer = paddle.optimizer.Momentum(learning_rate=scheduler, momentum=0.9, weight_decay=L2Decay(1e-4))
    if use_amp:
        optimizer = static.amp.decorate(optimizer, init_loss_scaling=128.0, use_dynamic_loss_scaling=True)
    optimizer.minimize(avg_loss, startup)
    place = paddle.CPUPlace()
    exe = static.Executor(place)
    exe.run(startup)
    if use_amp:
        optimizer.amp_init(place, test_program=test_program)
    loader = paddle.io.DataLoader(
        Digits("train"),
        feed_list=[img, label],
        places=static.cpu_places(1),
        batch_size=32,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        return_list=False,
        use_shared_memory=False,
    )
    held = Digits("test")
    test_loader = paddle.io.DataLoader(
        held,
        feed_list=[img, label],
        places=place,
        batch_sampler=paddle.io.BatchSampler(dataset=held, batch_size=64),
        return_list=False,
    )
    for _ in range(3):
        for data in loader():
            exe.run(main, feed=data, fetch_list=[avg_loss.name, acc])
            scheduler.step()
    assert scheduler.get_lr() == 0.01
    accuracies = [exe.run(program=test_program, feed=data, fetch_list=[acc.name])[0] for data in test_loader]
    assert np.array(accuracies).mean() > 0.85
    static.save(main, str(tmp_path / "model"))
    static.load(main, str(tmp_path / "model"), exe)
    static.save_inference_model(str(tmp_path / "mnist"), [img], [prediction], exe, program=test_program)
    program, feeds, fetches = static.load_inference_model(str(tmp_path / "mnist"), exe)
    images = np.stack([held[i][0] for i in range(5)])
    (scores,) = exe.run(program, feed={feeds[0]: images}, fetch_list=fetches)
    np.testing.assert_allclose(scores.sum(1), 1.0, rtol=1e-2)
    assert static.global_scope().find_var("conv2d_0.w_0") is not None


VOCAB, LENGTH = 200, 16


class BiLSTM(nn.Layer):
    def __init__(self):
        super(BiLSTM, self).__init__()  # noqa: UP008  # as scripts have it
        uniform = paddle.ParamAttr(name="emb", initializer=nn.initializer.Uniform(-0.1, 0.1))
        self.embedder = nn.Embedding(VOCAB, 32, padding_idx=0, sparse=True, weight_attr=uniform)
        self.lstm = nn.LSTM(32, 32, num_layers=2, direction="bidirectional", dropout=0.1)
        self.attention = nn.Linear(64, 1, bias_attr=False)
        self.fc = nn.Linear(64, 64)
        self.out = nn.Linear(64, 2)

    def forward(self, text, seq_len):
        y, (h, _) = self.lstm(self.embedder(text), sequence_length=seq_len)
        mask = F.sequence_mask(seq_len, maxlen=LENGTH, dtype="float32")
        score = self.attention(paddle.tanh(y)).squeeze(-1) + (1.0 - mask) * -1e4
        context = paddle.bmm(F.softmax(score, axis=-1).unsqueeze(1), y).squeeze(1)
        return self.out(paddle.tanh(self.fc(context + paddle.concat([h[-2], h[-1]], axis=-1))))


@pytest.mark.parametrize("use_amp", [False, True])
def test_a_sentiment_lstm(use_amp):
    rng = np.random.RandomState(0)

    def reader():
        for _ in range(40 * 16):
            words = rng.randint(2, VOCAB, rng.randint(4, LENGTH + 1))
            yield words.tolist(), int((words < VOCAB // 2).sum() * 2 > len(words))

    ids = static.data("ids", [-1, LENGTH], "int64")
    lens = static.data("lens", [-1], "int64")
    label = static.data("label", [-1, 1], "int64")
    model = BiLSTM()
    logits = model(ids, lens)
    loss = nn.CrossEntropyLoss()(logits, label)
    probs = F.softmax(logits)
    decay = paddle.optimizer.lr.ExponentialDecay(5e-3, 0.995)
    lr = paddle.optimizer.lr.LinearWarmup(decay, warmup_steps=10, start_lr=0.0, end_lr=5e-3)
    opt = paddle.optimizer.Adam(
        learning_rate=lr,
        parameters=model.parameters(),
        grad_clip=nn.ClipGradByGlobalNorm(clip_norm=5.0),
        lazy_mode=True,
    )
    if use_amp:
        lists = static.amp.AutoMixedPrecisionLists(custom_white_list={"softmax"}, custom_black_list=["tanh"])
        opt = static.amp.decorate(opt, amp_lists=lists, use_dynamic_loss_scaling=True)
    _, params_grads = opt.minimize(loss)
    assert params_grads[0][0].name == "emb"
    exe = static.Executor(paddle.CPUPlace())
    exe.run(static.default_startup_program())
    if use_amp:
        opt.amp_init(paddle.CPUPlace(), scope=static.global_scope())
    batched = paddle.batch(paddle.reader.shuffle(reader, 500), batch_size=16, drop_last=True)
    metric = paddle.metric.Accuracy()
    for _ in range(3):
        metric.reset()
        for batch in batched():
            padded = np.zeros([16, LENGTH], "int64")
            for row, (words, _) in zip(padded, batch, strict=True):
                row[: len(words)] = words
            y = np.array([[kind] for _, kind in batch], dtype="int64")
            feed = {"ids": padded, "lens": np.array([len(words) for words, _ in batch]), "label": y}
            _, probabilities = exe.run(feed=feed, fetch_list=[loss, probs])
            lr.step()
            metric.update(metric.compute(probabilities, y))
    assert metric.accumulate() > 0.75
    assert lr.last_lr < 5e-3


SLOTS, DENSE, ROWS = 4, 5, 101


def test_wide_and_deep_with_fleet(tmp_path):
    rng = np.random.RandomState(3)
    weights = rng.randn(ROWS)
    fleet.init(is_collective=True)
    dense_input = static.data(name="dense_input", shape=[None, DENSE], dtype="float32")
    sparse = [static.data(name="C" + str(i), shape=[None, 1], dtype="int64") for i in range(1, SLOTS + 1)]
    label = static.data(name="label", shape=[None, 1], dtype="int64")

    def embedding_layer(input):  # noqa: A002  # as scripts have it
        emb = static.nn.embedding(
            input=input,
            is_sparse=True,
            is_distributed=False,
            size=[ROWS, 8],
            param_attr=paddle.ParamAttr(name="SparseFeatFactors", initializer=paddle.nn.initializer.Uniform()),
        )
        return paddle.reshape(emb, [-1, 8])

    embs = list(map(embedding_layer, sparse))
    narrow = paddle.ParamAttr(name="wide", initializer=nn.initializer.TruncatedNormal(mean=0.0, std=0.01))
    wide = [
        paddle.sum(static.nn.embedding(s, size=[ROWS, 1], is_sparse=True, param_attr=narrow), axis=1) for s in sparse
    ]
    deep = paddle.concat([*embs, dense_input], axis=1)
    for size in (32, 16):
        attr = paddle.ParamAttr(initializer=nn.initializer.Normal(std=1 / math.sqrt(deep.shape[1])))
        deep = static.nn.fc(x=deep, size=size, activation="relu", weight_attr=attr)
    predict = F.sigmoid(paddle.add_n(wide) + static.nn.fc(x=deep, size=1, name="deep_out"))
    cost = paddle.mean(x=F.log_loss(input=predict, label=paddle.cast(label, dtype="float32")))
    both = paddle.concat(x=[1 - predict, predict], axis=1)
    auc, batch_auc, _ = static.auc(input=both, label=label, num_thresholds=2**12, slide_steps=20)
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"custom_black_list": ["log_loss"], "init_loss_scaling": 1024.0}
    optimizer = fleet.distributed_optimizer(paddle.optimizer.Adam(learning_rate=1e-2, lazy_mode=True), strategy)
    optimizer.minimize(cost)
    exe = static.Executor(paddle.CPUPlace())
    exe.run(static.default_startup_program())
    optimizer.amp_init(paddle.CPUPlace())
    areas = []
    for _ in range(80):
        ids = [rng.randint(0, ROWS, [64, 1]).astype("int64") for _ in range(SLOTS)]
        dense = rng.rand(64, DENSE).astype("float32")
        y = (sum(weights[i] for i in ids) + 2 * dense.sum(1, keepdims=True) > 5).astype("int64")
        feed = {"dense_input": dense, "label": y, **{f"C{i + 1}": ids_of_column for i, ids_of_column in enumerate(ids)}}
        areas.append([float(a) for a in exe.run(feed=feed, fetch_list=[auc, batch_auc])])
    assert areas[-1][1] > max(0.75, areas[-1][0])  # the last twenty batches are better than all
    if fleet.is_first_worker():
        names = [v.name for v in [dense_input, *sparse]]
        fleet.save_inference_model(exe, str(tmp_path), names, [predict])
    assert (tmp_path / "model.onnx").exists()


SIZE, CELLS, CLASSES, ANCHORS = 32, 8, 3, [[6, 6], [12, 12]]


class ConvBN(nn.Layer):
    def __init__(self, cin, cout, k=3, s=1):
        super().__init__()
        kaiming = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.conv = nn.Conv2D(cin, cout, k, s, padding=(k - 1) // 2, bias_attr=False, weight_attr=kaiming)
        free = paddle.ParamAttr(regularizer=L2Decay(0.0))
        self.bn = nn.BatchNorm2D(cout, weight_attr=free, bias_attr=paddle.ParamAttr(regularizer=L2Decay(0.0)))

    def forward(self, x):
        return F.leaky_relu(self.bn(self.conv(x)), 0.1)


class Detector(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(ConvBN(3, 16, s=2), ConvBN(16, 32, s=2))
        self.blocks = nn.LayerList([ConvBN(32, 32) for _ in range(2)])
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.down = ConvBN(32, 32, s=2)
        prior = paddle.ParamAttr(initializer=nn.initializer.Constant(-4.6), regularizer=L2Decay(0.0))
        self.out = nn.Conv2D(64, len(ANCHORS) * (5 + CLASSES), 1, bias_attr=prior)
        self.anchors = paddle.to_tensor(np.array(ANCHORS, "float32"))

    def forward(self, x):
        f = self.stem(x)
        for block in self.blocks:
            f = f + block(f)
        y = self.out(paddle.concat([f, self.up(self.down(f))], 1))
        return y.reshape([paddle.shape(y)[0], len(ANCHORS), 5 + CLASSES, CELLS, CELLS]).transpose([0, 3, 4, 1, 2])

    def decode(self, y):
        yv, xv = paddle.meshgrid([paddle.arange(CELLS), paddle.arange(CELLS)])
        grid = paddle.stack([xv, yv], 2).reshape([1, CELLS, CELLS, 1, 2]).astype("float32")
        xy = (F.sigmoid(y[:, :, :, :, 0:2]) + grid) * (SIZE / CELLS)
        wh = paddle.exp(paddle.clip(y[..., 2:4], -4.0, 4.0)) * self.anchors.reshape([1, 1, 1, -1, 2])
        return paddle.concat([xy - wh / 2, xy + wh / 2], axis=-1)


def iou(a, b, eps=1e-9):
    px1, py1, px2, py2 = a.chunk(4, axis=-1)
    gx1, gy1, gx2, gy2 = b.chunk(4, axis=-1)
    x1, y1 = paddle.maximum(px1, gx1), paddle.maximum(py1, gy1)
    x2, y2 = paddle.minimum(px2, gx2), paddle.minimum(py2, gy2)
    overlap = ((x2 - x1).clip(0)) * ((y2 - y1).clip(0))
    return overlap / ((px2 - px1) * (py2 - py1) + (gx2 - gx1) * (gy2 - gy1) - overlap + eps)


def scenes(rng, n=8):
    img = rng.rand(n, 3, SIZE, SIZE).astype("float32") * 0.1
    tgt = np.zeros([n, CELLS, CELLS, len(ANCHORS), 5], "float32")
    cls = np.zeros([n, CELLS, CELLS, len(ANCHORS)], "int64")
    for i in range(n):
        kind, w = rng.randint(CLASSES), rng.randint(5, 14)
        x0, y0 = rng.randint(0, SIZE - w, 2)
        img[i, kind, y0 : y0 + w, x0 : x0 + w] = 1
        j, k = int((y0 + w / 2) / SIZE * CELLS), int((x0 + w / 2) / SIZE * CELLS)
        tgt[i, j, k, int(w > 9)] = [x0, y0, x0 + w, y0 + w, 1]
        cls[i, j, k, int(w > 9)] = kind
    return {"img": img, "tgt": tgt, "cls": cls}


@pytest.mark.parametrize("level", [None, "O1", "O2"])
def test_a_detection_head(level):
    rng = np.random.RandomState(0)
    img = static.data("img", [None, 3, SIZE, SIZE])
    tgt = static.data("tgt", [None, CELLS, CELLS, len(ANCHORS), 5])
    cls = static.data("cls", [None, CELLS, CELLS, len(ANCHORS)], "int64")
    tgt.stop_gradient = True
    head = Detector()
    y = head(img)
    boxes = head.decode(y)
    obj = tgt[..., 4:5]
    npos = paddle.clip(obj.sum(), min=1.0)
    loss_box = ((1 - iou(boxes, tgt[..., :4])) * obj).sum() / npos
    loss_obj = F.sigmoid_focal_loss(y[..., 4:5], obj, normalizer=npos.reshape([1]))
    onehot = F.one_hot(cls, CLASSES)
    weight = paddle.expand_as(obj, onehot)
    loss_cls = F.binary_cross_entropy_with_logits(y[..., 5:], onehot, weight=weight, reduction="sum") / npos
    positive = paddle.nonzero(obj.squeeze(-1) > 0.5)
    loss_ce = F.cross_entropy(paddle.gather_nd(y[..., 5:], positive), paddle.gather_nd(cls, positive).unsqueeze(-1))
    loss = 2.0 * loss_box + loss_obj + loss_cls + 0.1 * loss_ce
    scores = F.sigmoid(y[..., 4:5]) * F.sigmoid(y[..., 5:])
    top, idx = paddle.topk(scores.flatten(1).astype("float32"), k=3)
    test = static.default_main_program().clone(for_test=True)
    rate = paddle.optimizer.lr.CosineAnnealingDecay(0.01, T_max=100)
    opt = paddle.optimizer.Momentum(rate, 0.9, weight_decay=L2Decay(5e-4), multi_precision=True, use_multi_tensor=True)
    if level:
        opt = static.amp.decorate(opt, level=level, dtype="float16", use_dynamic_loss_scaling=True, master_weight=True)
    opt.minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    if level:
        opt.amp_init(paddle.CPUPlace(), test_program=test, use_fp16_test=True)
    losses = [float(exe.run(feed=scenes(rng), fetch_list=[loss])[0]) for _ in range(40)]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    scores_found, places, corners = exe.run(test, feed=scenes(rng, 4), fetch_list=[top, idx, boxes])
    assert (scores_found.shape, places.dtype, corners.shape) == ((4, 3), np.int64, (4, CELLS, CELLS, 2, 4))
