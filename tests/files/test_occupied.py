"""Which files are taken: those of sources and results, by whatever name."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.files.occupied import belongs_to_result, files_of, occupied


def make(folder, location=None):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N,600] x) => (float[N,600] y) { y = Mul(x, a) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(600, dtype=np.float32), "a"))
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=location is not None, location=location, size_threshold=0)
    return path


def link(kind):
    def name(folder):
        (folder / "other").mkdir()
        place = folder / "other" / "name"
        getattr(place, kind)(folder / "w.bin")
        return place

    return name


# a place to write, and the file of the source that it is
PLACES = {
    "the model": (lambda folder: folder / "m.onnx", "m.onnx"),
    "its weights": (lambda folder: folder / "w.bin", "w.bin"),
    "written oddly": (lambda folder: folder / "other" / ".." / "w.bin", "w.bin"),
    "through a symbolic link": (link("symlink_to"), "w.bin"),
    "through a hard link": (link("hardlink_to"), "w.bin"),
    "free": (lambda folder: folder / "w.bin2", None),
    "free, elsewhere": (lambda folder: folder / "other" / "w.bin", None),
}


@pytest.mark.parametrize("loaded", [True, False], ids=["program", "path"])
@pytest.mark.parametrize("name", PLACES)
def test_a_file_of_the_source_is_told_by_whatever_name(tmp_path, name, loaded):
    place, expected = PLACES[name]
    model = make(tmp_path, "w.bin")
    path = occupied(place(tmp_path), [load(model) if loaded else model])
    assert path == (None if expected is None else (tmp_path / expected).resolve())


@pytest.mark.parametrize("loaded", [True, False], ids=["program", "path"])
def test_files_of_a_model_in_a_linked_folder_are_resolved(tmp_path, loaded):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    make(tmp_path / "real", "w.bin")
    path = tmp_path / "link" / "m.onnx"
    real = (tmp_path / "real").resolve()
    assert files_of(load(path) if loaded else path) == {real / "m.onnx", real / "w.bin"}


def test_a_path_that_is_no_model_is_a_file_all_the_same(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no protobuf")
    assert files_of(tmp_path / "m.onnx") == {(tmp_path / "m.onnx").resolve()}


def test_a_model_in_memory_has_no_files(tmp_path):
    assert files_of(load(onnx.load(make(tmp_path)))) == set()


RESULTS = {
    "out.onnx": True,
    "out.onnx.data": False,
    "out.onnx.0123456789abcdef.data": True,
    "out.onnx.0123456789abcde.data": False,
    "out.onnx.0123456789ABCDEF.data": False,
    "out.onnx.json": False,
    "out.onnxdata": False,
    "other.onnx.data": False,
    "sub/out.onnx.data": False,
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_files_of_a_result_are_told_before_it_is_written(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert belongs_to_result(name, tmp_path / "out.onnx") == RESULTS[name]
