"""What travels to the nodes, and what is there already."""

import io
import tarfile
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.provision.images.containerd_import import LocalImage, node_name, without_entries
from harness.provision.images.load import has

ID = "sha256:" + "ab" * 32
IMAGE = LocalImage("pluto-multinode-test:8dedc5c7912d", ID)
TAG_ROW = "docker.io/library/pluto-multinode-test:8dedc5c7912d  application/vnd.oci  {digest}  752 MiB -"


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("worker:1", "docker.io/library/worker:1"),
        ("harness/tracker:1", "docker.io/harness/tracker:1"),
        ("localhost/worker:1", "localhost/worker:1"),
        ("localhost:5001/worker:1", "localhost:5001/worker:1"),
        ("ghcr.io/a/worker:1", "ghcr.io/a/worker:1"),
    ],
)
def test_containerd_names_an_image_in_full(tag: str, name: str) -> None:
    """Docker's short names are looked up on the node under the name that containerd gives them."""
    assert node_name(tag) == name


def test_an_image_is_there_when_tag_and_id_are() -> None:
    """The kubelet's side lists the id as a name of its own, beside the tag."""
    listing = (
        "REF TYPE DIGEST SIZE\n" + TAG_ROW.format(digest="sha256:11") + f"\n{ID} type sha256:11 752 MiB -\n"
    )
    assert has(listing, IMAGE)


def test_image_is_there_when_its_digest_is_its_id() -> None:
    """Docker with containerd's image store takes the manifest's digest as the id."""
    assert has(TAG_ROW.format(digest=ID), IMAGE)


@pytest.mark.parametrize(
    "listing", ["", TAG_ROW.format(digest="sha256:11"), f"{ID} type sha256:11 752 MiB -"]
)
def test_old_build_under_same_tag_is_brought_again(listing: str) -> None:
    """A tag alone is not the image, and neither is an id without the tag that the job names."""
    assert not has(listing, IMAGE)


def test_a_file_is_named_by_tag_and_id() -> None:
    """Another build, or another tag of it, never takes what was unpacked for its own."""
    assert IMAGE.file == "pluto-multinode-test_8dedc5c7912d-abababababab"
    assert LocalImage("a/b:1", ID).file != LocalImage("a/c:1", ID).file
    assert LocalImage("a/b:1", "sha256:cd").file != LocalImage("a/b:1", ID).file


def archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as written:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            written.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@given(
    st.dictionaries(st.from_regex("[a-z]{1,8}(/[a-z]{1,120})?", fullmatch=True), st.binary(max_size=2000)),
    st.data(),
)
def test_only_the_named_entries_are_left_out(files: dict[str, bytes], data: st.DataObject) -> None:
    """Contract: every other entry is copied with its content."""
    omit = data.draw(st.sets(st.sampled_from(sorted(files)))) if files else set()
    target = io.BytesIO()
    without_entries(io.BytesIO(archive(files)), target, omit)
    target.seek(0)
    with tarfile.open(fileobj=target) as copied:
        found = {entry.name: (copied.extractfile(entry) or io.BytesIO()).read() for entry in copied}
    assert found == {name: content for name, content in files.items() if name not in omit}


def test_an_archive_that_is_cut_off_is_an_error() -> None:
    """Contract: the reader does not take a part of an image for the whole."""
    whole = archive({"blobs/one": b"x" * 5000})
    with pytest.raises(tarfile.TarError):
        without_entries(io.BytesIO(whole[:3000]), io.BytesIO(), {"other"})
