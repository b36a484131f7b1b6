"""Copying a model with its external data: the same bytes, nothing overwritten, nothing left behind."""

from __future__ import annotations

import errno
import pathlib
import shutil

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import external_data_helper

from amp_transpiler.errors import ModelError, OutputError
from amp_transpiler.files.copy_files import copy_model
from amp_transpiler.files.loading import load
from amp_transpiler.graph.tensors import tensor_bytes

SIZE = 600  # float32: more than what is read into memory when a model is loaded
LARGE = np.arange(SIZE, dtype=np.float32)
SMALL = np.arange(4, dtype=np.float32)


def make(folder, locations=(), arrays=(LARGE, SMALL)):
    """Write m.onnx with two weights and return its path; `locations` are the weights' files, inline without."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N,1] x) => (float[N,M] y, float[N,K] z)'
        " { y = Mul(x, a) z = Mul(x, b) }"
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip("ab", arrays, strict=True):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for tensor, location in zip(model.graph.initializer, locations, strict=bool(locations)):
        file = folder / location
        file.parent.mkdir(parents=True, exist_ok=True)
        offset = file.stat().st_size if file.exists() else 0
        with file.open("ab") as stream:
            stream.write(tensor.raw_data)
        external_data_helper.set_external_data(tensor, location, offset=offset, length=len(tensor.raw_data))
        tensor.ClearField("raw_data")
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


LAYOUTS = {
    "inline": (),
    "one file": ("m.onnx.data", "m.onnx.data"),
    "nested": ("weights/deep/a.bin", "weights/b.bin"),
    "of small weights only": ("a.bin", "small.bin"),  # read into memory when loaded: nothing points at the file then
    "written oddly": ("./a.bin", "weights/./b.bin"),
}
layouts = pytest.mark.parametrize("locations", LAYOUTS.values(), ids=LAYOUTS.keys())


@layouts
def test_another_folder_gets_the_same_bytes_under_the_same_names(tmp_path, locations):
    source = make(tmp_path / "in", locations)
    out = tmp_path / "out"
    out.mkdir()
    written = copy_model(source, out / "m.onnx")
    assert tree(out) == tree(source.parent)
    assert written == sum(len(data) for data in tree(out).values() if data is not None)
    assert len(list(tensor_bytes(load(out / "m.onnx").model))) == 2


@layouts
def test_the_same_folder_gets_the_model_alone(tmp_path, locations):
    source = make(tmp_path, locations)
    before = tree(tmp_path)
    assert copy_model(source, tmp_path / "copy.onnx") == source.stat().st_size
    assert tree(tmp_path) == {**before, "copy.onnx": source.read_bytes()}


def test_what_does_not_normalise_is_copied_as_it_is(tmp_path):
    source = make(tmp_path)
    odd = source.read_bytes() + b"\xd2\x3e\x03abc"  # field 1002, which ONNX does not have
    source.write_bytes(odd)
    copy_model(source, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == odd


@pytest.mark.parametrize("link", [None, "symlink_to", "hardlink_to"])
def test_onto_itself_nothing_is_done(tmp_path, link):
    source = make(tmp_path, LAYOUTS["nested"])
    destination = source if link is None else tmp_path / "link.onnx"
    if link is not None:
        getattr(destination, link)(source)
    before = tree(tmp_path)
    assert copy_model(source, destination) == source.stat().st_size
    assert tree(tmp_path) == before


def test_an_old_model_is_replaced(tmp_path):
    source = make(tmp_path / "in")
    (tmp_path / "m.onnx").write_bytes(b"old")
    copy_model(source, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == source.read_bytes()


def test_identical_external_data_is_left_alone_and_not_counted(tmp_path):
    source = make(tmp_path / "in", LAYOUTS["nested"])
    out = tmp_path / "out"
    shutil.copytree(source.parent / "weights", out / "weights")
    before = (out / "weights/b.bin").stat()
    assert copy_model(source, out / "m.onnx") == source.stat().st_size
    assert tree(out) == tree(source.parent)
    assert (out / "weights/b.bin").stat().st_ino == before.st_ino


# ---- what is refused, and leaves everything as it was ----


def other_data(out):
    (out / "weights").mkdir()
    (out / "weights/b.bin").write_bytes(bytes(SMALL.nbytes))  # as long, but different


def folder_in_the_way(out):
    (out / "weights/b.bin").mkdir(parents=True)


def file_in_the_way(out):
    (out / "weights").write_bytes(b"no folder")


def linked_data(out):
    (out / "weights").mkdir()
    (out / "weights/b.bin").symlink_to(out.parent / "in/weights/b.bin")


@pytest.mark.parametrize(
    ("prepare", "name", "words"),
    [
        (other_data, "m.onnx", r"would replace .*b\.bin, which differs and belongs to another model"),
        (folder_in_the_way, "m.onnx", r"b\.bin, which is not a regular file"),
        (file_in_the_way, "m.onnx", r"weights.*; nothing was left behind"),
        (linked_data, "m.onnx", r"b\.bin, a symbolic link"),
        (lambda _out: None, "absent/m.onnx", "does not exist; create it first"),
        (lambda out: (out / "m.onnx").mkdir(), "m.onnx", "not a regular file"),
    ],
)
def test_a_place_that_will_not_do_stays_as_it_was(tmp_path, prepare, name, words):
    source = make(tmp_path / "in", LAYOUTS["nested"])
    out = tmp_path / "out"
    out.mkdir()
    prepare(out)
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=words):
        copy_model(source, out / name)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("destination", "words"),
    [("a.bin", "is external data of"), ("small.bin", "is external data of"), ("out/a.bin", "has the same name, a.bin")],
)
def test_a_model_never_takes_the_place_of_its_weights(tmp_path, destination, words):
    source = make(tmp_path, LAYOUTS["of small weights only"])
    (tmp_path / "out").mkdir()
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=words):
        copy_model(source, tmp_path / destination)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("lost", ["weights/deep/a.bin", "weights/b.bin"])
def test_missing_external_data_is_said_as_when_loading(tmp_path, lost):
    source = make(tmp_path / "in", LAYOUTS["nested"])
    (source.parent / lost).unlink()
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ModelError, match=f"is missing: no file .*{lost}") as copying:
        copy_model(source, out / "m.onnx")
    with pytest.raises(ModelError) as loading:
        load(source)
    assert str(copying.value) == str(loading.value)
    assert tree(out) == {}


def test_a_source_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no protobuf")
    with pytest.raises(ModelError, match="not an ONNX model"):
        copy_model(tmp_path / "m.onnx", tmp_path / "copy.onnx")
    assert list(tree(tmp_path)) == ["m.onnx"]


def fail_at(monkeypatch, module, name, number):
    """Make the `number`th call of a function that writes fail as on a full disk."""
    true, calls = getattr(module, name), []

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return true(*args, **options)

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("module", "name"), [(shutil, "copyfile"), (pathlib.Path, "replace")], ids=["while copying", "while moving"]
)
def test_a_full_disk_leaves_the_old_model_and_nothing_else(tmp_path, monkeypatch, module, name, number):
    source = make(tmp_path / "in", LAYOUTS["nested"])
    out = tmp_path / "out"
    out.mkdir()
    (out / "m.onnx").write_bytes(b"old")
    before = tree(tmp_path)
    fail_at(monkeypatch, module, name, number)
    with pytest.raises(OutputError, match="No space left on device; nothing was left behind"):
        copy_model(source, out / "m.onnx")
    assert tree(tmp_path) == before
