"""The evidence bundle: the record on disk between the code that runs a launch and the code that judges it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.evidence.files import LogFile
    from harness.evidence.objects import ObjectState, Pod
    from harness.evidence.reader import Bundle
    from harness.evidence.redaction import Redactor
    from harness.evidence.truth import TruthCollector, extract
    from harness.evidence.writer import BundleWriter

__all__ = [
    "Bundle",
    "BundleWriter",
    "LogFile",
    "ObjectState",
    "Pod",
    "Redactor",
    "TruthCollector",
    "extract",
]
_HOME = {
    "Bundle": "reader",
    "BundleWriter": "writer",
    "LogFile": "files",
    "ObjectState": "objects",
    "Pod": "objects",
    "Redactor": "redaction",
    "TruthCollector": "truth",
    "extract": "truth",
}


def __getattr__(name: str) -> Any:
    """Import a name's module when it is asked for: reader and writer are slow to import (pydantic)."""
    if name in _HOME:
        return getattr(import_module(f"harness.evidence.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
