"""Somebody's own cluster, named by --kubeconfig and --context: used as it is, never created, never deleted.

Only locks of this machine's harnesses are kept for it, below <state>/existing/.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from harness.errors import HarnessError, UsageError
from harness.kube import Kube
from harness.locked import Hold, take
from harness.settings import Settings


class ExistingCluster:
    """What a launch has to know of it."""

    def __init__(self, settings: Settings) -> None:
        if settings.kubeconfig is None:
            raise UsageError("a kubeconfig is expected", hint="--kubeconfig FILE --context NAME")
        if not settings.kubeconfig.is_file():
            raise UsageError(f"there is no kubeconfig {settings.kubeconfig}")
        self.kubeconfig: Path = settings.kubeconfig.absolute()
        self.context = settings.context or _current(self.kubeconfig)
        self.name = self.context
        which = hashlib.sha256(f"{self.kubeconfig}\0{self.context}".encode()).hexdigest()[:12]
        self.dir = settings.state_dir / "existing" / which

    def kube(self) -> Kube:
        """Raises HarnessError, cause cluster.kubeconfig."""
        return Kube(self.kubeconfig, self.context, self.dir / "discovery.json")

    def use(self) -> Hold:
        """As a cluster of the harness's own; nobody removes this one."""
        return take(self.dir / "users", shared=True)


def _current(kubeconfig: Path) -> str:
    """The kubeconfig's own current context; its text is never written."""
    try:
        document = yaml.safe_load(kubeconfig.read_text())
        current = document.get("current-context")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as error:
        raise HarnessError(
            f"{kubeconfig} is no kubeconfig: {type(error).__name__}", cause="cluster.kubeconfig"
        ) from None
    if not current:
        raise UsageError(f"{kubeconfig} has no current context", hint="name one: --context NAME")
    return str(current)
