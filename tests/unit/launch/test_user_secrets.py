"""`harness train --secret`: where a value comes from, what is refused, and what a gated model needs."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.launch import huggingface_access, user_secrets
from harness.launch.user_secrets import HF_KEY, UserSecret, Wanted
from harness.launch.workloads import training
from harness.launch.workloads.training_spec import TrainingSpec

TOKEN = "a-token-of-the-hub"
CONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: c, user: u, namespace: team}}
- {name: b, context: {cluster: c, user: u}}
clusters: []
users: []
"""


class Cluster:
    """A cluster with Secrets, by namespace and name."""

    def __init__(self, folder: Path, secrets: dict[str, dict[str, str]], context: str = "a") -> None:
        self.kubeconfig, self.context, self._secrets = folder / "kubeconfig", context, secrets
        self.kubeconfig.write_text(CONFIG)

    def get(self, _: str, __: str, name: str, namespace: str) -> dict[str, Any] | None:
        """Return a Secret."""
        found = self._secrets.get(f"{namespace}/{name}")
        data = {key: base64.b64encode(value.encode()).decode() for key, value in (found or {}).items()}
        return None if found is None else {"type": "Opaque", "data": data}

    def read(self, text: str, **environment: str) -> UserSecret:
        """Return the Secret that one --secret asks for."""
        asked = [user_secrets.wanted(text)]
        return user_secrets.read(self, asked, environment)[0]  # type: ignore[arg-type] # all that it asks


@pytest.mark.parametrize(
    ("text", "context", "where"),
    [("hf-token", "a", "team"), ("hf-token", "b", "default"), ("other/hf-token", "a", "other")],
)
def test_a_secret_is_of_the_callers_namespace(tmp_path: Path, text: str, context: str, where: str) -> None:
    found = Cluster(tmp_path, {f"{where}/hf-token": {HF_KEY: TOKEN}}, context).read(text)
    assert found.values == [TOKEN]
    assert found.copy("e2e-1")["metadata"] == {"name": "hf-token", "namespace": "e2e-1"}
    assert TOKEN not in repr(found)
    assert base64.b64encode(TOKEN.encode()).decode() not in repr(found)


def test_a_secret_is_made_of_a_variable(tmp_path: Path) -> None:
    """Contract: the key is the variable; of hf-token it is the guide's, whose variable is known."""
    cluster = Cluster(tmp_path, {})
    assert cluster.read("wandb=WANDB_API_KEY", WANDB_API_KEY=TOKEN).data.keys() == {"WANDB_API_KEY"}
    for text in ("hf-token", "hf-token=HF_TOKEN"):
        found = cluster.read(text, HF_TOKEN=TOKEN)
        assert (found.data.keys(), found.values) == ({HF_KEY}, [TOKEN])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf-token", "namespace team has no Secret with this name"),
        ("wandb", "the Secret in namespace team has no key"),
        ("team/hf-token", "namespace team has no Secret"),
        ("hf-token=HF_TOKEN", "expected a value in the environment variable HF_TOKEN, but it is not set"),
        ("hf-token=EMPTY", "it is empty"),
        ("hf-token=BLANK", "it is empty"),
        ("blank/hf-token", f"in the key {HF_KEY}, but this key of the Secret in namespace blank is empty"),
        ("other/hf-token", f"expected the key {HF_KEY}, but the Secret in namespace other has token"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, message: str) -> None:
    secrets = {"team/wandb": {}, "other/hf-token": {"token": TOKEN}, "blank/hf-token": {HF_KEY: "\n"}}
    cluster = Cluster(tmp_path, secrets)
    with pytest.raises(UsageError, match=message):
        cluster.read(text, EMPTY="", BLANK=" \n")


@pytest.mark.parametrize("text", ["hf-token=hf_aValueByMistake", "a/b=C", "A_B", "", "a b"])
def test_a_refused_secret_option_does_not_repeat_the_value(text: str) -> None:
    with pytest.raises(UsageError, match="NAME=VARIABLE with a variable in your environment") as refused:
        user_secrets.wanted(text)
    assert "aValueByMistake" not in str(refused.value)


def test_the_ranks_get_the_keys_as_variables() -> None:
    """Contract: hf-token by its key, which must exist then; every key of another Secret."""
    asked = TrainingSpec(secrets=(Wanted("hf-token"), Wanted("wandb")))
    spec = training.workload(asked).document["spec"]["template"]["spec"]["containers"][0]
    token = next(one for one in spec["env"] if one["name"] == HF_KEY)
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": HF_KEY, "optional": False}
    assert spec["envFrom"] == [{"secretRef": {"name": "wandb"}}]
    with pytest.raises(UsageError, match="--secret hf-token must be given only once"):
        TrainingSpec(secrets=(Wanted("hf-token"), Wanted("hf-token", variable="HF_TOKEN")))


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    """A stand-in for the hub: it has an open model, and a gated one for those who have the token."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            token = self.headers.get("Authorization", "")
            if self.path.startswith("/open/"):
                self._answer(200)
            elif self.path.startswith("/gated/"):
                self._answer(200 if token == f"Bearer {TOKEN}" else 403 if token else 401, "GatedRepo")
            else:
                self._answer(404, "RepoNotFound")

        def _answer(self, status: int, reason: str = "") -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", reason)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("model", "token", "message"),
    [
        ("open/gpt", None, ""),
        ("gated/llama", TOKEN, ""),
        (
            "gated/llama",
            None,
            "denies access .HTTP 401.: the model is gated or private, but no token is passed to the ranks",
        ),
        ("gated/llama", "another", "HTTP 403.: the token in hf-token is not permitted to read the model"),
        ("no/such", None, "the Hugging Face hub has no such model"),
        ("a/b/../c", None, "expected a model on the Hugging Face hub"),
    ],
)
def test_a_model_that_the_hub_refuses_is_not_launched(
    hub_url: str, model: str, token: str | None, message: str
) -> None:
    messages: list[str] = []
    if not message:
        huggingface_access.check(model, token, messages.append, {"HF_ENDPOINT": hub_url})
    else:
        with pytest.raises(UsageError, match=message) as refused:
            huggingface_access.check(model, token, messages.append, {"HF_ENDPOINT": hub_url})
        assert "another" not in str(refused.value)
    assert messages == []


def test_an_unreachable_hub_does_not_refuse_the_launch() -> None:
    """Contract: the ranks may reach it; one line says that nobody asked."""
    messages: list[str] = []
    huggingface_access.check("gated/llama", None, messages.append, {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert "could not ask the Hugging Face hub whether the model is gated" in messages[0]


def test_only_a_model_of_the_hub_is_asked_for() -> None:
    assert TrainingSpec(options=("--model", "gpt2")).hub_model == "gpt2"
    assert TrainingSpec(options=("--model", "gpt2", "--local-files-only")).hub_model is None
    assert TrainingSpec(options=("--model-local-dir", "/models/gpt2")).hub_model is None
    assert TrainingSpec().hub_model is None
