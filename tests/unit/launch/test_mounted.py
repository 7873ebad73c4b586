"""A mounted folder lies in a container as it does here."""

from __future__ import annotations

from pathlib import Path

import pytest
from mounting import lay_out

from harness.launch.mounts import netcheck, recorder
from harness.launch.mounts.folder import MountedFolder


@pytest.mark.parametrize("mounted", [netcheck.MOUNTED, recorder.MOUNTED], ids=lambda one: one.name)
def test_the_volume_lays_out_every_file(mounted: MountedFolder, tmp_path: Path) -> None:
    """Contract: each file lies at its path, no key has a slash, and a ConfigMap can hold them."""
    folder = lay_out(mounted, tmp_path)
    for path, source in mounted.sources.items():
        assert (folder / path).read_bytes() == source.read_bytes()
    data = mounted.config_map("ns")["data"]
    assert not any("/" in key for key in data)
    assert sum(map(len, data.values())) < 700_000, "a ConfigMap takes 1 MiB"
