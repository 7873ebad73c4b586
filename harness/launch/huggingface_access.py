"""Check before a launch whether the ranks have access to a model on the Hugging Face hub.

The hub rejects requests for a gated model's files with 401 or 403, and the X-Error-Code header contains the
reason (huggingface_hub, utils/_http.py). If this machine cannot reach the hub, the launch continues, because
the ranks might be able to reach it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from harness.core.errors import UsageError
from harness.core.progress import Progress

SECONDS = 5.0
_MODEL = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HINT = "accept the model's license on the Hugging Face hub, and pass the token with --secret hf-token"


def check(
    model: str, token: str | None, progress: Progress, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise UsageError if the model does not exist on the hub, or if the hub refuses access to it with this
    token."""
    if not _MODEL.fullmatch(model):
        raise UsageError(
            f"--model: expected a model on the Hugging Face hub, such as OWNER/NAME, found {model!r}"
        )
    import httpx  # Imported here, because the import is slow and rarely needed.

    from harness.core.http_client import client

    base = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        url = f"{base.rstrip('/')}/{model}/resolve/main/config.json"
        with client(timeout=SECONDS, follow_redirects=False) as hub:
            response = hub.head(url, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        progress(
            f"--model {model}: could not ask the Hugging Face hub whether the model is gated "
            f"({type(error).__name__})"
        )
        return
    reason = response.headers.get("X-Error-Code", "")
    if response.status_code == 404 and reason in ("RepoNotFound", "EntryNotFound"):
        raise UsageError(
            f"--model {model}: the Hugging Face hub has no such model",
            hint="write the name as OWNER/NAME, and check its spelling",
        )
    if response.status_code in (401, 403):
        if token is None:
            detail = "the model is gated or private, but no token is passed to the ranks"
        else:
            detail = "the token in hf-token is not permitted to read the model"
        raise UsageError(
            f"--model {model}: the Hugging Face hub denies access (HTTP {response.status_code}): {detail}",
            hint=_HINT,
        )
