"""What konduktor is given for a launch, and why it failed."""

from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.launch.konduktor.config import Submission, konduktor_config, users_config
from harness.launch.konduktor.submit import reason


@pytest.mark.parametrize("request_", [None, "510m"])
def test_a_lowered_request_leaves_the_limit(request_: str | None) -> None:
    config = konduktor_config(Submission("ns", "0badcafe", "", {"MY_TOKEN": ("pluto", "MY_TOKEN")}, request_))
    container = config["kubernetes"]["pod_config"]["spec"]["containers"][0]
    assert container.get("resources") == ({"requests": {"cpu": request_}} if request_ else None)
    reference = {"secretKeyRef": {"name": "pluto", "key": "MY_TOKEN"}}
    assert container["env"] == [{"name": "MY_TOKEN", "valueFrom": reference}]


def test_a_users_konduktor_config_goes_under_the_harness_s(tmp_path: Path) -> None:
    """Its pod is merged as konduktor merges. Fields that could send the job elsewhere are dropped."""
    path = tmp_path / "konduktor.yaml"
    path.write_text(
        """
kubernetes:
  allowed_contexts: [production]
  pod_config:
    spec:
      nodeSelector: {disk: ssd}
      containers:
      - imagePullPolicy: Always
        env: [{name: OMP_NUM_THREADS, value: "1"}]
"""
    )
    submission = Submission("ns", "0badcafe", "", {"A": ("s", "a")}, users=users_config(path))
    config = konduktor_config(submission)["kubernetes"]
    assert "allowed_contexts" not in config
    spec = config["pod_config"]["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    (container,) = spec["containers"]
    assert container["imagePullPolicy"] == "Always"
    assert [entry["name"] for entry in container["env"]] == ["OMP_NUM_THREADS", "A"]
    assert spec["topologySpreadConstraints"]
    assert container["command"]
    alone = konduktor_config(Submission("ns", "0badcafe", "", {}))["kubernetes"]["pod_config"]["spec"]
    assert alone["containers"][0]["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize("text", ["[", "text", "kubernetes: {pod_config: 1}", None])
def test_a_file_that_is_no_konduktor_config_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "konduktor.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match="HARNESS_KONDUKTOR_CONFIG"):
        users_config(path)


REFUSED = """Traceback (most recent call last):
kubernetes.client.exceptions.ApiException: (403)
Reason: Forbidden
HTTP response headers: HTTPHeaderDict({'Content-Type': 'application/json'})
HTTP response body: {"kind":"Status","message":"jobsets \\"x\\" is forbidden: no budget","code":403}


"""


@pytest.mark.parametrize(
    ("output", "cause", "message"),
    [
        (REFUSED, "launch.rejected", 'HTTP 403: jobsets "x" is forbidden: no budget'),
        (REFUSED.replace("{", "<"), "launch.rejected", "HTTP 403: <"),
        (REFUSED.replace("(403)", "(500)"), "launch.konduktor_failed", "exit code 1"),
        (
            "a\n\x1b[31mImportError: no x\x1b[0m\n",
            "launch.konduktor_failed",
            "exit code 1: ImportError: no x",
        ),
        ("", "launch.konduktor_failed", "it printed nothing"),
        ("asking\nstill running after 45 s", "launch.timed_out", "its last output was: asking"),
    ],
)
def test_why_konduktor_failed(output: str, cause: str, message: str) -> None:
    got, why = reason(1, output)
    assert got == cause
    assert message in why
