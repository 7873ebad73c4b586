"""Who holds the space of a full disk."""

import pytest

from harness.provision.full_disk import largest, size
from harness.settings import Settings


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0B (0%)", 0),
        ("12B", 12),
        ("1.5kB (3%)", 1500),
        ("6.451GB (100%)", 6_451_000_000),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes_as_docker_writes_them(text, number):
    assert size(text) == number


def test_the_largest_come_first_with_what_frees_them(tmp_path, monkeypatch):
    """Contract: folders of ours are named with bytes and a command, also where there is no Docker."""
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Settings(
        cache_dir=tmp_path / "cache", runs_dir=tmp_path / "runs", state_dir=tmp_path / "state"
    )
    for folder, length in (("cache", 5000), ("runs", 70_000)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(bytes(length))
    runs, cache = largest(settings)
    assert runs.bytes > 70_000 > cache.bytes > 5000
    assert runs.what == f"bundles in {tmp_path}/runs"
    assert runs.command.startswith("harness runs --prune")
    assert cache.command == f"rm -r {tmp_path}/cache"
