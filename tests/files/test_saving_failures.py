"""Writing that is refused, fails, meets other writers, or dies."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
import sys
import time
import warnings

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from amp_transpiler.errors import OutputError
from amp_transpiler.files import file_lock, saving, staging
from amp_transpiler.files.durable import write_file
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import save, stage
from tests.files.saved import data_of, held, names, ours, proto, weights

# ---- places that are refused ----


def test_a_place_without_a_folder_or_without_the_right_to_write_is_refused(tmp_path, monkeypatch):
    with pytest.raises(OutputError, match=r"the folder .*nowhere does not exist; create it first"):
        save(proto(), tmp_path / "nowhere" / "m.onnx")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match=r"the folder .* is not writable"):
        save(proto(), tmp_path / "m.onnx")
    assert names(tmp_path) == []


def test_the_sources_own_file_is_never_overwritten(tmp_path):
    save(proto(1), tmp_path / "m.onnx")
    with pytest.raises(OutputError, match="output and input are the same file; the source is never overwritten"):
        save(load(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    np.testing.assert_array_equal(held(tmp_path / "m.onnx"), weights(1))


# ---- failures and other writers ----


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, OutputError), (errno.EBUSY, OutputError), (errno.ENOTCONN, OSError)]
)
@pytest.mark.parametrize("external", [True, False])
def test_a_write_that_fails_is_an_output_error_where_the_place_is_at_fault(
    tmp_path, monkeypatch, number, kind, external
):
    ours(tmp_path)
    before = names(tmp_path)

    def failing(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(onnx, "save_model", failing)
    with pytest.raises(kind, match=os.strerror(number)):
        save(proto(2), tmp_path / "m.onnx", external=external)
    assert names(tmp_path) == before
    np.testing.assert_array_equal(held(tmp_path / "m.onnx"), weights(1))


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="reads /proc")
def test_an_error_that_is_told_once_is_not_missed(tmp_path, monkeypatch):
    """Linux tells of a lost write at the first flush alone."""
    told, fsync = [], os.fsync

    def failing(handle):
        if pathlib.Path(f"/proc/self/fd/{handle}").readlink().suffix == ".data" and not told:
            told.append(handle)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputError, match="Input/output error"):
        save(proto(), tmp_path / "m.onnx", external=True)
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["unload_from_model", "data_name"])
def test_weights_that_cannot_be_written_leave_nothing(tmp_path, monkeypatch, step):
    ours(tmp_path)
    before = names(tmp_path)
    program = load(proto(2))
    place = {"unload_from_model": ir.external_data, "data_name": saving}[step]
    plain = getattr(place, step)

    def failing(*arguments, **options):
        plain(*arguments, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(place, step, failing)
    with pytest.raises(OutputError, match="No space left on device; nothing was left behind"):
        save(program, tmp_path / "m.onnx", external=True)
    assert names(tmp_path) == before
    np.testing.assert_array_equal(program.model.graph.initializers["w"].const_value.numpy(), weights(2))


@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize("room", [0, 1, 4096, 100_000, 399_999, 500_000])
def test_a_disk_that_fills_up_leaves_the_old_file_and_one_message(tmp_path, room, external):
    """A limit on the size of files ends a write where a full disk would."""
    graph = onnx.parser.parse_graph("g (float[100000] x) => (float[100000] y) { s = Add(x, v) y = Add(s, w) }")
    for name in "vw":
        graph.initializer.append(onnx.numpy_helper.from_array(np.ones(100_000, np.float32), name))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    (tmp_path / "m.onnx").write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OutputError, match=r"cannot be written.*nothing was left behind"):
            save(model, tmp_path / "m.onnx", external=external, durable=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"m.onnx": b"old"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_failure_between_the_two_moves_leaves_the_old_model(tmp_path, monkeypatch, error):
    ours(tmp_path)
    before = names(tmp_path)
    true = pathlib.Path.replace

    def replace(self, target):
        if self.name == "m.onnx":
            raise error
        return true(self, target)

    monkeypatch.setattr(pathlib.Path, "replace", replace)
    with pytest.raises(error):
        save(proto(2, np.float16), tmp_path / "m.onnx", external=True)
    assert names(tmp_path) == before
    np.testing.assert_array_equal(held(tmp_path / "m.onnx"), weights(1))


def test_a_writer_waits_for_another_and_then_says_so(tmp_path, monkeypatch):
    ours(tmp_path)
    before = names(tmp_path)
    monkeypatch.setattr(staging, "_WAIT", 0.05)
    with staging.placing(tmp_path), pytest.raises(OutputError, match="another process is writing there"):
        save(proto(2), tmp_path / "m.onnx", external=True)
    assert names(tmp_path) == before
    save(proto(2), tmp_path / "m.onnx", external=True)
    np.testing.assert_array_equal(held(tmp_path / "m.onnx"), weights(2))


def test_a_lock_that_its_holder_deletes_is_not_held_twice(tmp_path):
    first = file_lock.open_locked(tmp_path / "lock")
    assert first not in {None, file_lock.NO_LOCK}
    assert file_lock.open_locked(tmp_path / "lock") is None
    (tmp_path / "lock").unlink()
    second = file_lock.open_locked(tmp_path / "lock")
    assert second not in {None, file_lock.NO_LOCK}
    file_lock.unlock(first)
    assert file_lock.open_locked(tmp_path / "lock") is None
    file_lock.unlock(second)


def test_file_systems_without_locks_are_written_to(tmp_path, monkeypatch):
    def unsupported(handle):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(file_lock, "_try_lock", unsupported)
    ours(tmp_path)
    save(proto(2), tmp_path / "m.onnx", external=True)
    np.testing.assert_array_equal(held(tmp_path / "m.onnx"), weights(2))
    assert len(names(tmp_path)) == 2


# ---- what dead processes leave ----


def fork(work):
    """Run `work` in a child, which ends without cleaning up; return its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no threads
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(9)
    return child


def die(work):
    os.waitpid(fork(work), 0)


def half_written(folder):
    with stage(load(proto(7)), folder / "n.onnx", external=True):
        os._exit(9)


@pytest.mark.parametrize("write", [lambda path: save(proto(), path), lambda path: write_file(path, b"text")])
def test_the_next_writer_removes_what_a_dead_one_left(tmp_path, write):
    die(lambda: half_written(tmp_path))
    assert len(names(tmp_path)) > 1
    write(tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx"]


def test_what_a_living_process_writes_stays(tmp_path):
    def sleeping():
        with stage(load(proto(7)), tmp_path / "n.onnx", external=True):
            time.sleep(60)

    child = fork(sleeping)
    try:
        while not list(tmp_path.glob(".amp-transpiler-*/new/n.onnx")):
            time.sleep(0.01)
        before = set(names(tmp_path))
        save(proto(), tmp_path / "m.onnx")
        assert set(names(tmp_path)) == {*before, "m.onnx"}
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_folder_of_another_kind_is_not_touched(tmp_path):
    (tmp_path / ".amp-transpiler-file").write_bytes(b"")
    (tmp_path / ".amp-transpiler-link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"")
    before = set(names(tmp_path))
    save(proto(), tmp_path / "m.onnx")
    assert set(names(tmp_path)) == {*before, "m.onnx"}


def placing_weights_only(model):
    """Die when the weights are in place and the model is not."""
    sys.addaudithook(lambda event, args: os._exit(9) if event == "os.rename" and str(args[1]) == str(model) else None)
    save(proto(7), model, external=True)


def test_weights_that_a_dead_process_placed_without_their_model_are_removed(tmp_path):
    die(lambda: placing_weights_only(tmp_path / "n.onnx"))
    assert data_of(tmp_path / "n.onnx").exists()
    save(proto(), tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx"]


def test_a_note_names_no_file_that_is_another_by_now(tmp_path):
    """A dead process placed its weights without the model; meanwhile somebody wrote another file of that name."""
    die(lambda: placing_weights_only(tmp_path / "n.onnx"))
    data = data_of(tmp_path / "n.onnx")
    data.unlink()
    data.write_bytes(b"somebody else's")
    save(proto(), tmp_path / "m.onnx")
    assert data.read_bytes() == b"somebody else's"
    assert names(tmp_path) == sorted(["m.onnx", data.name])
