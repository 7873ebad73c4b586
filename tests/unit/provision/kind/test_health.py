"""A cluster that is there and cannot be used: whether its kubeconfig or its API server is the reason."""

from pathlib import Path

import pytest
import yaml

from harness.provision.kind.health import trouble


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """Of an API server that nobody runs."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "kind-x",
        "contexts": [{"name": "kind-x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_context_that_is_not_there(kubeconfig: Path) -> None:
    found = trouble(kubeconfig, "production", [], 3)
    assert found is not None
    assert (found.cause, "production" in found.message) == ("cluster.kubeconfig", True)


@pytest.mark.parametrize("text", [None, "", "a: ["])
def test_a_file_that_is_no_kubeconfig(kubeconfig: Path, text: str | None) -> None:
    kubeconfig.unlink()
    if text is not None:
        kubeconfig.write_text(text)
    found = trouble(kubeconfig, "kind-x", [], 3)
    assert found is not None
    assert (found.cause, str(kubeconfig) in found.message) == ("cluster.kubeconfig", True)


def test_an_api_server_that_does_not_answer(kubeconfig: Path) -> None:
    found = trouble(kubeconfig, "kind-x", [], 3)
    assert found is not None
    assert (found.cause, "https://127.0.0.1:9" in found.message) == ("cluster.unreachable", True)
