"""The manifest says what the ranks are given: every file, the image, and what is known to be in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.launch import sent_code
from harness.provision.images import scripts
from harness.provision.images.build import ImageRef

NAMES = st.lists(st.from_regex(r"[a-z]{1,4}(/[a-z]{1,4}){0,3}\.py", fullmatch=True), unique=True, max_size=6)
FILES = NAMES.flatmap(lambda names: st.fixed_dictionaries({name: st.binary(max_size=9) for name in names}))


@given(FILES.filter(bool), FILES)
def test_what_is_mounted_counts_over_what_the_image_holds(
    image: dict[str, bytes], mounted: dict[str, bytes]
) -> None:
    """Contract: the files are what a rank finds, in folders of any depth."""
    ours = ImageRef("worker:1", "", {}, {"pluto": "0.0.29"}, scripts.digests(image))
    code = sent_code.code("worker:1", ours, mounted)
    assert code.files == {
        f"/workspace/{name}": hashlib.sha256(text).hexdigest() for name, text in {**image, **mounted}.items()
    }
    assert code.mounted == [f"/workspace/{name}" for name in sorted(mounted)]
    assert (code.whole, code.ours, code.versions) == (["/workspace"], True, {"pluto": "0.0.29"})


def test_only_mounted_files_of_a_user_image_are_known() -> None:
    """Contract: such an image may hold other files in /workspace, and any version of the client."""
    code = sent_code.code("mine:1", None, {"a.py": b"1"})
    assert list(code.files) == code.mounted == ["/workspace/a.py"]
    assert (code.whole, code.ours, code.image_id, code.versions) == ([], False, None, {})


def test_a_pushed_worker_image_counts_as_a_user_image() -> None:
    """Contract: HARNESS_WORKER_IMAGE names an image of which this machine knows no file."""
    code = sent_code.code("registry/worker:1", ImageRef("registry/worker:1", ""), {})
    assert (code.files, code.whole, code.ours) == ({}, [], False)


def test_a_folder_is_sent_with_the_folders_in_it(tmp_path: Path) -> None:
    """Contract: each file has its own mount and volume, whatever folder it is in."""
    for name in ("a.py", "b/__init__.py", "b/c/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = scripts.read(tmp_path)
    mounts = scripts.mounts(found)
    assert {mount["mountPath"] for mount in mounts} == {f"/workspace/{name}" for name in found}
    assert set(found) == {"a.py", "b/__init__.py", "b/c/d.txt"}
    assert len({volume["name"] for volume in scripts.volumes(mounts)}) == 3
