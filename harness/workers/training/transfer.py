"""Upload a run to S3 storage or download it, and verify each file. At the end, print one JSON document.

    python -m training.transfer up   --run-dir OUT/RUN --url s3://BUCKET/PREFIX
    python -m training.transfer down --run-dir OUT/RUN --url s3://BUCKET/PREFIX

The prefix contains the files in OUT/RUN: checkpoints (checkpoint.py), best.txt instead of the `best` symlink,
and trackers/id.

up: A checkpoint's files are sent first. Each one is read back from the bucket and compared with the size and
SHA-256 digest in the manifest. The manifest is sent last, so a manifest in the bucket means that its
checkpoint is complete. Objects that already have the correct content are not sent again. An object with
different content is never replaced, except for best.txt if trackers/id shows that it belongs to the same run.
No objects are deleted, and no files are written to disk.

down: The two newest intact checkpoints and the best one are written to a temporary folder next to OUT/RUN.
The folder is renamed to OUT/RUN when all files have been verified. If OUT/RUN exists, the download is
refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from . import checkpoint
from .checkpoint import BEST_NAME, IDENTITY, MANIFEST, TRACKERS, Manifest, Torn
from .object_store import Bucket, Failed, Item, located

VERSION = 1
OWNER = f"{TRACKERS}/{IDENTITY}"
"""The file with a run's random identifier. In a bucket, it shows which run a prefix belongs to."""
MANIFEST_BYTES, SMALL_BYTES = 64 << 20, 4096
"""Maximum size in bytes of a manifest, and of each of the small files best.txt and trackers/id."""
Found = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Local:
    """One file to send: its key below the prefix, and its size and SHA-256 digest."""

    name: str
    path: Path
    size: int
    sha256: str


def main(arguments: list[str] | None = None) -> int:
    """Transfer the run, and print the JSON document. Return the exit code, which is 1 after an error."""
    parser = argparse.ArgumentParser("python -m training.transfer")
    parser.add_argument("direction", choices=("up", "down"))
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--url", required=True)
    options = parser.parse_args(arguments)
    # Without a handler, process 1 would ignore SIGTERM and leave its files behind.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    transfer = upload if options.direction == "up" else download
    report: Found = {"version": VERSION, "url": options.url, "run": options.run_dir.name}
    try:
        report |= transfer(options.run_dir, options.url, os.environ, _say)
    except (Failed, Torn, OSError, ValueError) as error:
        report |= {"error": f"{error}"[:1000]}
    print(json.dumps(report), flush=True)
    return 1 if "error" in report else 0


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # A second signal would interrupt the abort of an upload.
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(f"[TRANSFER] {text}", flush=True)


# -- up --------------------------------------------------------------------------------------------------
def upload(run: Path, url: str, environment: Mapping[str, str], say: Say) -> Found:
    """Upload a run, and return a summary.

    After an error, objects that were already sent stay in the bucket.
    """
    target = Target(*located(url), environment)
    folders, defects = whole_on_disk(run)
    if not folders:
        raise Failed(f"{run} has no intact checkpoint to upload" + f": {'; '.join(defects)}" * bool(defects))
    plans = [(folder.name, _files(folder, manifest), manifest) for folder, manifest in folders]
    owner = _small_file(run, OWNER)
    best = _best(run, {folder.name for folder, _ in folders})
    is_same_run = target.belongs_to(owner)
    for name, files, _ in plans:
        say(f"checking which files {target.at(name)} already contains")
        target.compare(files)
    if best and not is_same_run:
        target.compare([best])
    if owner:
        target.send(owner)
    checkpoints = []
    for name, files, manifest in plans:
        sent_count = sum(target.send(each) for each in files)
        size = sum(each.size for each in files)
        say(f"{name}: {len(files)} files, {size} bytes verified, {sent_count} of them sent now")
        checkpoints.append(
            {"name": name, "step": manifest.step, "files": len(files), "bytes": size, "sent": sent_count}
        )
    if best:
        target.send(best, replace=is_same_run)
    return {"checkpoints": checkpoints, "torn": defects, "best": best and best.path.read_text().strip()}


def whole_on_disk(run: Path) -> tuple[list[tuple[Path, Manifest]], list[str]]:
    """Return a run's intact checkpoints, oldest first, and the defects of the damaged ones."""
    intact, defects = [], []
    for folder in sorted(checkpoint.entries(run), key=checkpoint.step_of):
        try:
            intact.append((folder, checkpoint.verified(folder)))
        except Torn as error:
            defects.append(f"{error}")
    return intact, defects


def _files(folder: Path, manifest: Manifest) -> list[Local]:
    """Return an intact checkpoint's files in the order in which they are sent, with the manifest last."""
    files = [
        Local(f"{folder.name}/{name}", folder / name, int(entry["size"]), str(entry["sha256"]))
        for name, entry in sorted(manifest.files.items())
    ]
    return [*files, _local(f"{folder.name}/{MANIFEST}", folder / MANIFEST)]


def _local(name: str, path: Path) -> Local:
    return Local(name, path, path.stat().st_size, checkpoint.digest(path))


def _small_file(run: Path, name: str) -> Local | None:
    return _local(name, run / name) if (run / name).is_file() else None


def _best(run: Path, sent_names: set[str]) -> Local | None:
    """Return best.txt, or None if it is missing, names an unsent checkpoint, or contradicts `best`."""
    best, link = _small_file(run, BEST_NAME), checkpoint.best(run)
    if best is None or best.path.read_text().strip() not in sent_names:
        return None
    return best if link is None or link.name == best.path.read_text().strip() else None


class Target:
    """The prefix in a bucket to which a run is uploaded."""

    def __init__(self, bucket: str, prefix: str, environment: Mapping[str, str]) -> None:
        self._bucket, self._prefix = Bucket(bucket, environment), prefix
        self._objects = {item.key: item for item in self._bucket.items(f"{prefix}/")}
        self._verified: set[str] = set()

    def at(self, name: str) -> str:
        """Return the URL of an object, for messages."""
        return self._bucket.url(self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def belongs_to(self, owner: Local | None) -> bool:
        """Return whether the prefix already contains this run. Raises Failed if it contains another run."""
        if self._key(OWNER) not in self._objects:
            return False
        stored_owner = self._bucket.read(self._key(OWNER), SMALL_BYTES)
        if owner is None or hashlib.sha256(stored_owner).hexdigest() != owner.sha256:
            raise Failed(
                f"s3://{self._bucket.name}/{self._prefix} holds another run (trackers/id is "
                f"{stored_owner.decode(errors='replace')[:40]!r}), which is not replaced: use another prefix"
            )
        return True

    def compare(self, files: list[Local]) -> None:
        """Verify the files that the bucket already contains.

        Raises Failed if an object has different content.
        """
        for each in files:
            item = self._objects.get(self._key(each.name))
            if item is not None:
                self._verify(each, item)

    def send(self, file: Local, *, replace: bool = False) -> int:
        """Send a file and verify its object, unless the object is already verified.

        Return the number of bytes sent.
        """
        if file.name in self._verified:
            return 0
        key = self._key(file.name)
        try:
            if replace:
                self._bucket.put(key, file.path.read_bytes(), replace=True)
            else:
                self._bucket.put_file(key, str(file.path), file.size)
        except Failed as error:
            # The object may exist because an earlier response was lost. Its content is verified below.
            if error.status != 412 and error.code != "NoSuchUpload":
                raise
        self._verify(file, None)
        return file.size

    def _verify(self, file: Local, item: Item | None) -> None:
        """Verify that an object has the same content as the file. Raises Failed if it does not."""
        size, sha256 = item.size if item else file.size, ""
        if size == file.size:
            size, sha256 = self._bucket.digest(self._key(file.name))
        if (size, sha256) != (file.size, file.sha256):
            other = (
                "other content" if size == file.size else f"{size} bytes in the bucket, {file.size} on disk"
            )
            end = "and is not replaced: use another prefix" if item else "although it was sent: send it again"
            raise Failed(f"{self.at(file.name)} is not the file of this run ({other}), {end}")
        self._verified.add(file.name)


# -- down ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Stored:
    """A checkpoint in a bucket. `text` contains the manifest's bytes."""

    manifest: Manifest
    text: bytes

    @property
    def size(self) -> int:
        """Return the total size of the files in bytes, excluding the manifest."""
        return sum(int(entry["size"]) for entry in self.manifest.files.values())


def stored(bucket: Bucket, prefix: str, say: Say) -> Iterator[Stored]:
    """Yield the checkpoints below a prefix, newest first, if their objects have the sizes in the manifest.

    Report the defects of other checkpoints through `say`. Raises Failed if a request fails.
    """
    items = {item.key.removeprefix(f"{prefix}/"): item for item in bucket.items(f"{prefix}/")}
    names = {name.removesuffix(f"/{MANIFEST}") for name in items if name.endswith(f"/{MANIFEST}")}
    for name in sorted(names, key=lambda one: one.rpartition("-")[2], reverse=True):
        try:
            text = bucket.read(f"{prefix}/{name}/{MANIFEST}", MANIFEST_BYTES)
            yield Stored(_manifest(name, text, {key: item.size for key, item in items.items()}), text)
        except Torn as error:
            say(f"{error}; this checkpoint is not used")


def _manifest(name: str, text: bytes, sizes: Mapping[str, int]) -> Manifest:
    """Parse a checkpoint's manifest.

    Raises Torn if the manifest is invalid or contradicts the objects' sizes.
    """
    try:
        manifest = Manifest(**json.loads(text))
        sizes_in_manifest = {f"{file}": int(each["size"]) for file, each in manifest.files.items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise Torn(f"{name}: {MANIFEST} cannot be read: {error}") from error
    if manifest.version != checkpoint.VERSION or manifest.name != name:
        raise Torn(f"{name}: {MANIFEST} is for {manifest.name}, version {manifest.version}")
    for file, size in sizes_in_manifest.items():
        if any(part in ("", ".", "..") for part in file.split("/")):
            raise Torn(f"{name}: {file!r} is not a file in a checkpoint")
        if sizes.get(f"{name}/{file}") != size:
            raise Torn(f"{name}: {file} has {sizes.get(f'{name}/{file}', 'no')} bytes; expected {size}")
    return manifest


def download(run: Path, url: str, environment: Mapping[str, str], say: Say) -> Found:
    """Download a run, and return a summary. After an error, all downloaded files are removed."""
    if os.path.lexists(run):
        raise Failed(f"{run} already exists, and is never replaced: use another run name, or resume that run")
    bucket_name, prefix = located(url)
    bucket = Bucket(bucket_name, environment)
    defects: list[str] = []
    temporary = Path(tempfile.mkdtemp(prefix=f".resume-{run.name}-", dir=run.parent))
    try:
        temporary.chmod(0o755)  # mkdtemp creates folders that only their owner can access.
        best = _optional(bucket, f"{prefix}/{BEST_NAME}")
        downloaded = _download_checkpoints(
            bucket, prefix, temporary, best.decode(errors="replace").strip(), defects, say
        )
        for name, text in ((OWNER, _optional(bucket, f"{prefix}/{OWNER}")), (BEST_NAME, best)):
            if text:
                checkpoint.write(temporary / name, partial(_save, text))
        checkpoint.restore_best(temporary)
        for folder in (*temporary.rglob("*"), temporary):
            if folder.is_dir() and not folder.is_symlink():
                checkpoint.flush(folder)
        if os.path.lexists(run):
            raise Failed(f"{run} was created during the download, and is never replaced")
        temporary.rename(run)
        checkpoint.flush(run.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    newest = max(downloaded, key=lambda one: one.manifest.step)
    say(f"{run}: verified {len(downloaded)} checkpoints, the newest from step {newest.manifest.step}")
    checkpoints = [
        {
            "name": one.manifest.name,
            "step": one.manifest.step,
            "files": len(one.manifest.files) + 1,
            "bytes": one.size + len(one.text),
        }
        for one in sorted(downloaded, key=lambda one: one.manifest.step)
    ]
    return {
        "checkpoints": checkpoints,
        "torn": defects,
        "best": best.decode(errors="replace").strip() or None,
    }


def _optional(bucket: Bucket, key: str) -> bytes:
    """Return a small object's content, or empty bytes if it does not exist.

    Raises Failed if a request fails.
    """
    return bucket.read(key, SMALL_BYTES) if any(item.key == key for item in bucket.items(key)) else b""


def _download_checkpoints(
    bucket: Bucket, prefix: str, folder: Path, best: str, defects: list[str], say: Say
) -> list[Stored]:
    """Download a run's newest intact checkpoints and the best one. Raises Failed if this is not possible."""
    downloaded: list[Stored] = []
    intact_count = 0

    def note(text: str) -> None:
        defects.append(text.removesuffix("; this checkpoint is not used"))
        say(text)

    for one in stored(bucket, prefix, note):
        name = one.manifest.name
        if intact_count >= checkpoint.KEPT and name != best:
            continue
        say(f"{bucket.url(f'{prefix}/{name}')}: {one.size} bytes")
        try:
            _download_checkpoint(bucket, f"{prefix}/{name}", one, folder / name)
        except Torn as error:
            note(f"{error}; this checkpoint is not used")
            shutil.rmtree(folder / name, ignore_errors=True)
            continue
        downloaded.append(one)
        intact_count += 1
    if not downloaded:
        details = f": {'; '.join(defects)}" if defects else ""
        raise Failed(f"s3://{bucket.name}/{prefix} holds no intact checkpoint{details}")
    if best and best not in {one.manifest.name for one in downloaded}:
        raise Failed(f"{bucket.url(f'{prefix}/{BEST_NAME}')} names {best}, which is not intact in the bucket")
    return downloaded


def _download_checkpoint(bucket: Bucket, at: str, one: Stored, folder: Path) -> None:
    """Download one checkpoint, flush its files to disk, and verify them. Raises Failed or Torn."""
    for name, entry in one.manifest.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            size, sha256 = bucket.stream(f"{at}/{name}", file.write, partial(_truncate, file))
            file.flush()
            os.fsync(file.fileno())
        if (size, sha256) != (entry["size"], entry["sha256"]):
            raise Torn(f"{folder.name}: {name} does not match its digest in the manifest")
    checkpoint.write(folder / MANIFEST, partial(_save, one.text))
    checkpoint.verified(folder)


def _save(text: bytes, path: Path) -> None:
    path.write_bytes(text)


def _truncate(file: Any) -> None:
    file.seek(0)
    file.truncate()


if __name__ == "__main__":
    sys.exit(main())
