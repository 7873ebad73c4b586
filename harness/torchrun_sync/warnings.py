"""Warn about a folder's content before it is sent: secrets, large files, files that are excluded, and files
that do not work in a pod."""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from harness.torchrun_sync.ignored import GIT, OWN
from harness.torchrun_sync.pod.entries import Entry
from harness.torchrun_sync.selection import BUILT_IN, escaped_path

LARGE_BYTES = 10_000_000
"""The minimum size, in bytes, of a file that causes a warning about its size."""
LARGE_TOTAL_BYTES, MANY_FILES = 100_000_000, 10_000
"""Limits for the files smaller than LARGE_BYTES: their total size in bytes, and their number. A warning is
printed if either limit is reached."""
SHOWN = 5
_DATA = ("json", "yaml", "yml", "toml", "ini", "csv", "env", "txt")
_SECRETS = (
    *(".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore"),
    *("*.ppk", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("kubeconfig", "kubeconfig.*", "*.kubeconfig", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc"),
    *(".pypirc", ".git-credentials", ".dockercfg", ".dockerconfigjson", ".htpasswd", ".vault-token"),
    *(".s3cfg", ".boto", "rclone.conf", "*.tfvars", "*.tfstate", "credentials", ".credentials", "*.token"),
    *("*client_secret*.json", "*service[-_]account*.json", "*serviceaccount*.json", "kaggle.json"),
    *(".databrickscfg", ".modal.toml", "hf_token*", "*[._-]token.txt", "*api[-_]key", "*apikey"),
    *(f"*{name}.{end}" for name in ("credentials", "secrets", "secret") for end in _DATA),
    *(f"*{name}.{end}" for name in ("api_key", "api-key", "apikey") for end in _DATA),
)
"""Lower-case patterns for the names of files that usually contain a secret."""
_SECRET_FOLDERS = (
    *(".ssh", ".aws", ".kube", ".gnupg", ".azure", ".docker", ".config/gcloud", ".huggingface", ".kaggle"),
)
_HARMLESS = ("*.pub", "*.example", "*.sample", "*.template", "*.dist", "known_hosts")
_BACKUP = re.compile(r"(?:\.(?:bak|backup|old|orig|save|swp)|~)+$")
"""Matches the extensions that editors and people append to the names of backup copies."""
_CERTIFICATE, _PRIVATE = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"
_PEM_BYTES = 1 << 20
_KEY_FILE_BYTES = 10_000
"""The maximum size of a JSON file that is read to find out whether it contains a private key. The files that
Google Cloud creates for the keys of service accounts have about 2 kB, and are named after the project."""
_VERSION_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_VERSION_FROM_GIT = re.compile(
    r"setuptools[-_.]scm|use_scm_version|hatch[-_]vcs|setuptools[-_]git[-_]versioning|versioningit"
    r"|poetry[-_]dynamic[-_]versioning|^source\s*=\s*[\"']scm[\"']",
    re.M,
)
"""Matches the settings of Python packages that take their version from git, and fail without `.git`."""
_INSTALLS = re.compile(
    r"""\binstall\b[^;&|\n]*?\s(?:-e\b|--editable\b|["']?\.(?:[\["'\s;&|/]|$))"""
    r"|\bsetup\.py\b|\b(?:uv|pdm) sync\b|\bpoetry install\b"
)
"""Matches a setup command that installs the folder itself, and not only other packages."""
_FALLBACK = re.compile(r"^\s*(?:fallback[-_]version|default-version)\s*=|fallback_version", re.M)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_POINTER, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024


def warnings(top: Path, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a sentence for each kind of content that the user probably does not intend to send.

    size_warnings() yields those that need no look at the files.
    """
    files = [entry for entry in entries if entry["kind"] == "file"]
    if secrets := [e["path"] for e in entries if e["kind"] != "dir" and _is_secret(top, e["path"])]:
        yield (
            f"warning: files that look like secrets are sent to the cluster: {_sample(secrets)}; "
            f"to keep them here, add them to {OWN}"
        )
    if pointers := [e["path"] for e in files if e["size"] < _POINTER_BYTES and _is_pointer(top / e["path"])]:
        yield f"warning: Git LFS pointers are sent instead of files: {_sample(pointers)}; run `git lfs pull`"
    if scripts := [e["path"] for e in files if _is_script(e) and _has_dos_lines(top / e["path"])]:
        yield (
            f"warning: scripts whose first line ends with CRLF do not start in a pod: {_sample(scripts)}; "
            "`dos2unix` converts them"
        )
    if links := [f"{e['path']} → {e['target']}" for e in _links_to_unsent(top, entries)]:
        yield (
            f"warning: links to files that are not sent are broken in a pod: {_sample(links)}; "
            f"`!PATH` in {OWN} sends the target"
        )
    ignore_files = [e["path"] for e in files if e["path"].rpartition("/")[2] == GIT]
    if ignored := [path for path in ignore_files if _starts_with(top / path, _UTF_16)]:
        yield f"warning: git cannot read ignore files in UTF-16: {_sample(ignored)}; save them as UTF-8"
    if not files:
        yield f"warning: no files in {top} are sent; `--dry-run` lists the excluded files"


def size_warnings(files: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield a sentence if files are large or numerous. `files` contains (path, size) of each file."""
    large = sorted((each for each in files if each[1] >= LARGE_BYTES), key=lambda each: -each[1])
    if large:
        descriptions = _sample([f"{path} ({size / 1e6:.1f} MB)" for path, size in large])
        yield f"warning: large files are sent: {descriptions}; move data to a claim, or add it to {OWN}"
    small = [each for each in files if each[1] < LARGE_BYTES]
    # The amounts are rounded down to multiples of these limits, because Walker repeats a warning whose text
    # changes.
    total = sum(size for _, size in small) // LARGE_TOTAL_BYTES * (LARGE_TOTAL_BYTES // 1_000_000)
    count = len(small) // MANY_FILES * MANY_FILES
    amounts = [f"more than {count} files"] * bool(count) + [f"more than {total} MB"] * bool(total)
    if amounts:
        yield (
            f"warning: {' and '.join(amounts)} are sent, most of them in "
            f"{escaped_path(_largest_folder(small))}; move data to a claim, or add it to {OWN}"
        )


def version_from_git(top: Path, entries: Sequence[Entry], setup: str) -> str:
    """Return a warning if the setup command installs the folder as a Python package, and if the package takes
    its version from git. Otherwise, return "".

    Without `.git` in the pod, pip then fails.
    """
    paths = {entry["path"] for entry in entries}
    if ".git" in paths or not _INSTALLS.search(setup):
        return ""
    for name in paths & {*_VERSION_FILES}:
        text = (top / name).read_text(encoding="utf-8", errors="replace")
        if _VERSION_FROM_GIT.search(text) and not _FALLBACK.search(text):
            return (
                f"warning: {name} takes the version of the package from git, but .git is not sent, so that "
                "the setup command may fail; use --env SETUPTOOLS_SCM_PRETEND_VERSION=0, or the variable of "
                f"another tool, or add !.git to {OWN}"
            )
    return ""


def summary(excluded: Sequence[tuple[str, str]]) -> str:
    """Return one line with the paths that are not sent, or "" if there are none. Caches and virtual
    environments are left out."""
    paths = [path for path, reason in excluded if reason != BUILT_IN]
    reasons = sorted({reason for _, reason in excluded if reason != BUILT_IN})
    return f"not sent: {_sample(paths)} ({', '.join(reasons)}); `--dry-run` lists all" if paths else ""


def listing(excluded: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield one line for each path that is not sent, with the reason."""
    for path, reason in sorted(excluded):
        yield f"not sent: {escaped_path(path)} ({reason})"


def _is_secret(top: Path, path: str) -> bool:
    lower = path.lower()
    name = _BACKUP.sub("", lower.rpartition("/")[2])
    if any(fnmatchcase(name, pattern) for pattern in _HARMLESS):
        return False
    if any(f"/{folder}/" in f"/{lower}" for folder in _SECRET_FOLDERS):
        return True
    if not any(fnmatchcase(name, pattern) for pattern in _SECRETS):
        return name.endswith(".json") and _has_private_key(top / path)
    return not (name.endswith(".pem") and _is_certificate(top / path))


def _has_private_key(file: Path) -> bool:
    """Return whether a small JSON file contains a private key."""
    try:
        if file.is_symlink() or file.stat().st_size > _KEY_FILE_BYTES:
            return False
        content = file.read_bytes()
    except OSError:
        return False
    return b'"private_key"' in content and _PRIVATE in content


def _is_pointer(file: Path) -> bool:
    """Return whether a file is a Git LFS pointer, which git writes if LFS has not fetched the content."""
    return _starts_with(file, (_POINTER,))


def _starts_with(file: Path, starts: tuple[bytes, ...]) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(max(map(len, starts))).startswith(starts)
    except OSError:
        return False


def _is_script(entry: Entry) -> bool:
    return bool(entry["mode"] & 0o111) or entry["path"].endswith((".sh", ".bash"))


def _has_dos_lines(file: Path) -> bool:
    """Return whether a file's first line names an interpreter and ends with CRLF."""
    try:
        with file.open("rb") as stream:
            line = stream.readline(256)
    except OSError:
        return False
    return line.startswith(b"#!") and line.endswith(b"\r\n")


def _links_to_unsent(top: Path, entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the links whose target exists in the folder but is not sent."""
    sent_paths = {entry["path"] for entry in entries}
    root = top.resolve()
    for entry in entries:
        if entry["kind"] == "link":
            target = Path(os.path.realpath(root / entry["path"]))
            is_here = target != root and target.is_relative_to(root) and target.exists()
            if is_here and f"{target.relative_to(root)}" not in sent_paths:
                yield entry


def _largest_folder(files: Sequence[tuple[str, int]]) -> str:
    """Return the name of the top-level folder or file with the most content. Each file counts as 10 kB more
    than its size, so that many small files count as much as a few large ones."""
    costs: Counter[str] = Counter()
    for path, size in files:
        folder, slash, _ = path.partition("/")
        costs[f"{folder}{slash}"] += size + LARGE_TOTAL_BYTES // MANY_FILES
    return costs.most_common(1)[0][0]


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
    return f"{', '.join(map(escaped_path, paths[:SHOWN]))}{suffix}"
