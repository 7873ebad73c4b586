"""Somebody's own cluster, named by --kubeconfig and --context: used as it is, never created, never deleted.

Only locks of this machine's harnesses are kept for it, below <state>/existing/.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.kubeconfig import context_of
from harness.core.kubernetes import Kube
from harness.core.locks import Hold, take
from harness.settings import Settings


class ExistingCluster:
    """What a launch has to know of it."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError where there is no such kubeconfig, or no such context in it."""
        if settings.kubeconfig is None:
            raise UsageError("a kubeconfig is expected", hint="--kubeconfig FILE --context NAME")
        self.kubeconfig: Path = settings.kubeconfig.absolute()
        self.context = context_of(self.kubeconfig, settings.context)
        self.name = self.context
        which = hashlib.sha256(f"{self.kubeconfig}\0{self.context}".encode()).hexdigest()[:12]
        self.dir = settings.state_dir / "existing" / which

    def kube(self) -> Kube:
        """Raises HarnessError, cause cluster.kubeconfig."""
        return Kube(self.kubeconfig, self.context, self.dir / "discovery.json")

    def use(self) -> Hold:
        """As a cluster of the harness's own; nobody removes this one."""
        return take(self.dir / "users", shared=True)
