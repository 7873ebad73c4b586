"""The records of training-*.json: the checkpoints of a training on its volume
(harness/workers/training/audit.py), and their upload to and download from S3 storage (transfer.py).
"""

from __future__ import annotations

from typing import Any

from harness.evidence.schema.record import Record

AUDIT = "training-audit.json"
UPLOAD = "training-upload.json"
RESUMED_FROM = "training-resumed-from.json"
TRANSFER_SECRET = "training-transfer"  # noqa: S105 - its name
"""The Secret of a launch that holds the S3 keys for a transfer. The harness deletes it after the transfer."""


class TrainedCheckpoint(Record):
    """A folder that is named like a checkpoint. The checkpoint in it can be incomplete."""

    name: str
    whole: bool
    """Whether all files exist with the sizes and digests in the checkpoint's manifest."""
    why: str | None = None
    """The reason why the checkpoint is incomplete or cannot be loaded."""
    epoch: int = 0
    step: int = 0
    """The number of training steps so far, across all epochs."""
    world: int = 0
    losses: dict[str, float] = {}
    weights: str | None = None
    """SHA-256 of the weights. None if the checkpoint could not be loaded."""
    not_finite: list[str] = []
    """Names of weights that contain NaN or an infinite value."""


class BestCheckpoint(Record):
    """The checkpoint to which `best` points, and its validation loss computed by the audit."""

    target: str
    there: bool
    told: dict[str, float] = {}
    """The losses in the checkpoint's manifest."""
    loss: float | None = None
    tokens: int | None = None
    why: str | None = None
    """The reason why the checkpoint could not be evaluated."""


class KnownEntropy(Record):
    """The entropy of generated texts (harness/workers/training/source.py), in nats per byte."""

    entropy: float
    val: float
    """The loss on val.jsonl, computed with the distribution that generated the texts."""


class TrainingAudit(Record):
    """The document training-audit.json."""

    error: str | None = None
    """The reason why the launch has no audit."""
    version: int = 0
    run: str = ""
    there: bool = False
    checkpoints: list[TrainedCheckpoint] = []
    """The checkpoints, by step."""
    leftovers: list[str] = []
    """Folders of checkpoints that were not written completely. A resumed training does not read them."""
    best: BestCheckpoint | None = None
    order: dict[str, int] = {}
    """The values that determine the order of the data: seed, batch, sequences, context."""
    options: dict[str, Any] = {}
    entropy: KnownEntropy | None = None
    unchanged: list[str] | None = None
    """Weights that are equal in the first and the last checkpoint. None with fewer than two checkpoints."""


class TransferredCheckpoint(Record):
    """A transferred checkpoint. Its files were compared with its manifest, byte by byte."""

    name: str
    step: int
    files: int
    """The number of files, including the manifest."""
    bytes: int
    sent: int = 0
    """The number of bytes that this upload sent. All other bytes were already in the bucket."""


class TrainingTransfer(Record):
    """An upload of a run to a prefix of a bucket, or its download from there."""

    error: str | None = None
    """The reason why the transfer failed. The target can contain an incomplete copy of the run."""
    version: int = 0
    url: str = ""
    run: str = ""
    checkpoints: list[TransferredCheckpoint] = []
    """The checkpoints, by step."""
    torn: list[str] = []
    """The reasons why checkpoints were not transferred, one per checkpoint."""
    best: str | None = None
    """The checkpoint that best.txt names. None if it was not transferred."""
