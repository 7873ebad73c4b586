"""training-*.json: what a training left on its disk (harness/workers/training/audit.py), and what of it was
sent to S3 storage or brought back (transfer.py).
"""

from __future__ import annotations

from typing import Any

from harness.evidence.schema.record import Record

AUDIT = "training-audit.json"
UPLOAD = "training-upload.json"
RESUMED_FROM = "training-resumed-from.json"
TRANSFER_SECRET = "training-transfer"  # noqa: S105 - its name
"""The Secret of a launch with the keys for a transfer. The harness deletes it when the transfer has ended."""


class TrainedCheckpoint(Record):
    """One folder that claims to be a checkpoint."""

    name: str
    whole: bool
    """Its files are there, with the sizes and digests of its manifest."""
    why: str | None = None
    """What is wrong with it."""
    epoch: int = 0
    step: int = 0
    """Steps that were made, over all epochs."""
    world: int = 0
    losses: dict[str, float] = {}
    weights: str | None = None
    """SHA-256 of the weights. None: it could not be loaded."""
    not_finite: list[str] = []
    """Weights that hold NaN or an infinity."""


class BestCheckpoint(Record):
    """Where `best` leads, and its validation loss, found anew."""

    target: str
    there: bool
    told: dict[str, float] = {}
    """What its manifest says."""
    loss: float | None = None
    tokens: int | None = None
    why: str | None = None
    """Why it could not be evaluated."""


class KnownEntropy(Record):
    """Of texts that were made (harness/workers/training/source.py), in nats a byte."""

    entropy: float
    val: float
    """The loss of the texts' own probabilities on val.jsonl."""


class TrainingAudit(Record):
    """The whole document."""

    error: str | None = None
    """Why there was no audit."""
    version: int = 0
    run: str = ""
    there: bool = False
    checkpoints: list[TrainedCheckpoint] = []
    """By step."""
    leftovers: list[str] = []
    """Folders that were being written when something was killed. No resume reads them."""
    best: BestCheckpoint | None = None
    order: dict[str, int] = {}
    """What the order of the data is made from: seed, batch, sequences, context."""
    options: dict[str, Any] = {}
    entropy: KnownEntropy | None = None
    unchanged: list[str] | None = None
    """Weights that are the same in the first and the last checkpoint. None: there are no two."""


class TransferredCheckpoint(Record):
    """A checkpoint whose files were compared with its manifest, byte by byte."""

    name: str
    step: int
    files: int
    """Its files with the manifest."""
    bytes: int
    sent: int = 0
    """Bytes that this upload sent; the others were there."""


class TrainingTransfer(Record):
    """What was sent to a prefix of a bucket, or brought back from it."""

    error: str | None = None
    """Why it failed. The bucket or the volume may have a part of it."""
    version: int = 0
    url: str = ""
    run: str = ""
    checkpoints: list[TransferredCheckpoint] = []
    """By step."""
    torn: list[str] = []
    """What is wrong with checkpoints that were not transferred."""
    best: str | None = None
    """The checkpoint that best.txt names. None where it was not transferred."""
