"""External weights: read from where ONNX Runtime reads them, refused with the file's name elsewhere."""

import os

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import ModelError
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import save
from amp_transpiler.runtime.ort import ORT_ERRORS

TEXT = """<ir_version: 10, opset_import: ["" : 17]>
g (float[N,64] x) => (float[N,64] y) { y = MatMul (x, w) }"""
WEIGHTS = (np.arange(64 * 64, dtype=np.float32) % 7).reshape(64, 64)


def _written(folder, *, file="w.bin", dims=(64, 64), size=None, **entries):
    model = onnx.parser.parse_model(TEXT)
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": "w.bin", "offset": "0", "length": str(WEIGHTS.nbytes)} | entries).items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    if file is not None:
        (folder / file).write_bytes(WEIGHTS.tobytes()[:size])
    return folder / "m.onnx"


def _loads_in_onnx_runtime(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except (*ORT_ERRORS, UnicodeDecodeError):
        return False
    return True


def _hard_link(folder):
    path = _written(folder)
    os.link(folder / "w.bin", folder / "other.bin")
    return path


def _link_inside(folder):
    path = _written(folder, file="blob")
    (folder / "w.bin").symlink_to("blob")
    return path


def _store(folder):
    """Links to blobs beside each other, as Hugging Face's cache has them."""
    _written(folder / "blobs", file="b").rename(folder / "blobs" / "a")
    (folder / "snapshot").mkdir()
    (folder / "snapshot" / "m.onnx").symlink_to("../blobs/a")
    (folder / "snapshot" / "w.bin").symlink_to("../blobs/b")
    return folder / "snapshot" / "m.onnx"


READ = {
    "plain": _written,
    "hard link": _hard_link,
    "symbolic link inside": _link_inside,
    "a store of blobs": _store,
    "no length": lambda folder: _written(folder, length=None),
    "length 0": lambda folder: _written(folder, length="0"),
    "no offset": lambda folder: _written(folder, offset=None),
    "checksum": lambda folder: _written(folder, checksum="abc"),
    "a backslash in the name": lambda folder: _written(folder, location="a\\b", file="a\\b"),
}


def _link_outside(folder):
    path = _written(folder / "m", file=None)
    (folder / "w.bin").write_bytes(WEIGHTS.tobytes())
    (folder / "m" / "w.bin").symlink_to("../w.bin")
    return path


def _pipe(folder):
    path = _written(folder, file=None)
    os.mkfifo(folder / "w.bin")
    return path


REFUSED = {
    "missing": (lambda folder: _written(folder, file=None), "'w' is missing: no file 'w.bin'"),
    "short file": (lambda folder: _written(folder, size=100), "w.bin has 100: the file is truncated"),
    "short length": (lambda folder: _written(folder, length="60"), "has 16384 bytes, length 60"),
    "link outside": (_link_outside, "points outside the model's folder"),
    "above": (lambda folder: _written(folder, location="../w.bin"), "points outside the model's folder"),
    "absolute": (lambda folder: _written(folder, location=str(folder / "w.bin")), "points outside the model's folder"),
    "folder": (lambda folder: _written(folder, location="."), "points outside the model's folder"),
    "pipe": (_pipe, "is not a regular file"),
    "Windows path": (lambda folder: _written(folder, location="a\\w.bin"), r"write the location with / for \\"),
    "name too long": (lambda folder: _written(folder, location="x" * 300), "File name too long"),
    "NUL": (lambda folder: _written(folder, location="x\0y"), r"x\\x00y"),
    "no location": (lambda folder: _written(folder, location=None), "has no location"),
    "empty location": (lambda folder: _written(folder, location=""), "has no location"),
    "negative sizes": (lambda folder: _written(folder, dims=(-64, 64)), r"'w' has dimensions \[-64, 64\]"),
    "two negative sizes": (lambda folder: _written(folder, dims=(-64, -64)), r"'w' has dimensions \[-64, -64\]"),
    "huge sizes": (lambda folder: _written(folder, dims=(2**40, 2**40)), "'w' has dimensions"),
    "negative offset": (lambda folder: _written(folder, offset="-4"), "offset '-4', which is no size"),
    "negative length": (lambda folder: _written(folder, length="-4"), "length '-4', which is no size"),
    "words": (lambda folder: _written(folder, offset="\x1b[31m"), r"offset '\\x1b\[31m', which is no size"),
    "huge length": (lambda folder: _written(folder, length="9" * 400), "the file is truncated"),
}


@pytest.mark.parametrize("make", READ.values(), ids=READ)
def test_read_from_where_onnx_runtime_reads_it(make, tmp_path):
    path = make(tmp_path)
    assert _loads_in_onnx_runtime(path)
    program = load(path)
    np.testing.assert_array_equal(program.model.graph.initializers["w"].const_value.numpy(), WEIGHTS)
    amp.transpile(path, tmp_path / "low.onnx", level="O2", inputs={"x": np.ones((1, 64), np.float32)})
    assert _loads_in_onnx_runtime(tmp_path / "low.onnx")


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_name_of_the_file(make, words, tmp_path):
    path = make(tmp_path)
    with pytest.raises(ModelError, match=words) as caught:
        load(path)
    assert len(str(caught.value)) <= 300
    assert str(caught.value).isprintable()
    assert not _loads_in_onnx_runtime(path)


@pytest.mark.parametrize("make", [_hard_link, _link_inside, _store])
def test_copied_under_the_names_that_the_model_gives(make, tmp_path):
    source = make(tmp_path)
    (tmp_path / "out").mkdir()
    amp.transpile(source, tmp_path / "out" / "copy.onnx", level="O0")
    assert (tmp_path / "out" / "w.bin").read_bytes() == WEIGHTS.tobytes()
    assert _loads_in_onnx_runtime(tmp_path / "out" / "copy.onnx")


def test_a_model_read_elsewhere_is_looked_at_too(tmp_path):
    path = _written(tmp_path)
    model = ir.load(path)
    (tmp_path / "w.bin").unlink()
    for source in (model, onnx.load(path, load_external_data=False)):
        with pytest.raises(ModelError, match=r"external data of 'w': .*w\.bin' cannot be read: .*No such file"):
            load(source)


def truncated(file):
    os.truncate(file, file.stat().st_size // 2)


def emptied(file):
    os.truncate(file, 0)


def overwritten(file):
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))
    os.utime(file, ns=(0, 1))


def replaced(file):
    other = file.with_name("other")
    other.write_bytes(bytes(file.stat().st_size))
    other.replace(file)


def lengthened(file):
    with file.open("ab") as opened:
        opened.write(b"more")


def removed(file):
    file.unlink()


READS = {
    "numpy": lambda tensor, _: tensor.numpy(),
    "array": lambda tensor, _: np.asarray(tensor),
    "bytes": lambda tensor, _: tensor.tobytes(),
    "file": lambda tensor, folder: to_file(tensor, folder / "copy"),
}


def to_file(tensor, place):
    with place.open("wb") as file:
        tensor.tofile(file)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("change", [truncated, emptied, overwritten, replaced, lengthened, removed])
def test_weights_that_change_after_they_were_loaded_are_an_error_and_no_crash(tmp_path, change, read):
    array = np.arange(100_000, dtype=np.float32)
    graph = onnx.parser.parse_graph("g (float[100000] x) => (float[100000] y) { y = Add(x, w) }")
    graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    program = load(tmp_path / "m.onnx")
    tensor = program.model.graph.initializers["w"].const_value
    np.testing.assert_array_equal(tensor.numpy(), array)
    held = tensor.numpy()
    change(tmp_path / "m.data")
    with pytest.raises(ModelError, match="changed since the model was loaded"):
        READS[read](tensor, tmp_path)
    with pytest.raises(ModelError, match="changed since the model was loaded"):
        save(program, tmp_path / "result.onnx")
    assert not [*tmp_path.glob("result*"), *tmp_path.glob(".amp*")]
    np.testing.assert_array_equal(held, array)
