"""The evidence bundle: what was seen, on disk, between everything that acts and everything that judges."""

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
