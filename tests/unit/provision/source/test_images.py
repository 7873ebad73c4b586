"""What a build of images removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.provision.source.images import remove_leftovers
from harness.provision.source.shell import Shell


def test_only_one_build_container_of_this_cache_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: it is found by its whole name, which is another one for each cache."""
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >>"$CALLS"\n[ "$1" = ps ] && echo 4e1d\nexit 0\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    names = []
    for cache in ("one", "two"):
        (tmp_path / cache).mkdir()
        monkeypatch.setenv("CALLS", str(tmp_path / cache / "calls"))
        remove_leftovers(Shell(tmp_path / cache / "log"))
        listed, removed = (tmp_path / cache / "calls").read_text().splitlines()
        names.append(listed.partition("--filter name=")[2])
        assert removed == "rm --force --volumes 4e1d"
    assert all(name.startswith("^/harness-build-") and name.endswith("$") for name in names)
    assert names[0] != names[1]
