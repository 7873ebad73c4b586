"""Copy the `--data` texts to a volume on a kind cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.core.errors import HarnessError
from harness.workers.training import documents

SOURCE = "source.json"
"""The file that contains the entropy of generated texts (harness/workers/training/source.py)."""


def copy_texts(data: Path, destination: Path) -> None:
    """Copy the texts, and other files in their folder, to a volume. Files with the same names are replaced.

    Raises HarnessError if there is not enough space, or if the volume also contains other texts, because the
    ranks would train on those too.
    """
    destination.mkdir(parents=True, exist_ok=True)
    relative_paths = {path.relative_to(data) for path in data.iterdir() if path.is_file()}
    splits = {
        split: [path.relative_to(data) for path in documents.files(data, split)] for split in documents.SPLITS
    }
    relative_paths.update(path for paths in splits.values() for path in paths)
    size = sum((data / path).stat().st_size for path in relative_paths)
    if size > (free := shutil.disk_usage(destination).free):
        raise HarnessError(
            f"--data {data}: expected {size / 2**30:.1f} GiB of free disk space for the copy in "
            f"{destination}, found {free / 2**30:.1f} GiB",
            hint="free some disk space, or use fewer texts",
        )
    if Path(SOURCE) not in relative_paths:
        # An existing file describes earlier texts, and the loss would be compared with their entropy.
        (destination / SOURCE).unlink(missing_ok=True)
    for path in sorted(relative_paths):
        (destination / path).parent.mkdir(mode=0o755, exist_ok=True)
        shutil.copyfile(data / path, destination / path)
        (destination / path).chmod(0o644)  # The ranks run as a different user and must read the file.
    for split, paths in splits.items():
        try:
            existing = [path.relative_to(destination) for path in documents.files(destination, split)]
            problem = f"it also has {next((path for path in existing if path not in paths), existing[0])}"
        except ValueError as error:
            existing, problem = [], f"{error}"
        if existing != paths:
            raise HarnessError(
                f"--data {data}: the volume {destination} has different texts from an earlier launch: "
                f"{problem}",
                hint="remove the old texts from the volume, or choose another volume name with --volumes",
            )
