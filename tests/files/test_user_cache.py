"""Records in the user's cache: kept, found again, bounded, and done without."""

from __future__ import annotations

import logging
import os
import pathlib

import pytest

from amp_transpiler.files.user_cache import FOLDER_VARIABLE, SIZE_VARIABLE, Records, base_folder

RECORDS = Records("evidence")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_record_is_found_again(cache):
    assert RECORDS.get("a1") is None
    RECORDS.put("a1", b"first")
    RECORDS.put("b2", b"second")
    RECORDS.put("a1", b"third")
    assert (RECORDS.get("a1"), RECORDS.get("b2")) == (b"third", b"second")
    assert sorted(path.name for path in (cache / "evidence").iterdir()) == ["a1.evidence", "b2.evidence"]
    assert Records("other").get("a1") is None


def test_what_was_not_used_for_the_longest_time_goes_first(cache, monkeypatch):
    monkeypatch.setenv(SIZE_VARIABLE, "1")
    for number, name in enumerate("abc"):
        RECORDS.put(name, bytes(300_000))
        os.utime(cache / "evidence" / f"{name}.evidence", (number, number))
    assert RECORDS.get("a") is not None  # used just now
    RECORDS.put("d", bytes(300_000))
    assert sorted(path.stem for path in (cache / "evidence").iterdir()) == ["a", "c", "d"]


@pytest.mark.parametrize("off", ["0", "off", "OFF", "no"])
def test_switched_off_it_keeps_nothing(monkeypatch, off):
    monkeypatch.setenv(FOLDER_VARIABLE, off)
    RECORDS.put("a1", b"data")
    assert RECORDS.get("a1") is None
    assert base_folder() is None


def test_a_folder_that_cannot_be_made_is_logged_and_done_without(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        RECORDS.put("a1", b"data")
    assert "nothing is kept in" in caplog.text
    assert RECORDS.get("a1") is None


def test_the_users_own_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert RECORDS.folder == tmp_path / "amp_transpiler" / "evidence"


def test_without_a_home_nothing_is_kept(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in (FOLDER_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pathlib.Path, "home", no_home)
    assert base_folder() is None


FOREIGN = {
    "the base": lambda cache: cache,
    "the kind's folder": lambda cache: cache / "evidence",
    "the entry": lambda cache: cache / "evidence" / "a1.evidence",
}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners")
@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("what", FOREIGN)
def test_what_another_user_owns_is_not_used_and_told_once(what, default, tmp_path, monkeypatch, caplog):
    cache = tmp_path / "amp_transpiler"
    if default:
        monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    else:
        monkeypatch.setenv(FOLDER_VARIABLE, str(cache))
    RECORDS.put("a1", b"theirs")
    foreign = FOREIGN[what](cache)
    real = pathlib.Path.stat

    def stat(path, **options):
        status = real(path, **options)
        if path != foreign:
            return status
        return os.stat_result([*status[:4], 4711, *status[5:10]])

    monkeypatch.setattr(pathlib.Path, "stat", stat)
    before = {path: path.read_bytes() for path in cache.rglob("*.evidence")}
    for _ in range(3):
        assert RECORDS.get("a1") is None
    if what != "the entry":
        RECORDS.put("a1", b"ours")
        assert {path: path.read_bytes() for path in cache.rglob("*.evidence")} == before
    assert caplog.text.count("belongs to another user (4711)") == 1
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert RECORDS.get("a1") == b"theirs"
