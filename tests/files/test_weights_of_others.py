"""No weights are deleted or overwritten that anybody else may need, nor what a user has under our names."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pathlib
import shutil
import stat
import tarfile
import zipfile

import numpy as np
import onnx
import pytest

from amp_transpiler.errors import OutputError
from amp_transpiler.files import mentions, staging
from amp_transpiler.files.copy_files import copy_model
from amp_transpiler.files.durable import write_file
from amp_transpiler.files.saving import save
from tests.files.saved import data_of, held, names, ours, proto, weights


@pytest.fixture
def folder(tmp_path):
    """The folder of a result, two folders below the top."""
    place = tmp_path / "above" / "out"
    place.mkdir(parents=True)
    ours(place)
    return place


def content(folder):
    return (folder / "m.onnx").read_bytes()


def packed_zip(folder, text):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model", text)
    return buffer.getvalue()


def packed_tar(folder, mode):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        archive.add(folder / "m.onnx", "m.onnx")
    return buffer.getvalue()


def in_folder_above(folder):
    """A model beside the folder: it names the weights by a path."""
    model = onnx.load(folder / "m.onnx", load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = f"out/{entry.value}"
    (folder.parent / "model").write_bytes(model.SerializeToString())


def link_from(place, folder):
    place.mkdir(exist_ok=True)
    (place / "weights").symlink_to(data_of(folder / "m.onnx"))


# Who else may need the weights of m.onnx -> what makes it, given the folder.
NAMED = {
    "a backup": lambda folder: shutil.copy(folder / "m.onnx", folder / "m.onnx.bak"),
    "a backup of an editor": lambda folder: shutil.copy(folder / "m.onnx", folder / "m.onnx~"),
    "a model without suffix": lambda folder: shutil.copy(folder / "m.onnx", folder / "model"),
    "a hidden copy": lambda folder: shutil.copy(folder / "m.onnx", folder / ".m.onnx.swp"),
    "a twin": lambda folder: shutil.copy(folder / "m.onnx", folder / "twin.onnx"),
    "a link to a twin": lambda folder: (folder / "t").symlink_to(shutil.copy(folder / "m.onnx", folder.parent / "t")),
    "a model above": in_folder_above,
    "a list of files": lambda folder: (folder / "index.json").write_text(f'["{data_of(folder / "m.onnx").name}"]'),
    "bytes of another format": lambda folder: (folder / "x.ort").write_bytes(b"\0\xff" + content(folder)),
    "gzip": lambda folder: (folder / "m.onnx.gz").write_bytes(gzip.compress(content(folder))),
    "bzip2": lambda folder: (folder / "backup").write_bytes(bz2.compress(content(folder))),
    "xz": lambda folder: (folder / "m.xz").write_bytes(lzma.compress(content(folder))),
    "zip": lambda folder: (folder / "m.zip").write_bytes(packed_zip(folder, content(folder))),
    "tar": lambda folder: (folder.parent / "m.tar").write_bytes(packed_tar(folder, "w")),
    "a packed tar": lambda folder: (folder.parent / "m.tgz").write_bytes(packed_tar(folder, "w:gz")),
    "zstd": lambda folder: (folder / "m.zst").write_bytes(b"\x28\xb5\x2f\xfd..."),
    "a zip in a zip": lambda folder: (folder / "z").write_bytes(packed_zip(folder, packed_zip(folder, b"x"))),
    "a broken zip": lambda folder: (folder / "z").write_bytes(packed_zip(folder, content(folder))[:-30]),
    "a link beside": lambda folder: link_from(folder, folder),
    "a link above": lambda folder: link_from(folder.parent, folder),
    "a link below": lambda folder: link_from(folder / "snapshot", folder),
}


def copying(folder):
    source = folder.parent.parent / "in"
    source.mkdir()
    onnx.save(proto(2), source / "s.onnx")
    copy_model(source / "s.onnx", folder / "m.onnx")


WRITERS = {"save": lambda folder: save(proto(2), folder / "m.onnx", external=True), "copy": copying}


@pytest.mark.parametrize("case", NAMED)
def test_weights_that_anybody_else_may_name_stay(folder, case):
    before = data_of(folder / "m.onnx")
    NAMED[case](folder)
    WRITERS["save"](folder)
    assert before.exists()
    np.testing.assert_array_equal(held(folder / "m.onnx"), weights(2))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_backup_still_loads(folder, writer):
    shutil.copy(folder / "m.onnx", folder / "m.onnx.bak")
    WRITERS[writer](folder)
    np.testing.assert_array_equal(held(folder / "m.onnx"), weights(2))
    np.testing.assert_array_equal(held(folder / "m.onnx.bak"), weights(1))


def test_looking_takes_no_longer_than_some_seconds(folder, monkeypatch):
    monkeypatch.setattr(mentions, "_SECONDS", -1.0)
    before = data_of(folder / "m.onnx")
    (folder / "large").write_bytes(b"x")
    WRITERS["save"](folder)
    assert before.exists()


def torch_s_naming(folder):
    onnx.save(proto(1), folder / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)


def a_hash_that_is_none(folder):
    name = "m.onnx.0123456789abcdef.data"
    onnx.save(proto(1), folder / "m.onnx", save_as_external_data=True, location=name, size_threshold=0)


def a_link_to_the_users_store(folder):
    ours(folder)
    data = data_of(folder / "m.onnx")
    data.rename(folder.parent / "store")
    data.symlink_to(folder.parent / "store")


def changed_since(folder):
    ours(folder)
    with data_of(folder / "m.onnx").open("r+b") as file:
        file.write(b"\1")


def another_name(folder):
    onnx.save(proto(1), folder / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)


def of_another_result(folder):
    """The result was renamed: its weights have the name that it had."""
    save(proto(1), folder / "n.onnx", external=True)
    (folder / "n.onnx").rename(folder / "m.onnx")


@pytest.mark.parametrize(
    "make",
    [torch_s_naming, a_hash_that_is_none, a_link_to_the_users_store, changed_since, another_name, of_another_result],
)
@pytest.mark.parametrize("writer", WRITERS)
def test_weights_that_this_package_did_not_write_stay(tmp_path, make, writer):
    out = tmp_path / "above" / "out"
    out.mkdir(parents=True)
    make(out)
    before = {path for path in out.iterdir() if path.name != "m.onnx"}
    assert before
    WRITERS[writer](out)
    assert before <= set(out.iterdir())


# ---- overwriting ----


def of_a_model(folder, name):
    onnx.save(proto(1), folder / "other.model", save_as_external_data=True, location=name, size_threshold=0)
    return folder / name


@pytest.mark.parametrize("name", ["other.onnx.data", "w.bin", "result.onnx", "report.json", "sub/w.safetensors"])
@pytest.mark.parametrize(
    "write", [lambda place: save(proto(2), place), lambda place: write_file(place, b"text")], ids=["model", "report"]
)
def test_nothing_is_written_over_the_weights_of_a_model(tmp_path, name, write):
    (tmp_path / "sub").mkdir()
    place = of_a_model(tmp_path, name)
    before = place.read_bytes()
    with pytest.raises(OutputError, match=r"holds weights of .*other\.model; choose another output"):
        write(place)
    assert place.read_bytes() == before


def test_what_only_has_its_name_in_a_model_is_written(tmp_path):
    model = proto(1)
    model.doc_string = "see report.json"
    onnx.save(model, tmp_path / "other.onnx")
    (tmp_path / "report.json").write_bytes(b"old")
    write_file(tmp_path / "report.json", b"new")
    assert (tmp_path / "report.json").read_bytes() == b"new"


# ---- names of ours that a user has taken ----


def make_folder(place, *members):
    place.mkdir()
    for name in members:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"precious")


STAGED = f"{staging._PREFIX}abcd1234"
TAKEN = {
    "a folder": lambda place: make_folder(place / ".amp-transpiler-backups", "w"),
    "a folder with the form of ours": lambda place: make_folder(place / ".amp-transpiler-abcd1234", "lock", "new/w"),
    "a folder of our name": lambda place: make_folder(place / STAGED, "w"),
    "a folder of ours with more in it": lambda place: make_folder(place / STAGED, staging._LOCK, "w"),
    "a pipe in a folder": lambda place: (
        make_folder(place / ".amp-transpiler-x"),
        os.mkfifo(place / ".amp-transpiler-x" / "lock"),
    ),
    "a pipe in a folder of our name": lambda place: (
        make_folder(place / STAGED),
        os.mkfifo(place / STAGED / staging._LOCK),
    ),
    "a link": lambda place: (
        make_folder(place / "real", staging._LOCK, "new/w"),
        (place / STAGED).symlink_to(place / "real"),
    ),
    "a pipe as lock": lambda place: os.mkfifo(place / staging._PLACE_LOCK),
    "a folder as lock": lambda place: make_folder(place / staging._PLACE_LOCK),
    "a link as lock": lambda place: (place / staging._PLACE_LOCK).symlink_to("m.onnx"),
    "a link to nothing as lock": lambda place: (place / staging._PLACE_LOCK).symlink_to("no"),
    "a file as lock": lambda place: (place / staging._PLACE_LOCK).write_bytes(b"precious"),
}


def kinds(folder):
    return {
        str(path.relative_to(folder)): stat.S_IFMT(path.lstat().st_mode) for path in pathlib.Path(folder).rglob("*")
    }


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("external", [True, False])
def test_what_a_user_has_under_our_names_stays_and_stops_nothing(tmp_path, case, external):
    TAKEN[case](tmp_path)
    before = kinds(tmp_path)
    save(proto(2), tmp_path / "result.onnx", external=external)
    left = kinds(tmp_path)
    assert before.items() <= left.items()
    assert len(left) == len(before) + 1 + external
    np.testing.assert_array_equal(held(tmp_path / "result.onnx"), weights(2))


def test_an_empty_folder_that_a_dead_process_made_goes(tmp_path):
    (tmp_path / STAGED).mkdir()
    save(proto(2), tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx"]
