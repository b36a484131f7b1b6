"""Files that are written whole or not at all, and places where none can be written."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from amp_transpiler.errors import OutputError
from amp_transpiler.files.durable import regular_place, replacing, write_file


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far/file")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["far", "far/file", "link"]


def test_a_link_to_a_file_that_is_not_there_yet_is_followed(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_has_the_usual_permissions(tmp_path):
    mask = os.umask(0o027)
    try:
        write_file(tmp_path / "a", b"")
    finally:
        os.umask(mask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_devices_and_pipes_are_written_into():
    write_file("/dev/null", b"gone")
    assert not pathlib.Path("/dev/null").is_file()
    reading, writing = os.pipe()
    write_file(f"/proc/self/fd/{writing}", b"text")
    assert os.read(reading, 10) == b"text"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch, error):
    (tmp_path / "a").write_bytes(b"old")

    def failing(handle):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputError, match=f"{os.strerror(error)}; what was there is kept"):
        write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_an_interrupt_leaves_what_was_there(tmp_path):
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as file:  # noqa: PT012
        file.write(b"half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


NO_PLACES = {
    "empty": ("", "is a folder"),
    "the current folder": (".", "is a folder"),
    "a folder": ("{folder}/sub", "is a folder"),
    "a name too long": ("{folder}/" + "n" * 300, "File name too long"),
    "a path too long": ("{folder}" + "/n" * 3000, "File name too long"),
    "a null character": ("{folder}/a\0b", "null"),
    "a loop of links": ("{folder}/loop", "leads nowhere"),
    "a pipe": ("{folder}/pipe", "not a regular file"),
    "stdout": ("/dev/stdout", "belongs to the system"),
    "a new device": ("/dev/model.onnx", "belongs to the system"),
    "a descriptor": ("/proc/self/fd/1", "belongs to the system"),
    "a link to a device": ("{folder}/device", "belongs to the system"),
}


@pytest.mark.parametrize("name", NO_PLACES)
def test_where_no_file_can_be_written(tmp_path, name):
    place, words = NO_PLACES[name]
    (tmp_path / "sub").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    with pytest.raises(OutputError, match=words) as raised:
        regular_place(pathlib.Path(place.format(folder=tmp_path)))
    assert "\n" not in str(raised.value)
    assert names(tmp_path) == before


def test_memory_is_a_place():
    assert regular_place(pathlib.Path("/dev/shm/model.onnx")) == pathlib.Path("/dev/shm/model.onnx")
