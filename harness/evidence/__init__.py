"""The evidence bundle: the record on disk between the code that runs a launch and the code that judges it."""

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
