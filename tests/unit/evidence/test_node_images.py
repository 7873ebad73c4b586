"""Images of nodes are compared by the names that Kubernetes and container runtimes write for them."""

import pytest

from harness.evidence.kubernetes.node_images import holders, other_tags, same_name

NAMES = [
    "docker.io/library/worker:1",
    "docker.io/library/worker:2",
    "docker.io/team/worker:latest",
    "localhost/built:3",
    "registry:5000/worker:1",
]
NODES = [
    {
        "metadata": {"name": "a"},
        "status": {"images": [{"names": [name, f"worker@sha256:{64 * 'a'}"]} for name in NAMES]},
    },
    {"metadata": {"name": "b"}, "status": {"images": [{"names": ["docker.io/library/worker:1"]}]}},
    {"metadata": {"name": "c"}, "status": {}},
    {"metadata": {"name": "d"}, "status": {"images": [{"names": None}, "no mapping"]}},
]


@pytest.mark.parametrize(
    ("image", "tags"),
    [
        ("worker:2", []),
        ("docker.io/library/worker:2", []),
        ("team/worker", []),
        ("worker:3", ["worker:1", "worker:2"]),
        ("worker", ["worker:1", "worker:2"]),
        (f"worker@sha256:{64 * 'b'}", ["worker:1", "worker:2"]),
        ("team/worker:7", ["team/worker:latest"]),
        ("registry:5000/worker:9", ["registry:5000/worker:1"]),
        ("registry:5000/other", []),
        ("other:1", []),
    ],
)
def test_other_tags_of_image_are_found_on_nodes(image: str, tags: list[str]) -> None:
    assert other_tags(image, NODES) == tags


@pytest.mark.parametrize(
    ("image", "names"),
    [
        ("built:3", ["localhost/built:3"]),
        ("docker.io/library/built:3", ["localhost/built:3"]),
        ("built:4", []),
        ("elsewhere:5000/worker:1", ["registry:5000/worker:1", "worker:1"]),
    ],
)
def test_same_name_and_tag_in_another_registry_is_found(image: str, names: list[str]) -> None:
    assert same_name(image, NODES) == names


def test_each_image_has_the_nodes_that_report_it() -> None:
    assert holders(NODES)["worker:1"] == ["a", "b"]
    assert holders(NODES)["team/worker:latest"] == ["a"]
    assert not any("@" in name for name in holders(NODES))
