"""The evidence bundle: the files written by the launch code and read by the judge."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.evidence.io.files import LogFile
    from harness.evidence.io.ground_truth import TruthCollector, extract
    from harness.evidence.io.reader import Bundle
    from harness.evidence.io.redaction import Redactor
    from harness.evidence.io.writer import BundleWriter
    from harness.evidence.kubernetes.objects import ObjectState, Pod

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
    "Bundle": "io.reader",
    "BundleWriter": "io.writer",
    "LogFile": "io.files",
    "ObjectState": "kubernetes.objects",
    "Pod": "kubernetes.objects",
    "Redactor": "io.redaction",
    "TruthCollector": "io.ground_truth",
    "extract": "io.ground_truth",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first access.

    Importing the reader or the writer is slow, because both import pydantic.
    """
    if name in _HOME:
        return getattr(import_module(f"harness.evidence.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
