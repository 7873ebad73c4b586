"""Ask the Hugging Face hub, before a launch, whether the ranks may read a model.

The hub answers a request for a file of a gated model with 401 or 403, and names the reason in the header
X-Error-Code (huggingface_hub, utils/_http.py). A hub that is not reached from here proves nothing: the ranks
may reach it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from harness.core.errors import UsageError
from harness.core.progress import Progress

SECONDS = 5.0
_MODEL = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HINT = "accept the model's license on the hub, and name the token: --secret hf-token"


def check(
    model: str, token: str | None, progress: Progress, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise UsageError where the hub refuses this model, or does not have it."""
    if not _MODEL.fullmatch(model):
        raise UsageError(
            f"--model: the name of a model on the hub is expected, as OWNER/NAME; seen {model!r}"
        )
    import httpx  # slow to import, and few trainings take a model of the hub

    base = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        url = f"{base.rstrip('/')}/{model}/resolve/main/config.json"
        answer = httpx.head(url, headers=headers, timeout=SECONDS, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        progress(f"--model {model}: the hub was not asked whether it is gated ({type(error).__name__})")
        return
    reason = answer.headers.get("X-Error-Code", "")
    if answer.status_code == 404 and reason in ("RepoNotFound", "EntryNotFound"):
        raise UsageError(f"--model {model}: the hub has no such model", hint="its name there is OWNER/NAME")
    if answer.status_code in (401, 403):
        if token is None:
            why = "it is gated or private, and the ranks have no token"
        else:
            why = "the token of hf-token may not read it"
        raise UsageError(f"--model {model}: the hub refuses it with {answer.status_code}: {why}", hint=_HINT)
