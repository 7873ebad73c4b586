"""Read a kubeconfig and choose a context, with better error messages than the Kubernetes client's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.core.errors import UsageError
from harness.core.user_files import read_bytes
from harness.core.user_yaml import yaml_document

if TYPE_CHECKING:
    from kubernetes import client

CAUSE: Final = "cluster.kubeconfig"
MAX_BYTES: Final = 4 << 20
"""The maximum size of a kubeconfig in bytes. A kubeconfig can contain the certificates of many clusters."""
_ANOTHER_FILE = (
    "use another file with --kubeconfig FILE; `kubectl config get-contexts` lists a file's contexts"
)


def context_of(kubeconfig: Path, requested: str | None = None) -> str:
    """Return the name of the context to use: `requested`, if set, or else the file's current context.

    Also check the sizes of the context's token, certificate and key files, which the Kubernetes client does
    not limit. If the context does not exist, raises UsageError (cause cluster.kubeconfig) with a list of the
    file's contexts.
    """
    document = document_of(kubeconfig)
    contexts = document.get("contexts")
    entries = contexts if isinstance(contexts, list) else []
    names = [str(each.get("name")) for each in entries if isinstance(each, dict)]
    name = str(requested or document.get("current-context") or "")
    if name in names:
        for file_name, path in _credentials(document, kubeconfig, name):
            credential(path, file_name)
        return name
    expected = f"context {name}" if name else "a current context"
    raise UsageError(
        f"expected {expected} in {kubeconfig}; contexts in this file: {', '.join(names) or 'none'}",
        hint="choose a context with --context NAME" if names else _ANOTHER_FILE,
        cause=CAUSE,
    )


def token_file(kubeconfig: Path, context: str) -> Path | None:
    """Return the path of the token file for a context's user, or None if the user does not have one."""
    document = document_of(kubeconfig)
    user = entry_of(document, "user", str(entry_of(document, "context", context).get("user")))
    return kubeconfig.parent / str(user["tokenFile"]) if user.get("tokenFile") else None


def _credentials(document: dict[str, Any], kubeconfig: Path, context: str) -> Iterator[tuple[str, Path]]:
    """Yield the files that the Kubernetes client reads for a context, as (key in the kubeconfig, path of the
    file)."""
    context_entry = entry_of(document, "context", context)
    for kind in ("cluster", "user"):
        entry = entry_of(document, kind, str(context_entry.get(kind)))
        for name in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
            if entry.get(name) and not entry.get(f"{name}-data"):
                yield name, kubeconfig.parent / str(entry[name])


def credential(path: Path, name: str) -> bytes:
    """Return the content of a token, certificate or key file.

    `name` is the key in the kubeconfig that refers to the file, such as "client-key". Raises UsageError
    (cause cluster.kubeconfig) if the file cannot be read.
    """
    try:
        return read_bytes(path, f"kubeconfig's {name}")
    except UsageError as error:
        raise UsageError(error.message, hint=_ANOTHER_FILE, cause=CAUSE) from None


def reading(token: Path) -> Callable[[client.Configuration], None]:
    """Return a hook for the Kubernetes client that reads the token file before every request.

    Without the hook, the client reads the file only once, but the kubelet replaces the token before it
    expires.
    """

    def read(configuration: client.Configuration) -> None:
        try:
            configuration.api_key["BearerToken"] = f"Bearer {credential(token, 'tokenFile').decode().strip()}"
        except (UsageError, ValueError):
            return  # The file is being replaced, and the previous token is still valid.

    return read


def document_of(kubeconfig: Path) -> dict[str, Any]:
    """Return the parsed content of a kubeconfig.

    Raises UsageError (cause cluster.kubeconfig) if it is invalid.
    """
    try:
        document = yaml_document(kubeconfig, "kubeconfig", max_bytes=MAX_BYTES)
    except UsageError as error:
        raise UsageError(error.message, hint=_ANOTHER_FILE, cause=CAUSE) from None
    if isinstance(document, dict):
        return document
    problem = "is empty" if document is None else "holds no kubeconfig"
    raise UsageError(f"kubeconfig {kubeconfig} {problem}", hint=_ANOTHER_FILE, cause=CAUSE)


def entry_of(document: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Return the entry `name` of a kubeconfig's `contexts`, `clusters` or `users` list, or {} if there is
    none."""
    entries = document.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry[kind] if isinstance(entry.get(kind), dict) else {}
    return {}


def cluster_entry(document: dict[str, Any], context: str) -> dict[str, Any]:
    """Return the entry of a kubeconfig's `clusters` list to which a context refers, or {} if there is
    none."""
    return entry_of(document, "cluster", str(entry_of(document, "context", context).get("cluster")))


def namespace_of(kubeconfig: Path, context: str | None) -> str:
    """Return the namespace of a kubeconfig's context. As in kubectl, the default is "default"."""
    entry = entry_of(document_of(kubeconfig), "context", context_of(kubeconfig, context))
    return str(entry.get("namespace") or "default")
