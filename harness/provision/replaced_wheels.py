"""Resolve and install the packages that the user chooses instead of the locked ones (`--replace`).

The lock file constrains all other packages. A checkout is copied before its wheel is built, because build
backends write into the source folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from harness.context import RunContext
from harness.core import processes, proxies
from harness.core.errors import HarnessError, ToolError, UsageError
from harness.core.processes import CHOOSING, environment
from harness.core.replacements import Replacement
from harness.evidence.io.redaction import secret_variables
from harness.evidence.schema.bundle import Replaced
from harness.provision import local_git
from harness.provision.images.locked_packages import SOURCES, pins
from harness.provision.uv import uv

SECONDS: Final = 600
_IGNORED: Final = (
    ".venv",
    "venv",
    "__pycache__",
    "node_modules",
    ".tox",
    ".nox",
    ".mypy_cache",
    ".ruff_cache",
)
_MAX_BYTES: Final = 512 << 20
"""The maximum size of a checkout in bytes. Larger checkouts contain data or environments that are not part of
the package.
"""
_NEVER: Final = "; sys_platform == 'never'"
PYTHON: Final = ("--python", sys.executable)
"""Options that select the Python interpreter for uv. Without them, uv inspects all interpreters on PATH,
which takes up to 10 s."""
BASE: Final = ("torch",)
"""Packages that the base image contains, and that are therefore neither resolved nor installed."""


@dataclass(frozen=True)
class Change:
    """A change to a lock file: the resolved packages that differ from the lock, ready to be installed."""

    pins: str
    """The content of a requirements file: each package's version and hashes, or the path of its wheel."""
    replaced: tuple[Replaced, ...]
    changed: tuple[str, ...]
    """The names of all packages that differ from the lock: the replaced packages, and dependencies that are
    new or have another version."""

    @property
    def key(self) -> str:
        """Return a hash (12 hex digits) of the packages and their contents."""
        parts = [f"{each.name} {each.version} {each.digest}" for each in self.replaced]
        pins = [block for _, block in _blocks(self.pins) if " @ file://" not in block]
        return hashlib.sha256("\n".join([*parts, *pins]).encode()).hexdigest()[:12]


def change(
    replacements: Sequence[Replacement], lock: Path, options: Sequence[str], context: RunContext
) -> Change:
    """Resolve the replacements, and return the change that they make to a lock file.

    `options` contains uv's options for the Python version and the platform. A path or a Git reference is
    first built into a wheel in the cache. Raises UsageError if a version does not exist, a package cannot be
    built, or the requirements conflict with the lock.
    """
    wheels = {each.name: wheel_of(each, context) for each in replacements if each.kind != "versions"}
    locked, names = pins(lock.read_text()), {each.name for each in replacements}
    other_requirements = [
        f"{name}=={version}" for name, version in locked.items() if name not in (*names, *SOURCES)
    ]
    new_requirements = [
        f"{each.name} @ {wheels[each.name].as_uri()}" if each.name in wheels else _newest(each, options)
        for each in replacements
    ]
    context.progress(f"replacing: {', '.join(f'{each.name} with {each.spec}' for each in replacements)}")
    resolved = _resolved([*new_requirements, *other_requirements], options, ", ".join(new_requirements))
    blocks = dict(_blocks(resolved))
    changed = {
        name: block for name, block in blocks.items() if name in names or _version(block) != locked.get(name)
    }
    replaced = tuple(_replaced(each, blocks[each.name], wheels, locked) for each in replacements)
    return Change("\n".join(changed.values()) + "\n", replaced, tuple(sorted(changed)))


def install(change: Change, options: Sequence[str]) -> None:
    """Install a change's packages with `uv pip install`.

    `options` contains uv's options for the target of the installation.

    Raises UsageError if a package has no wheel for the target.
    """
    with tempfile.NamedTemporaryFile("w", prefix="replace-", suffix=".txt") as file:
        file.write(change.pins)
        file.flush()
        command = [uv_program(), "pip", "install", "--quiet"]
        command += ["--no-deps", "--no-build", "--link-mode", "copy"]
        try:
            processes.run([*command, *options, "-r", file.name], timeout=SECONDS)
        except ToolError as error:
            raise UsageError(
                f"--replace: {', '.join(change.changed)} cannot be installed: {reason(error.output)}",
                hint="use a wheel that is pure Python or built for the image's platform",
            ) from None


def version_texts(replaced: Sequence[Replaced]) -> dict[str, str]:
    """Return the replaced packages as entries for `versions` in the bundle's manifest."""
    return {
        f"replaced {each.name}": f"{each.version} instead of {each.locked or 'nothing'}, from {each.origin}"
        + (f", sha256 {each.digest[:12]}" if each.digest else "")
        for each in replaced
    }


def _newest(each: Replacement, options: Sequence[str]) -> str:
    """Return a requirement for the newest version that the spec allows, whether or not it fits the lock."""
    if each.versions.startswith("==") and "," not in each.versions and "*" not in each.versions:
        return each.name + each.versions
    text = each.name + each.versions
    pins_text = _resolved([text], [*options, "--no-deps", "--upgrade"], text)
    return f"{each.name}=={_version(pins_text)}"


def _resolved(requirements: Sequence[str], options: Sequence[str], text: str) -> str:
    """Resolve the requirements, and return pins with hashes.

    Raises UsageError if they cannot be resolved. `text` describes the replacements in the error message.
    """
    with tempfile.TemporaryDirectory(prefix="replace-") as folder:
        input_file, overrides = Path(folder, "wanted.in"), Path(folder, "base.txt")
        input_file.write_text("\n".join([*requirements, ""]))
        overrides.write_text("".join(f"{name}{_NEVER}\n" for name in BASE))
        command = [uv_program(), "pip", "compile", str(input_file), "--overrides", str(overrides)]
        command += [
            "--quiet",
            *PYTHON,
            "--no-header",
            "--no-annotate",
            "--generate-hashes",
            "--no-emit-index-url",
            *options,
        ]
        try:
            return processes.run(command, timeout=SECONDS).stdout
        except ToolError as error:
            raise UsageError(
                f"--replace {text}: dependencies could not be resolved: {reason(error.output)}",
                hint="choose an existing version that is compatible with the lock file, or also replace "
                "the conflicting package",
            ) from None


def _replaced(
    each: Replacement, block: str, wheels: Mapping[str, Path], locked: Mapping[str, str]
) -> Replaced:
    if (wheel := wheels.get(each.name)) is not None:
        version = str(parse_wheel_filename(wheel.name)[1])
        digest, origin = digest_of(wheel), each.spec
    else:
        version, origin = str(_version(block)), "the package index"
        hashes = sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
        digest = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return Replaced(
        name=each.name,
        spec=each.spec,
        version=version,
        digest=digest,
        origin=origin,
        locked=locked.get(each.name),
    )


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Split the output of `uv pip compile` into packages. Yield (name, lines) for each package."""
    for block in re.split(r"\n(?=\S)", text.strip()):
        if name := re.match(r"[A-Za-z0-9._-]+", block):
            yield str(canonicalize_name(name[0])), block


def _version(block: str) -> str | None:
    match = re.match(r"\S+?==([^\s;\\]+)", block)
    return match[1] if match else None


def wheel_of(each: Replacement, context: RunContext) -> Path:
    """Return the wheel for a path or a Git reference.

    Raises UsageError if the wheel cannot be built, or if it contains another package.
    """
    is_shallow = False
    if each.kind == "wheel":
        wheel = each.path
    else:
        with _source(each) as source:
            wheel = _built(each, source, context)
            is_shallow = source.is_dir() and local_git.shallow(source)
    try:
        name, version, *_ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise UsageError(f"--replace {each.name}: {error}") from None
    if name != each.name:
        raise UsageError(f"--replace {each.name}: {each.spec} contains the package {name}, not {each.name}")
    if is_shallow and version.local:
        context.progress(
            f"{each.name} {version}: this version may be wrong, because {each.path} is a shallow clone "
            "without earlier tags"
        )
    return wheel


@contextmanager
def _source(each: Replacement) -> Iterator[Path]:
    """Yield the path of an sdist, or of a copy of a checkout that the build may change."""
    if each.path.is_file():
        yield each.path
        return
    with tempfile.TemporaryDirectory(prefix="replace-") as folder:
        yield (_clone if each.kind == "git" else _copy)(each, Path(folder))


def _clone(each: Replacement, folder: Path) -> Path:
    """Clone the repository of a replacement into `folder`, check out its ref, and return the package's path
    in the clone. The ref is resolved in the original repository.
    """
    existing = next(path for path in (each.path, *each.path.parents) if path.is_dir())
    commit = local_git.commit(existing, each.ref, f"--replace {each.name}")
    root = Path(local_git.output(existing, "rev-parse", "--show-toplevel") or existing)
    copy = folder / root.name
    try:
        for words in (
            ["clone", "--quiet", "--no-checkout", str(root), str(copy)],
            ["-C", str(copy), "checkout", "--quiet", "--detach", commit],
        ):
            processes.run(["git", *words], timeout=SECONDS, env=local_git.environment())
    except ToolError as error:
        raise UsageError(f"--replace {each.name}: git failed: {reason(error.output)}") from None
    package = copy / each.path.resolve().relative_to(root.resolve())
    if not package.is_dir():
        raise UsageError(f"--replace {each.name}: {each.ref} has no folder {package.relative_to(copy)}")
    return package


def _copy(each: Replacement, folder: Path) -> Path:
    """Copy a checkout into `folder`, and return the package's path in the copy.

    If the package is in a folder of a larger work tree, the whole tree is copied, because the build may use
    files outside of the package. Virtual environments and caches are not copied. If the tree is too large,
    files outside the package are not copied either. The copy's .git is a link to the original, because build
    backends derive the version from it.
    """
    package = each.path.resolve()
    root = package
    if (tree := _work_tree(package)) is not None and _fits(tree):
        root = tree
    if root == package and not _fits(package):
        raise UsageError(
            f"--replace {each.name}: expected at most {_MAX_BYTES >> 20} MiB in {each.path}, found more",
            hint="use a folder that contains only the package, without data",
        )
    copy = folder / root.name
    shutil.copytree(root, copy, symlinks=True, ignore=_ignored_entries)
    if (root / ".git").exists():
        (copy / ".git").symlink_to((root / ".git").resolve())
    return copy / package.relative_to(root)


def _work_tree(package: Path) -> Path | None:
    """Return the root of the Git work tree that tracks the package, or None."""
    try:
        if local_git.output(package, "ls-files", "pyproject.toml", "setup.py"):
            return Path(local_git.output(package, "rev-parse", "--show-toplevel"))
    except HarnessError:  # There is no repository, or git does not trust it.
        return None
    return None


def _ignored_entries(folder: str, names: list[str]) -> set[str]:
    """Return the entries of a folder that are not copied. Copying a socket or a FIFO would block."""
    paths = {name: Path(folder, name) for name in names}
    return {
        name
        for name, path in paths.items()
        if name in (*_IGNORED, ".git") or not (path.is_dir() or path.is_file() or path.is_symlink())
    }


def _fits(root: Path) -> bool:
    """Return whether the files in `root` that would be copied have at most _MAX_BYTES in total."""
    size = 0
    for folder, folders, files in os.walk(root):
        left_out = _ignored_entries(folder, [*folders, *files])
        folders[:] = [name for name in folders if name not in left_out]
        size += sum(Path(folder, name).lstat().st_size for name in files if name not in left_out)
        if size > _MAX_BYTES:
            return False
    return True


def _built(each: Replacement, source: Path, context: RunContext) -> Path:
    out = context.settings.cache_dir / "wheels" / os.urandom(6).hex()
    out.mkdir(parents=True)
    env = _build_environment()
    try:
        command = [uv_program(), "build", *PYTHON, "--wheel", "--no-progress"]
        command += ["--out-dir", str(out), str(source)]
        processes.run(command, timeout=SECONDS, env=env)
        (wheel,) = out.glob("*.whl")
        target = out.parent / digest_of(wheel)[:12] / wheel.name
        target.parent.mkdir(exist_ok=True)
        # An existing wheel is kept, because another process may be installing it and checking its hash.
        if not target.exists():
            wheel.replace(target)
        return target
    except ToolError as error:
        raise UsageError(
            f"--replace {each.name}: {each.spec} cannot be built: "
            f"{reason(error.output.replace(str(source), str(each.path)))}",
            hint=f"to see the whole output, build the package yourself with `uv build --wheel {each.path}`",
        ) from None
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _build_environment() -> dict[str, str]:
    """Return the environment variables for a build, which runs code from the checkout. They contain no
    secrets except those of uv's package indexes, and no settings of the harness.
    """
    env = environment(without=("VIRTUAL_ENV", "PYTHONPATH", *CHOOSING, "AWS_"))
    needed = proxies.names(env)
    secret = secret_variables(env)
    names = [name for name in env if name.startswith(("UV_", "PIP_")) or name in needed or name not in secret]
    return {name: env[name] for name in names} | {"GIT_OPTIONAL_LOCKS": "0"}


def digest_of(wheel: Path) -> str:
    """Return a SHA-256 of the files in a wheel.

    Their timestamps, which differ in each build, are not included.
    """
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            digest.update(f"{name} {hashlib.sha256(archive.read(name)).hexdigest()}\n".encode())
    return digest.hexdigest()


def reason(output: str) -> str:
    """Return the reason for a failed build in at most 600 characters: the exception, uv's explanation, or the
    end of the output."""
    error_lines = re.findall(
        r"^[\w.]*(?:Error|Exception)\b: .*(?:\n(?!error: |Traceback).*)*", output, re.MULTILINE
    )
    if error_lines and "Traceback (most recent call last)" in output:
        return " ".join(error_lines[-1].split())[:600]
    lines = [line.strip(" ×╰─▶├│") for line in output.strip().splitlines()]
    lines = [re.sub(r"^(error|cause): ", "", line) for line in lines if line and not line.startswith("hint:")]
    return " ".join([*lines[:1], *lines[1:][-5:]])[:600] or "uv gave no reason"


@cache
def uv_program() -> str:
    program = uv()
    if program is None:
        raise UsageError("--replace needs uv, which is not on PATH", hint="install uv with `pip install uv`")
    return program


def module_digest(path: str, version: str) -> str:
    """Return the SHA-256 of a Go module as hex digits, as listed in Go's checksum database.

    The module is downloaded to Go's module cache. Raises UsageError if there is no such version.
    """
    with tempfile.TemporaryDirectory(prefix="module-") as folder:
        command = ["go", "-C", folder, "mod", "download", "-json", f"{path}@{version}"]
        result = processes.run(command, timeout=SECONDS, check=False)
    module = json.loads(result.stdout or "{}")
    if "Sum" not in module:
        reason = " ".join(str(module.get("Error") or result.stderr).split())
        raise UsageError(f"the Go module {path} has no version {version}: {reason}")
    return base64.b64decode(module["Sum"].removeprefix("h1:")).hex()
