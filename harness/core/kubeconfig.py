"""Choose the context of a kubeconfig, before the Kubernetes client does: its own errors say less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from harness.core.errors import UsageError

if TYPE_CHECKING:
    from kubernetes import client

CAUSE: Final = "cluster.kubeconfig"
_ANOTHER_FILE = "name another: --kubeconfig FILE; `kubectl config get-contexts` says what is in one"


def context_of(kubeconfig: Path, wanted: str | None = None) -> str:
    """Return `wanted` if the file has it. Without `wanted`, return the file's own current context.

    Raises UsageError, cause cluster.kubeconfig. It names the contexts of the file, and nothing else of it.
    """
    document = _read(kubeconfig)
    contexts = document.get("contexts")
    named = [each for each in contexts if isinstance(each, dict)] if isinstance(contexts, list) else []
    names = [str(each.get("name")) for each in named]
    name = str(wanted or document.get("current-context") or "")
    if name in names:
        return name
    expected = f"context {name}" if name else "a current context"
    raise UsageError(
        f"{expected} is expected in {kubeconfig}, which has the contexts: {', '.join(names) or 'none'}",
        hint="name one of them: --context NAME" if names else _ANOTHER_FILE,
        cause=CAUSE,
    )


def token_file(kubeconfig: Path, context: str) -> Path | None:
    """Return the file with the token of a context's user, or None where it has none."""
    document = _read(kubeconfig)
    named: dict[str, dict[str, Any]] = {"context": {}, "user": {}}
    for kind, found in named.items():
        each = [item for item in document.get(f"{kind}s") or [] if isinstance(item, dict)]
        found.update({str(item.get("name")): item.get(kind) or {} for item in each})
    user = named["user"].get(str(named["context"].get(context, {}).get("user")), {})
    return kubeconfig.parent / str(user["tokenFile"]) if user.get("tokenFile") else None


def reading(token: Path) -> Callable[[client.Configuration], None]:
    """Return what reads the token for every request: the kubelet puts a new one there before it expires.

    The client itself reads it once.
    """

    def read(configuration: client.Configuration) -> None:
        try:
            configuration.api_key["BearerToken"] = f"Bearer {token.read_text().strip()}"
        except OSError:
            return  # it is being replaced: the last one still serves

    return read


def _read(kubeconfig: Path) -> dict[str, Any]:
    try:
        document = yaml.load(kubeconfig.read_text(), yaml.CSafeLoader)  # of certificates: 9 ms in Python
    except FileNotFoundError:
        seen = "is not there"
    except OSError as error:
        seen = f"cannot be read: {error.strerror}"
    except (ValueError, yaml.YAMLError):
        seen = "is no YAML"
    else:
        if isinstance(document, dict):
            return document
        seen = "is empty" if document is None else "holds no kubeconfig"
    raise UsageError(f"expected a kubeconfig, but {kubeconfig} {seen}", hint=_ANOTHER_FILE, cause=CAUSE)
