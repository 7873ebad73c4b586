"""Warn about a folder's content before it is sent: secrets, large files, and files that are excluded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from harness.torchrun_sync.ignored import OWN
from harness.torchrun_sync.pod.entries import Entry
from harness.torchrun_sync.selection import BUILT_IN

LARGE_BYTES = 10_000_000
"""The minimum size, in bytes, of a file that causes a warning about its size."""
SHOWN = 5
_DATA = ("json", "yaml", "yml", "toml", "ini", "csv", "env", "txt")
_SECRETS = (
    *(".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore"),
    *("*.ppk", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("kubeconfig", "kubeconfig.*", "*.kubeconfig", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc"),
    *(".pypirc", ".git-credentials", ".dockercfg", ".dockerconfigjson", ".htpasswd", ".vault-token"),
    *(".s3cfg", ".boto", "rclone.conf", "*.tfvars", "*.tfstate", "credentials", ".credentials", "*.token"),
    *("*client_secret*.json", "*service[-_]account*.json"),
    *(f"*{name}.{end}" for name in ("credentials", "secrets", "secret") for end in _DATA),
)
"""Lower-case patterns for the names of files that usually contain a secret."""
_SECRET_FOLDERS = (".ssh", ".aws", ".kube", ".gnupg", ".azure", ".docker", ".config/gcloud", ".huggingface")
_HARMLESS = ("*.pub", "*.example", "*.sample", "*.template", "*.dist", "known_hosts")
_BACKUP = re.compile(r"(?:\.(?:bak|backup|old|orig|save|swp)|~)+$")
"""Matches the extensions that editors and people append to the names of backup copies."""
_CERTIFICATE, _PRIVATE = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"
_PEM_BYTES = 1 << 20
_POINTER, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024


def warnings(top: Path, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a sentence for each kind of content that the user probably does not intend to send."""
    files = [entry for entry in entries if entry["kind"] == "file"]
    if secrets := [e["path"] for e in entries if e["kind"] != "dir" and _is_secret(top, e["path"])]:
        yield (
            f"warning: files that look like secrets are sent to the cluster: {_sample(secrets)}; "
            f"to keep them here, add them to {OWN}"
        )
    large = sorted((e for e in files if e["size"] >= LARGE_BYTES), key=lambda e: -int(e["size"]))
    if large:
        descriptions = _sample([f"{e['path']} ({e['size'] / 1e6:.1f} MB)" for e in large])
        yield f"warning: large files are sent: {descriptions}; move data to a claim, or add it to {OWN}"
    if pointers := [e["path"] for e in files if e["size"] < _POINTER_BYTES and _is_pointer(top / e["path"])]:
        yield f"warning: Git LFS pointers are sent instead of files: {_sample(pointers)}; run `git lfs pull`"
    if not files:
        yield f"warning: no files in {top} are sent; `--dry-run` lists the excluded files"


def summary(excluded: Sequence[tuple[str, str]]) -> str:
    """Return one line with the paths that are not sent, or "" if there are none. Caches and virtual
    environments are left out."""
    paths = [path for path, reason in excluded if reason != BUILT_IN]
    reasons = sorted({reason for _, reason in excluded if reason != BUILT_IN})
    return f"not sent: {_sample(paths)} ({', '.join(reasons)}); `--dry-run` lists all" if paths else ""


def listing(excluded: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield one line for each path that is not sent, with the reason."""
    for path, reason in sorted(excluded):
        yield f"not sent: {_printable(path)} ({reason})"


def _is_secret(top: Path, path: str) -> bool:
    lower = path.lower()
    name = _BACKUP.sub("", lower.rpartition("/")[2])
    if any(fnmatchcase(name, pattern) for pattern in _HARMLESS):
        return False
    if any(f"/{folder}/" in f"/{lower}" for folder in _SECRET_FOLDERS):
        return True
    if not any(fnmatchcase(name, pattern) for pattern in _SECRETS):
        return False
    return not (name.endswith(".pem") and _is_certificate(top / path))


def _is_pointer(file: Path) -> bool:
    """Return whether a file is a Git LFS pointer, which git writes if LFS has not fetched the content."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def _is_certificate(file: Path) -> bool:
    """Return whether a file contains certificates but no private key, like a root certificate bundle."""
    try:
        with file.open("rb") as stream:
            content = stream.read(_PEM_BYTES)
    except OSError:
        return False
    return _CERTIFICATE in content and _PRIVATE not in content and len(content) < _PEM_BYTES


def _sample(paths: Sequence[str]) -> str:
    suffix = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return f"{', '.join(map(_printable, paths[:SHOWN]))}{suffix}"


def _printable(path: str) -> str:
    """Return a path in a form that is safe to print.

    File names can contain line breaks, escape sequences and invalid UTF-8.
    """
    return path if path.isprintable() else ascii(path)
