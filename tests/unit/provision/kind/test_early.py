"""What is begun beside kind's creation ends with it."""

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.provision.images.containerd_import import LocalImage
from harness.provision.kind import preload

OWN = LocalImage("worker:1", "sha256:1"), LocalImage("tracker:1", "sha256:2")
CONTEXT: Any = SimpleNamespace(writer=SimpleNamespace(attempt=nullcontext))


class Nodes:
    """A kind cluster whose nodes never come."""

    settings = SimpleNamespace(workers=1, kind_bin="false", tracker="embedded")
    name, context, kubeconfig = "never", "kind-never", Path("/nowhere")

    def __init__(self) -> None:
        self.asked = 0

    def nodes(self) -> list[str]:
        self.asked += 1
        return []


def stack(**changes: Any) -> Any:
    return SimpleNamespace(**{"mirrors": {}, "containerd_patches": (), "node_images": (), **changes})


def test_a_failed_creation_ends_it() -> None:
    """The error is kind's own, also when nothing could be filled yet."""
    nodes: Any = Nodes()

    def create() -> None:
        while not nodes.asked:
            time.sleep(0.01)
        raise RuntimeError("kind failed")

    filling = preload.filling(nodes, stack(), OWN, CONTEXT)
    with pytest.raises(RuntimeError, match="kind failed"), filling:
        create()
    asked = nodes.asked
    time.sleep(preload.POLL_SECONDS * 2)
    assert nodes.asked == asked


def test_what_could_not_begin_is_left() -> None:
    """A creation that succeeded is not held up by what it did not show."""
    nodes: Any = Nodes()
    with preload.filling(nodes, stack(), OWN, SimpleNamespace()) as begun:  # type: ignore[arg-type]
        pass
    assert begun == preload.CompletedSteps()


@pytest.mark.parametrize("changes", [{"mirrors": {"docker.io": "x"}}, {"containerd_patches": ("x",)}])
def test_nothing_is_begun_where_containerd_restarts(changes: dict[str, Any]) -> None:
    nodes: Any = Nodes()
    with preload.filling(nodes, stack(**changes), OWN, SimpleNamespace()) as begun:  # type: ignore[arg-type]
        pass
    assert not nodes.asked
    assert not begun.prepared
