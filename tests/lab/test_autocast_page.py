"""The page beside AutoCast: made of its files, and it says where AutoCast is ahead."""

import pytest

import bench_autocast
from programs.autocast_page import is_behind, is_worse, page


def made(share, error, **further):
    record = {"seconds": 1.0, "unverified": 0.1, "fault": "", "share": share, "layers": 9, "error": error}
    return record | {"levels": None, "quiet": error, "float32": [["bound 1e-09 of 'x' becomes 6e-08", 2]]} | further


def row(ours, theirs, name="a/m.onnx"):
    ways = {"AutoCast": made(*theirs), "auto": made(*ours), "O2": made(*ours)}
    return {"model": name, "bytes": 1_000_000, "commit": "01234567", "source": "", "ways": ways}


def test_the_page_is_made_of_its_files():
    assert bench_autocast.PAGE.read_text("utf-8") == bench_autocast.page()


# Ours and theirs, each a share and an error -> whether ours is behind.
CASES = {
    "a larger share": ((0.9, 0.002), (0.8, 0.001), False),
    "the same share": ((0.899, 0.002), (0.9, 0.001), False),
    "less, at a smaller error": ((0.5, 0.001), (0.9, 0.01), False),
    "less, at the same error": ((0.5, 0.001), (0.9, 0.001), True),
    "less, at nearly the same error": ((0.5, 0.00099), (0.9, 0.001), True),
    "less, at a larger error": ((0.5, 0.002), (0.9, 0.001), True),
    "less, where theirs is infinite": ((0.5, 0.002), (0.9, "infinite"), False),
    "theirs has no network": ((0.5, 0.002), (None, 0.001), False),
}


@pytest.mark.parametrize(("ours", "theirs", "expected"), CASES.values(), ids=CASES)
def test_where_ours_is_behind(ours, theirs, expected):
    assert is_behind(row(ours, theirs), "auto") is expected


# errors of ours and of theirs, alike on the sample: at a tenth or three times, at a hundredth -> is ours behind?
LEVELS = {
    "theirs keeps the limit": ((0.001, 0.001), (0.01, 0.01), True),
    "theirs is beyond it at three times": ((0.01, 0.001), (0.1, 0.001), False),
    "theirs is beyond it at a hundredth": ((0.001, 0.01), (0.001, "infinite"), False),
    "both are beyond it, ours more": ((0.2, 0.2), (0.1, 0.1), True),
    "it has no other levels": ((None, None), (None, None), True),
}


@pytest.mark.parametrize(("ours", "theirs", "expected"), LEVELS.values(), ids=LEVELS)
def test_other_levels_count_where_theirs_is_beyond_the_limit(ours, theirs, expected):
    counted = row((0.5, 0.001), (0.9, 0.001))
    for way, (levels, quiet) in (("auto", ours), ("AutoCast", theirs)):
        counted["ways"][way] |= {"levels": levels, "quiet": quiet}
    assert is_behind(counted, "auto") is expected


# errors of ours and of theirs -> is ours worse?
WORSE = {
    "within the limit": (0.02, 0.001, False),
    "beyond it, and above theirs": (0.05, 0.03, True),
    "beyond it, as theirs": (0.05, 0.05, False),
    "theirs has no file": (0.05, None, True),
    "within the limit without theirs": (0.01, None, False),
    "theirs is infinite": (0.05, "infinite", False),
    "unknown": (None, 0.001, False),
}


@pytest.mark.parametrize(("ours", "theirs", "expected"), WORSE.values(), ids=WORSE)
def test_where_ours_is_worse(ours, theirs, expected):
    assert is_worse(row((0.9, ours), (0.9, theirs)), "auto") is expected


def test_the_share_of_a_file_that_is_refused_says_nothing():
    counted = row((0.5, 0.002), (0.9, 0.001))
    counted["ways"]["AutoCast"]["fault"] = "no kernel"
    assert not is_behind(counted, "auto")


def test_seconds_are_held_against_a_tenth():
    slow = row((0.9, 0.001), (0.9, 0.001))
    slow["ways"]["O2"]["unverified"] = 0.3
    text = page([row((0.9, 0.001), (0.9, 0.001)), slow])
    assert "| that over AutoCast's: of the sums, median of the models |  | 0.100, 0.100 | 0.200, 0.200 |" in text
    assert "| models above a tenth of AutoCast's; the largest share |  | 0, 0.100 | 1, 0.300 |" in text


def test_a_smaller_share_is_explained_once_in_its_section():
    text = page([row((0.5, 0.002), (0.9, 0.001), "a/behind.onnx"), row((0.5, 0.001), (0.9, 0.01), "a/ahead.onnx")])
    behind, ahead = text.index("## Where the share is smaller at no"), text.index("## Where the share is smaller at a")
    every = text.index("## All models")
    assert (
        "| a/behind.onnx | auto | 0.50, 0.90 | 0.002, 0.001 | -, - | 0.002, 0.001 | 2: bound … of … becomes … |" in text
    )
    assert behind < text.index("a/behind.onnx | auto") < ahead < text.index("a/ahead.onnx | auto") < every
    assert "| smaller share than AutoCast's at no smaller error |  | 1 | 1 |" in text


def test_what_did_not_convert_or_build_is_in_the_table_of_all_alone():
    broken = row((0.5, 0.002), (0.9, 0.001), "a/broken.onnx")
    broken["ways"]["AutoCast"] = {"refused": "IndexError: list index out of range"}
    refused = row((0.5, 0.002), (0.9, 0.001), "a/refused.onnx")
    refused["ways"]["AutoCast"] = made(0.9, None, fault="no kernel")
    text = page(
        [
            row((0.9, 0.001), (0.8, 0.01)),
            broken,
            refused,
            {"model": "a/none.onnx", "bytes": 1, "commit": "01234567", "ways": {}},
        ]
    )
    assert "Of 3 models the builder takes 3 in float32. AutoCast converts 2 of these." in text
    assert "about the 1 of which every file is built" in text
    assert "| built, of 3 | 1 | 3 | 3 |" in text
    assert "| a/broken.onnx | 1.0 | no file | 0.50, 0.002 (-; 0.002), 1.0 s |" in text
    assert "| 0.90, - (-; -), 1.0 s x |" in text
    assert text.endswith("float32 does not run here: a/none.onnx.\n")
