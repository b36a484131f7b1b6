"""Where a model's weights go, and what happens to those of the model it replaces."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from amp_transpiler.errors import OutputError
from amp_transpiler.files import data_files, saving
from amp_transpiler.files.copy_files import copy_model
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import save, stage
from amp_transpiler.paddle.static.tensor_file import write_tensors
from amp_transpiler.pipeline import transpile
from tests.files.saved import SIZE, data_of, held, names, ours, proto, weights

# ---- names ----


def test_the_file_of_weights_is_named_by_its_content(tmp_path):
    path = tmp_path / "m.onnx"
    save(proto(), path, external=True)
    digest = hashlib.sha256(data_of(path).read_bytes()).digest()
    assert data_of(path).name == f"m.onnx.{hashlib.sha256(digest).hexdigest()[:16]}.data"
    assert names(tmp_path) == sorted(["m.onnx", data_of(path).name])
    np.testing.assert_array_equal(held(path), weights())


def test_every_byte_counts_for_the_name(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "_PART", 64)
    monkeypatch.setattr(data_files, "_CHUNK", 16)
    content = bytearray(range(200))
    digests = set()
    for place in (None, *range(200)):
        changed = bytearray(content)
        if place is not None:
            changed[place] ^= 1
        (tmp_path / "data").write_bytes(changed)
        digests.add(data_files.data_name("m", tmp_path / "data", threads=2))
    assert len(digests) == 201


@pytest.mark.parametrize("name", ["lock", "note", "new", "data", "m.data", ".hidden", "ü.onnx"])
def test_any_name_will_do(tmp_path, name):
    save(proto(), tmp_path / name, external=True)
    np.testing.assert_array_equal(held(tmp_path / name), weights())
    assert names(tmp_path) == sorted([name, data_of(tmp_path / name).name])


def test_without_large_weights_there_is_no_second_file(tmp_path):
    model = proto()
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "w"))
    save(model, tmp_path / "m.onnx", external=True)
    assert names(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize(
    ("name", "words"), [("n" * 240 + ".onnx", "File name too long"), (os.fsdecode(b"\xff.onnx"), "UTF-8")]
)
def test_a_name_too_odd_for_two_files_is_refused_at_once(tmp_path, name, words):
    with pytest.raises(OutputError, match=words), stage(load(proto()), tmp_path / name, external=True):
        pass
    save(proto(), tmp_path / name)
    assert len(names(tmp_path)) == 1


def test_a_name_too_long_for_weights_is_refused_before_they_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(ir.external_data, "unload_from_model", None)
    with pytest.raises(OutputError, match="File name too long"):
        save(proto(), tmp_path / f"{'n' * 240}.onnx", external=True)


# ---- what is replaced ----


def copying(model, path, external):
    folder = path.parent.parent / "in"
    folder.mkdir()
    onnx.save(model, folder / "s.onnx", save_as_external_data=external, location="other.bin", size_threshold=0)
    copy_model(folder / "s.onnx", path)


@pytest.mark.parametrize("external", [True, False], ids=["external", "one file"])
@pytest.mark.parametrize("write", [save, copying], ids=["save", "copy"])
def test_the_replaced_model_s_weights_are_removed(tmp_path, write, external):
    out = tmp_path / "out"
    out.mkdir()
    ours(out)
    write(proto(2, np.float16), out / "m.onnx", external=external)
    assert len(names(out)) == 1 + external
    np.testing.assert_array_equal(held(out / "m.onnx"), weights(2, np.float16))


def test_a_name_inside_weights_names_nothing(tmp_path):
    ours(tmp_path)
    old = data_of(tmp_path / "m.onnx")
    text = old.name.encode().ljust(SIZE * 4)
    model = proto()
    model.graph.initializer[0].raw_data = text
    (tmp_path / "other.onnx").write_bytes(model.SerializeToString())
    save(proto(2), tmp_path / "m.onnx", external=True)
    assert not old.exists()


def test_weights_that_a_program_of_this_process_reads_stay_until_it_is_gone(tmp_path):
    ours(tmp_path)
    old = data_of(tmp_path / "m.onnx")
    program = load(tmp_path / "m.onnx").clone()
    save(proto(2), tmp_path / "m.onnx", external=True)
    np.testing.assert_array_equal(program.model.graph.initializers["w"].const_value.numpy(), weights(1))
    assert old.exists()
    del program
    now = data_of_current(tmp_path / "m.onnx")
    save(proto(3), tmp_path / "m.onnx", external=True)
    assert not now.exists()


def data_of_current(path):
    (location,) = [
        entry.value
        for entry in onnx.load(path, load_external_data=False).graph.initializer[0].external_data
        if entry.key == "location"
    ]
    return path.parent / location


def test_files_of_other_names_are_never_removed(tmp_path):
    """A model of another tool is replaced; its weights have a name that this package does not give."""
    onnx.save(proto(1), tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "m.onnx.0123456789abcdef.data").write_bytes(b"not named by it")
    before = set(names(tmp_path))
    save(proto(2), tmp_path / "m.onnx", external=True)
    assert before < set(names(tmp_path))


def test_writing_the_same_again_changes_nothing(tmp_path):
    ours(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    ours(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_an_output_that_is_a_link_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    save(proto(1), tmp_path / "far" / "m.onnx")
    (tmp_path / "link.onnx").symlink_to("far/m.onnx")
    save(proto(2), tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    np.testing.assert_array_equal(held(tmp_path / "far" / "m.onnx"), weights(2))
    assert names(tmp_path) == ["far", "far/m.onnx", "link.onnx"]


@pytest.mark.parametrize("write", [save, copying], ids=["save", "copy"])
def test_weights_that_a_link_would_hide_are_refused(tmp_path, write):
    """ONNX Runtime looks for them beside the link and refuses them beside the file."""
    out, far = tmp_path / "out", tmp_path / "far"
    out.mkdir()
    far.mkdir()
    (out / "link.onnx").symlink_to(far / "m.onnx")
    with pytest.raises(OutputError, match="symbolic link into another folder"):
        write(proto(1), out / "link.onnx", external=True)
    assert names(far) == []
    (out / "link.onnx").unlink()
    (out / "link.onnx").symlink_to("m.onnx")
    if write is save:
        save(proto(1), out / "link.onnx", external=True)
        np.testing.assert_array_equal(held(out / "link.onnx"), weights(1))


def test_weights_of_the_source_under_the_results_own_name_are_not_touched(tmp_path):
    """The model was renamed, its weights were not; the result's are the same."""
    ours(tmp_path)
    data = data_of(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").rename(tmp_path / "renamed.onnx")
    before = data.stat()
    save(load(tmp_path / "renamed.onnx"), tmp_path / "m.onnx", external=True)
    assert (data.stat().st_ino, data.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    np.testing.assert_array_equal(held(tmp_path / "m.onnx"), weights(1))
    assert names(tmp_path) == sorted(["m.onnx", "renamed.onnx", data.name])


def test_external_weights_written_inline(tmp_path):
    """The result must not name the weights of its source."""
    ours(tmp_path)
    (tmp_path / "other").mkdir()
    save(load(tmp_path / "m.onnx"), tmp_path / "other" / "m.onnx", external=False)
    np.testing.assert_array_equal(held(tmp_path / "other" / "m.onnx"), weights(1))


# ---- where weights go by themselves, and what is flushed ----


def test_weights_go_where_the_source_had_them(tmp_path):
    ours(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    save(load(tmp_path / "m.onnx"), out / "outside.onnx")
    save(proto(), out / "inside.onnx")
    assert len(names(out)) == 3
    assert data_of(out / "outside.onnx").exists()
    assert not list(out.glob("inside.onnx.*"))


@pytest.mark.parametrize(("limit", "outside"), [(4 * SIZE, False), (4 * SIZE - 1, True)])
def test_weights_that_no_message_holds_go_outside(tmp_path, monkeypatch, limit, outside):
    monkeypatch.setattr(saving, "_INLINE_LIMIT", limit)
    save(proto(), tmp_path / "m.onnx")
    assert len(names(tmp_path)) == 1 + outside
    np.testing.assert_array_equal(held(tmp_path / "m.onnx"), weights())


def test_small_weights_stay_inside(tmp_path):
    """ONNX Runtime wants shapes and axes inside."""
    model = proto()
    for name, size in (("small", 64), ("larger", 65)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(size, np.float32), name))
    save(model, tmp_path / "m.onnx", external=True)
    stored = {
        t.name: t.data_location for t in onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    }
    outside = onnx.TensorProto.EXTERNAL
    assert {name for name, place in stored.items() if place == outside} == {"w", "larger"}


@pytest.mark.parametrize("external", [True, False])
def test_saving_leaves_the_program_as_it_was(tmp_path, external):
    ours(tmp_path)
    program = load(tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    before = program.model.graph.initializers["w"].const_value
    save(program, tmp_path / "out" / "n.onnx", external=external)
    assert program.model.graph.initializers["w"].const_value is before
    np.testing.assert_array_equal(before.numpy(), weights(1))


@pytest.mark.parametrize("external", [True, False])
def test_the_size_of_a_result_counts_its_weights(tmp_path, external):
    with stage(load(proto()), tmp_path / "m.onnx", external) as staged:
        staged.commit()
    size = sum((tmp_path / name).stat().st_size for name in names(tmp_path))
    assert staged.data == (data_of(tmp_path / "m.onnx").name if external else None)
    with stage(load(proto()), tmp_path / "m.onnx", external) as staged:
        assert staged.file_bytes == size


def test_progress_counts_the_weights(tmp_path):
    model, told = proto(), []
    for name in ("a", "b"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(SIZE, np.float32), name))
    with stage(load(model), tmp_path / "m.onnx", True, lambda done, total: told.append((done, total))):
        assert sorted(told) == [(0, 3), (1, 3), (2, 3)]


def flushed(monkeypatch, write):
    """Return what is flushed to the disk, and what is moved, in order."""
    told, fsync, replace = [], os.fsync, os.replace

    def noted_fsync(handle):
        told.append(f"flush {pathlib.Path(f'/proc/self/fd/{handle}').readlink().suffix or 'folder'}")
        fsync(handle)

    def noted_replace(source, target):
        if not any(part.startswith(".amp") for part in pathlib.Path(target).parts):
            told.append(f"move {pathlib.Path(target).suffix}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write()
    return told


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="reads /proc")
def test_files_are_flushed_before_they_are_moved_and_weights_come_first(tmp_path, monkeypatch):
    order = flushed(monkeypatch, lambda: save(proto(), tmp_path / "m.onnx", external=True))
    moves = [step for step in order if step.startswith("move")]
    assert moves == ["move .data", "move .onnx"]
    assert set(order[: order.index("move .data")]) >= {"flush .data", "flush .onnx"}
    assert order[order.index("move .data") + 1 :] == ["flush folder", "move .onnx", "flush folder"]


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="reads /proc")
def test_a_file_that_need_not_last_is_not_flushed(tmp_path, monkeypatch):
    order = flushed(monkeypatch, lambda: save(proto(), tmp_path / "m.onnx", external=True, durable=False))
    assert not {"flush .data", "flush .onnx"} & set(order)


# ---- places ----


def external(folder):
    """Write m.onnx with its weights in w.safetensors, and links to both in another folder."""
    onnx.save(proto(1), folder / "m.onnx", save_as_external_data=True, location="w.safetensors", size_threshold=0)
    (folder / "links").mkdir()
    for name in ("m.onnx", "w.safetensors"):
        (folder / "links" / name).symlink_to(folder / name)
    (folder / "links" / "hard.onnx").hardlink_to(folder / "m.onnx")
    return folder / "m.onnx"


WRITERS = {
    "save": lambda source, place: save(load(source), place),
    "transpile": lambda source, place: transpile(source, place, verify=False, prefer="size"),
    "copy": copy_model,
    "transpile at O0": lambda source, place: transpile(source, place, level="O0"),
}
TAKEN = ["w.safetensors", "links/w.safetensors", "m.onnx", "links/m.onnx", "links/hard.onnx"]


@pytest.mark.parametrize("place", TAKEN)
@pytest.mark.parametrize("writer", WRITERS)
def test_no_file_of_the_source_is_written(tmp_path, writer, place):
    source = external(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if (tmp_path / name).is_file()}
    if writer == "save" or not place.endswith(".onnx"):
        with pytest.raises(OutputError, match=r"external data|same file"):
            WRITERS[writer](source, tmp_path / place)
    else:  # copying a model onto itself does nothing
        with contextlib.suppress(OutputError):
            WRITERS[writer](source, tmp_path / place)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert not list(tmp_path.rglob(".amp*"))


def test_a_model_does_not_replace_weights_of_another_one_in_use(tmp_path):
    program = load(external(tmp_path))
    before = (tmp_path / "w.safetensors").read_bytes()
    with pytest.raises(OutputError, match="external data of a model in use"):
        save(proto(2), tmp_path / "links" / "w.safetensors")
    assert (tmp_path / "w.safetensors").read_bytes() == before
    np.testing.assert_array_equal(program.model.graph.initializers["w"].const_value.numpy(), weights(1))


def test_a_checkpoint_does_not_replace_weights_in_use(tmp_path):
    program = load(external(tmp_path))
    before = (tmp_path / "w.safetensors").read_bytes()
    arrays = {"a": np.zeros(2, np.float32)}
    with pytest.raises(OutputError, match="external data of a model in use"):
        write_tensors(tmp_path / "links" / "w.safetensors", arrays, arrays, {})
    assert (tmp_path / "w.safetensors").read_bytes() == before
    np.testing.assert_array_equal(program.model.graph.initializers["w"].const_value.numpy(), weights(1))
