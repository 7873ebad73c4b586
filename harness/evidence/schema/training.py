"""The records in training-*.json: the checkpoints on a training job's volume
(harness/workers/training/audit.py), and their upload to and download from S3 storage (transfer.py).
"""

from __future__ import annotations

from typing import Any

from harness.evidence.schema.record import Record

AUDIT = "training-audit.json"
UPLOAD = "training-upload.json"
RESUMED_FROM = "training-resumed-from.json"
TRANSFER_SECRET = "training-transfer"  # noqa: S105 - its name
"""The name of the Secret that contains a launch's S3 keys for a transfer. The Secret is deleted after the
transfer."""


class TrainedCheckpoint(Record):
    """A directory with the name of a checkpoint. The checkpoint in the directory may be incomplete."""

    name: str
    whole: bool
    """Whether all files exist with the sizes and digests in the checkpoint's manifest."""
    why: str | None = None
    """The reason why the checkpoint is incomplete or cannot be loaded. None if it is complete and was
    loaded."""
    epoch: int = 0
    step: int = 0
    """The number of training steps so far, across all epochs."""
    world: int = 0
    losses: dict[str, float] = {}
    """The losses listed in the checkpoint's manifest, with the fingerprint of the validation texts
    (`val/texts`) and the step since which they have been used (`val/since`)."""
    weights: str | None = None
    """The SHA-256 of the weights, or None if the checkpoint could not be loaded."""
    not_finite: list[str] = []
    """The names of weights that contain NaN or infinite values."""


class BestCheckpoint(Record):
    """The checkpoint to which `best` points, and its validation loss as computed by the audit."""

    target: str
    there: bool
    told: dict[str, float] = {}
    """The losses listed in the checkpoint's manifest."""
    loss: float | None = None
    tokens: int | None = None
    texts: int | None = None
    """The fingerprint of the validation texts with which the audit computed the loss."""
    why: str | None = None
    """Why the checkpoint could not be evaluated."""


class KnownEntropy(Record):
    """The entropy of the generated texts (harness/workers/training/source.py), in nats per byte."""

    entropy: float
    val: float
    """The lowest possible expected loss on val.jsonl, which is the loss of the distribution that generated
    the texts."""


class TrainingAudit(Record):
    """The content of training-audit.json: the audit of the checkpoints on a training job's volume."""

    error: str | None = None
    """The reason why the launch has no audit."""
    version: int = 0
    run: str = ""
    there: bool = False
    checkpoints: list[TrainedCheckpoint] = []
    """The checkpoints, sorted by step."""
    leftovers: list[str] = []
    """Directories with checkpoints that were not completely written. Resumed training does not read them."""
    best: BestCheckpoint | None = None
    order: dict[str, int] = {}
    """The values that determine the data order: seed, batch, sequences, context."""
    options: dict[str, Any] = {}
    entropy: KnownEntropy | None = None
    unchanged: list[str] | None = None
    """The names of weights that are the same in the first and the last checkpoint. None if there are fewer
    than two checkpoints."""


class TransferredCheckpoint(Record):
    """A transferred checkpoint. Its files were compared byte by byte with the digests in its manifest."""

    name: str
    step: int
    files: int
    """The number of files, including the manifest."""
    bytes: int
    sent: int = 0
    """The number of bytes sent by this upload. All other bytes were already in the bucket."""


class TrainingTransfer(Record):
    """The upload of a training run to a bucket prefix, or its download from a bucket prefix."""

    error: str | None = None
    """Why the transfer failed. The target may contain an incomplete copy of the run."""
    version: int = 0
    url: str = ""
    run: str = ""
    checkpoints: list[TransferredCheckpoint] = []
    """The checkpoints, sorted by step."""
    torn: list[str] = []
    """The reasons why checkpoints were not transferred, one per checkpoint."""
    best: str | None = None
    """The checkpoint named in best.txt, or None if it was not transferred."""
