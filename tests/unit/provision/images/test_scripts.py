"""Scripts that changed travel alone, and what runs is what lies in the checkout."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.launch.konduktor.config import Submission, konduktor_config
from harness.provision.images import scripts
from harness.settings import Settings

NAMES = st.lists(st.from_regex(r"[a-z_]{1,8}(/[a-z]{1,4})?\.py", fullmatch=True), unique=True, max_size=6)
FILES = NAMES.flatmap(lambda names: st.fixed_dictionaries({name: st.binary(max_size=40) for name in names}))


def labels(files: dict[str, bytes]) -> dict[str, str]:
    """As Docker gives the label of an image that was built from these."""
    return dict(json.loads(scripts.labels("making", files)[scripts.SCRIPTS]))


@given(FILES, FILES)
def test_image_and_changes_make_the_checkout(image: dict[str, bytes], checkout: dict[str, bytes]) -> None:
    """What the image has, under what is brought, is exactly what lies there; nothing more is brought."""
    changed = scripts.changed_since(labels(image), checkout)
    if changed is None:
        assert set(image) - set(checkout)
        return
    assert {**image, **changed} == checkout
    assert all(image.get(name) != text for name, text in changed.items())


def test_an_image_with_a_deleted_file_is_not_used() -> None:
    """An import of it would still work there."""
    assert scripts.changed_since(labels({"old.py": b"", "a.py": b""}), {"a.py": b""}) is None


def test_more_than_a_config_map_takes_is_not_brought() -> None:
    assert scripts.changed_since({}, {"a.py": bytes(scripts.MAX_BYTES)}) is not None
    assert scripts.changed_since({}, {"a.py": bytes(scripts.MAX_BYTES), "b.py": b"1"}) is None


@given(FILES)
def test_every_mount_finds_its_file(files: dict[str, bytes]) -> None:
    """konduktor's config mounts each where it belongs, out of the ConfigMap that is made for it."""
    mounts = scripts.mounts(files)
    data = scripts.config_map("e2e-1", files)["binaryData"]
    assert {m["mountPath"]: base64.b64decode(data[m["subPath"]]) for m in mounts} == {
        f"/workspace/{name}": text for name, text in files.items()
    }
    config = konduktor_config(Submission("e2e-1", "1", "", {}, files=mounts))
    spec = config["kubernetes"]["pod_config"]["spec"]
    assert [v["name"] for v in spec.get("volumes", [])] == sorted({m["name"] for m in mounts})
    assert spec["containers"][0].get("volumeMounts", []) == mounts


@pytest.mark.parametrize("content", [None, {}, {"a.bin": bytes(scripts.MAX_BYTES + 1)}])
def test_a_folder_that_cannot_travel_is_refused(tmp_path: Path, content: dict[str, bytes] | None) -> None:
    folder = tmp_path / "mine"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_bytes(text)
    with pytest.raises(UsageError, match="HARNESS_SCRIPTS"):
        scripts.users(Settings(scripts=folder))


def test_the_evidence_says_what_ran() -> None:
    assert scripts.version_text("worker:1", {}) == "worker:1"
    assert scripts.version_text("worker:1", {"b.py": b"1"}).startswith("worker:1 + b.py@6b86b273ff34")
