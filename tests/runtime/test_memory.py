"""How much memory is available, and how much a process has used."""

import sys

import pytest

from amp_transpiler.runtime import memory


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A made-up /proc and /sys/fs/cgroup: 8000 kB available, and no control group yet."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    _write(tmp_path / "proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:  8000 kB\n")
    return tmp_path


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, 8000 * 1024),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "5\n"}, 8000 * 1024),
        ("0::/a/b\n", {"a/memory.max": "5000", "a/memory.current": "2000"}, 3000),
        ("0::/a\n", {"a/memory.max": "5000", "a/memory.current": "4000", "a/memory.stat": "inactive_file 500\n"}, 1500),
        ("0::/a\n", {"a/memory.max": "5000", "a/memory.current": "6000"}, 0),
        (
            "5:cpu,memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "700", "memory/a/memory.usage_in_bytes": "100"},
            600,
        ),
    ],
    ids=["no groups", "no limit", "limit of an ancestor", "cache can be dropped", "limit exceeded", "version 1"],
)
def test_available_memory_honours_the_control_group(machine, groups, files, expected):
    _write(machine / "proc/self/cgroup", groups)
    for name, text in files.items():
        _write(machine / "cgroup" / name, text)
    assert memory.available_memory() == expected


def test_peak_memory_grows_with_what_is_used():
    before = memory.peak_memory()
    block = bytearray(b"x") * (before + (50 << 20) - memory.current_memory())
    assert memory.peak_memory() >= before + (40 << 20)
    del block
    assert memory.peak_memory() >= before + (40 << 20)


def test_without_proc_and_the_module_resource_memory_is_unknown(machine, monkeypatch):
    """As on Windows."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert memory.peak_memory() is None
    assert memory.current_memory() is None


def test_without_proc_the_peak_is_that_of_the_module_resource(machine):
    assert memory.peak_memory() > 1 << 20
    assert memory.current_memory() == memory.peak_memory()
