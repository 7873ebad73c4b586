"""The limit of what a rank may write."""

from harness.launch.apply import limit_range


def test_a_limit_asks_for_nothing():
    """Contract: the request is 0, because Kubernetes would otherwise request as much as the limit."""
    (one,) = limit_range("e2e-1", "500Mi")["spec"]["limits"]
    assert one == {
        "type": "Container",
        "default": {"ephemeral-storage": "500Mi"},
        "defaultRequest": {"ephemeral-storage": "0"},
    }
