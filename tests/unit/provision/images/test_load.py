"""What travels to the nodes, and what is there already."""

import pytest

from harness.provision.images.load import has
from harness.provision.images.local import LocalImage, node_name

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


def test_an_image_is_there_when_its_digest_is_its_id() -> None:
    """Docker with containerd's image store takes the manifest's digest as the id."""
    assert has(TAG_ROW.format(digest=ID), IMAGE)


@pytest.mark.parametrize(
    "listing", ["", TAG_ROW.format(digest="sha256:11"), f"{ID} type sha256:11 752 MiB -"]
)
def test_an_old_build_under_the_same_tag_is_brought_again(listing: str) -> None:
    """A tag alone is not the image, and neither is an id without the tag that the job names."""
    assert not has(listing, IMAGE)


def test_a_file_is_named_by_tag_and_id() -> None:
    """Another build, or another tag of it, never takes what was unpacked for its own."""
    assert IMAGE.file == "pluto-multinode-test_8dedc5c7912d-abababababab"
    assert LocalImage("a/b:1", ID).file != LocalImage("a/c:1", ID).file
    assert LocalImage("a/b:1", "sha256:cd").file != LocalImage("a/b:1", ID).file
