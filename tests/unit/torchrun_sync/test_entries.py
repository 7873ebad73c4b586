"""Entries: which trees are accepted, and that a digest is of all of a tree."""

from __future__ import annotations

import os.path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.torchrun_sync.pod.entries import Refused, check, leaves, tree_digest

SHA = "0" * 64
FILE = {"path": "a", "kind": "file", "mode": 0o644, "size": 1, "sha256": SHA}
PARTS = st.lists(st.sampled_from(["..", ".", "", "a", "b"]), min_size=1, max_size=6).map("/".join)


@given(folder=st.integers(0, 4), target=PARTS)
def test_a_link_leaves_when_its_path_does(folder: int, target: str) -> None:
    """Contract: as the file system would resolve it, at every step on the way, where nothing is a link."""
    path = "/".join(["d"] * folder + ["link"])
    steps = target.split("/")
    walked = ["/".join(["top", *["d"] * folder, *steps[:count]]) for count in range(len(steps) + 1)]
    outside = any(not f"{os.path.normpath(each)}/".startswith("top/") for each in walked)
    assert leaves(path, target) == (outside or target.startswith("/") or not target)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": "a//b"},
        {"path": "./a"},
        {"path": "a\0b"},
        {"path": "/a"},
        {"path": ".."},
        {"kind": "socket"},
        {"sha256": "../../etc/passwd"},
        {"sha256": SHA.upper().replace("0", "A")},
        {"sha256": None},
        {"size": -1},
        {"path": "not/there"},
    ],
    ids=str,
)
def test_what_makes_no_tree_is_refused(wrong: dict[str, Any]) -> None:
    """Contract: names, digests and sizes that a path is made of are checked before any is used."""
    with pytest.raises(Refused):
        check([{**FILE, **wrong}])


def test_a_path_comes_once_and_in_a_folder() -> None:
    """Contract: no entry replaces another one, and none lies in a file."""
    check([{"path": "d", "kind": "dir", "mode": 0o755}, {**FILE, "path": "d/a"}])
    with pytest.raises(Refused, match="twice"):
        check([FILE, FILE])
    with pytest.raises(Refused, match="not a folder"):
        check([FILE, {**FILE, "path": "a/b"}])


@pytest.mark.parametrize(
    "other",
    [{"path": "b"}, {"mode": 0o755}, {"size": 2}, {"sha256": "1" * 64}],
    ids=lambda each: next(iter(each)),
)
def test_every_part_of_an_entry_is_in_the_digest(other: dict[str, Any]) -> None:
    """Contract: two trees that differ in anything that travels have two digests; the order is nothing."""
    rest = {"path": "z", "kind": "link", "target": "a"}
    assert tree_digest([FILE, rest]) == tree_digest([rest, FILE])
    assert tree_digest([FILE, rest]) != tree_digest([{**FILE, **other}, rest])
