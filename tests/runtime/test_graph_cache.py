"""The cache of optimized graphs: what is kept and found, what makes an entry another one, how it stays small."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import os

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from amp_transpiler import Session
from amp_transpiler.files import user_cache
from amp_transpiler.runtime import graph_cache
from amp_transpiler.runtime.ort import SessionSettings
from amp_transpiler.runtime.places import CPUPlace

TEXT = """<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] w = {1,2,3,4, 5,6,7,8, 9,8,7,6, 5,4,3,2}>
{ h = MatMul(x, w) r = Relu(h) two = Constant<value_float = 2.0>() z = Mul(two, two) y = Mul(r, z) }"""
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
LOGGER = "amp_transpiler.runtime.graph_cache"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(user_cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def model(text=TEXT):
    return onnx.parser.parse_model(text)


def run(proto, **options):
    with Session(proto, CPUPlace(), **options) as session:
        return session.run({"x": X})[0]


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_graph_is_kept_and_found_and_computes_the_same(folder, caplog):
    plain = run(model(), cache=False)
    assert not folder.exists()
    with caplog.at_level(logging.INFO, logger=LOGGER):
        first, second = run(model(), cache=True), run(model(), cache=True)
    assert first.tobytes() == second.tobytes() == plain.tobytes()
    assert [record.getMessage().split(" from ")[0] for record in caplog.records] == ["the optimized graph comes"]
    [name] = entries(folder)
    entry = onnx.load(folder / name)
    assert len(entry.graph.node) < len(model().graph.node)  # the constants are folded


def test_a_cpu_session_keeps_nothing_unless_asked(folder):
    run(model())
    assert not folder.exists()


@pytest.mark.parametrize("change", ["model", "settings", "version", "options", "device"])
def test_what_the_graph_depends_on_makes_another_entry(folder, monkeypatch, change):
    options, device = {"device_id": "0"}, "a"
    message, settings = model().SerializeToString(), SessionSettings(cached=True)

    def keep():
        providers = [("CPUExecutionProvider", options)]
        open_ = lambda form, how: CPUPlace().open_session(form, how)  # noqa: E731
        graph_cache.open_cached(message, settings, providers, device, open_)

    keep()
    keep()
    assert len(entries(folder)) == 1
    if change == "model":
        message = model(TEXT.replace("1,2,3", "1,2,4")).SerializeToString()
    elif change == "settings":
        settings = dataclasses.replace(settings, fuse=False)
    elif change == "version":
        monkeypatch.setattr(graph_cache, "_versions", lambda: ("another",))
    elif change == "options":
        options = {"device_id": "1"}
    else:
        device = "b"
    keep()
    assert len(entries(folder)) == 2


def test_a_stream_makes_no_other_entry():
    where = [graph_cache._lasting([("CUDA", {"a": "1", "user_compute_stream": stream}), "CPU"]) for stream in "34"]
    assert where[0] == where[1] == [("CUDA", [("a", "1")]), "CPU"]


def test_a_damaged_entry_is_replaced(folder, caplog):
    expected = run(model(), cache=True)
    [name] = entries(folder)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        assert run(model(), cache=True).tobytes() == expected.tobytes()
    assert "is not used, and removed" in caplog.text
    assert (folder / name).read_bytes() == whole


def test_the_least_recently_used_go(folder, monkeypatch):
    texts = [TEXT.replace("value_float = 2.0", f"value_float = {i}.0") for i in range(3)]
    names = []
    for age, text in enumerate(texts):
        run(model(text), cache=True)
        [new] = set(entries(folder)) - set(names)
        names.append(new)
        os.utime(folder / new, (age, age))
    run(model(texts[0]), cache=True)  # the oldest is used again
    monkeypatch.setattr(user_cache, "_room", lambda: 2 * (folder / names[0]).stat().st_size + 100)
    run(model(TEXT.replace("9,8", "9,9")), cache=True)
    left = entries(folder)
    assert names[0] in left
    assert len(left) == 2


@pytest.mark.parametrize("word", ["off", "0", "OFF"])
def test_the_cache_can_be_switched_off(monkeypatch, word):
    monkeypatch.setenv(user_cache.FOLDER_VARIABLE, word)
    assert graph_cache.cache_folder() is None


def test_the_folder_is_the_user_s(monkeypatch, tmp_path):
    monkeypatch.delenv(user_cache.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert graph_cache.cache_folder() == tmp_path / "amp_transpiler" / "graphs"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert graph_cache.cache_folder() == tmp_path / ".cache" / "amp_transpiler" / "graphs"


def test_a_folder_that_cannot_be_written_only_warns(folder, caplog):
    folder.write_text("a file")
    assert run(model(), cache=True).tobytes() == run(model()).tobytes()
    assert "cannot be kept" in caplog.text


def test_weights_in_files_are_left_out_with_the_reason(folder, tmp_path, caplog):
    path, proto = tmp_path / "model.onnx", model()
    [weight] = proto.graph.initializer
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), "w"))  # as bytes, which can move
    onnx.save(proto, path, save_as_external_data=True, location="weights", size_threshold=0)
    with caplog.at_level(logging.INFO, logger=LOGGER):
        assert run(path, cache=True).tobytes() == run(model()).tobytes()
    assert "is not kept: its weights lie in files of their own" in caplog.text
    assert not folder.exists()


def test_a_bad_size_is_said(monkeypatch, caplog):
    monkeypatch.setenv(user_cache.SIZE_VARIABLE, "much")
    assert user_cache._room() == 4096 << 20
    assert "AMP_TRANSPILER_CACHE_MB=much is no number" in caplog.text


def test_many_at_once_make_one_whole_entry(folder):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(model(), cache=True), range(8)))
    assert len({array.tobytes() for array in results}) == 1
    [name] = entries(folder)
    assert onnx.load(folder / name).graph.node
