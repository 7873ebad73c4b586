"""What was built is found again by its inputs, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.provision.platforms import AMD64, ARM64
from harness.provision.source import versions
from harness.provision.source.plan import Plan
from harness.provision.source.store import Store, code_input, key
from harness.settings import Settings


def plan(tmp_path: Path, **changed: str) -> Plan:
    known = versions.load(Settings())
    return Plan(Store(tmp_path), versions.Versions(**{**vars(known), **changed}), AMD64)


def test_a_key_tells_apart_what_runs_together() -> None:
    """Inputs keep their borders and their order."""
    assert key("a", "b") == key("a", "b")
    assert len({key("a", "b"), key("ab"), key("b", "a"), key("a", "b", "")}) == 4


def test_comments_are_no_input_and_commands_are(tmp_path: Path) -> None:
    """A better docstring builds nothing again; another argument does."""
    module = tmp_path / "module.py"

    def code(text: str) -> str:
        module.write_text(text)
        return code_input(str(module))

    first = code('"""One."""\ndef run():\n    """Two."""\n    return ["go", "build"]  # three\n')
    assert code('def run():\n    return [\n        "go", "build",\n    ]\n') == first
    assert code('def run():\n    return ["go", "vet"]\n') != first


@pytest.mark.parametrize("version", ["kind", "debian"])
def test_version_of_node_changes_node_image_alone(tmp_path: Path, version: str) -> None:
    """No step is taken for another version's, and none is built that the version does not touch."""
    before, after = plan(tmp_path), plan(tmp_path, **{version: "v1.99.9"})
    assert after.node_image != before.node_image
    assert after.controller_image("kueue") == before.controller_image("kueue")


@pytest.mark.parametrize("version", ["kubernetes", "etcd", "coredns", "jobset", "kueue", "go"])
def test_a_version_of_a_program_changes_everything(tmp_path: Path, version: str) -> None:
    """All programs share one version of each dependency, and each may be the one that wants a newer one."""
    before, after = plan(tmp_path), plan(tmp_path, **{version: "v1.99.9"})
    for name in ("jobset", "kueue"):
        assert after.controller_image(name) != before.controller_image(name)
        assert after.manifest(name) != before.manifest(name)
    assert after.node_image != before.node_image


def test_a_platform_has_artefacts_of_its_own(tmp_path: Path) -> None:
    """A cache that two machines share, or a Docker server of another platform, mixes nothing up."""
    before = plan(tmp_path)
    after = replace(before, platform=ARM64)
    assert after.root_image != before.root_image
    assert after.programs("etcd") != before.programs("etcd")
    assert after.node_image != before.node_image
    assert after.controller_image("jobset") != before.controller_image("jobset")


def test_an_artefact_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    """What an interrupted step wrote is not where its result is looked for."""
    store = Store(tmp_path)
    target = store.path("etcd", "v3.6.8", "0123456789ab")

    def interrupted() -> None:
        with store.making(target) as made:
            (made / "etcd").write_text("half")
            assert not target.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not target.exists()
    with store.making(target) as made:
        (made / "etcd").write_text("whole")
    assert (target / "etcd").read_text() == "whole"
    store.clear_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == ["etcd-v3.6.8-0123456789ab"]


def test_a_lock_without_a_version_says_which(tmp_path: Path) -> None:
    """A versions file of one's own must be complete."""
    own = tmp_path / "versions.toml"
    own.write_text('[source]\nkubernetes = "v1.36.3"\n')
    with pytest.raises(UsageError, match="etcd, coredns"):
        versions.load(Settings(versions_file=own))


def test_a_discarded_folder_is_deleted_without_its_replacement(tmp_path: Path) -> None:
    """Contract: another process may already fill the same folder again; that one stays."""
    program = f"""
from pathlib import Path
from harness.provision.source.store import Store
folder = Path({str(tmp_path)!r}, "go-build")
folder.mkdir()
(folder / "old").touch()
Store(folder.parent).discard(folder)
assert not folder.exists()
[old] = folder.parent.rglob("old")
Store(folder.parent).discard(folder)
folder.mkdir()
(folder / "new").touch()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "go-build" / "new"]
