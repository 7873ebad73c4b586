"""Determine the addresses and settings that NCCL, gloo and torchrun derive from this host's own name and
interfaces.

Resolving a name can block for longer than a check may take, so each lookup runs in its own thread and has a
timeout. This module uses only the standard library, and supports Python 3.9 and later.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, TypeVar  # noqa: UP035 - Python 3.9

from . import interfaces, socket_ifname, torchrun_names
from .finding import Finding, failed, unknown
from .torchrun_options import gpus
from .variables import Environment

TIMEOUT = 2.0
"""Timeout in seconds for resolving this host's own name."""

_T = TypeVar("_T")


@dataclass
class OwnName:
    """The results of resolving this host's own name. The defaults apply to a job with one pod."""

    findings: list[Finding] = field(default_factory=list)
    bound: str = ""
    """The address on which NCCL (with GPUs) or gloo would listen, or "" if it is unknown."""
    why: str = ""
    """A sentence that says why the library would listen on this address."""
    gloo: str = ""
    """`bound` if gloo would listen there and it is not a loopback address, otherwise ""."""
    torchrun: dict[str, Any] = field(default_factory=dict)
    """The settings that torchrun derives from this host's name (torchrun_names.own)."""

    @classmethod
    def read(cls, known: Environment, variables: Mapping[str, str], alone: bool) -> OwnName:
        """Check the interface variables and resolve this host's own name, for at most twice TIMEOUT.

        If `alone` is true, the job has one pod, and no name is resolved.
        """
        own = cls(list(socket_ifname.check_names(variables, alone=alone)))
        if not alone:
            if not own.findings:
                own._bind(variables)
            own._name(known)
        return own

    @property
    def facts(self) -> dict[str, Any]:
        """Return the properties of this host's name that rank 0 compares between the ranks."""
        return {**self.torchrun, "gloo": self.gloo}

    @property
    def published(self) -> str:
        """Return this host's name if torchrun may pass it to all workers as MASTER_ADDR, otherwise ""."""
        return str(self.torchrun.get("published", ""))

    def _bind(self, variables: Mapping[str, str]) -> None:
        library, addresses = (
            socket_ifname.nccl if gpus() else socket_ifname.gloo,
            interfaces.with_link_local(),
        )
        found = _within_timeout(lambda: library(variables, addresses))
        if not found:
            text = f"this host's own name, which gloo uses, did not resolve within {TIMEOUT:.0f} s"
            self.findings.append(unknown("interface", text))
        elif (binding := found[0]) is not None:
            self.bound = binding.address
            self.gloo = binding.address if binding.library == "gloo" and not binding.loopback else ""
            self.why = f"{binding.library} would listen on {binding.address}, because {binding.reason}"
            if binding.loopback:
                self.findings.append(failed("address.advertised", self.why))

    def _name(self, known: Environment) -> None:
        found = _within_timeout(lambda: torchrun_names.own(known.torchrun, known.master_addr))
        if found:
            self.torchrun = found[0]
        else:
            text = f"this host's own name, which torchrun uses, did not resolve within {TIMEOUT:.0f} s"
            self.findings.append(unknown("dns", text))


def _within_timeout(call: Callable[[], _T]) -> list[_T]:
    """Return [the result of the call], or [] if it raises an exception or takes longer than TIMEOUT."""
    found: list[_T] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return found
