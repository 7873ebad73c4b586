"""Install konduktor in its own virtual environment, from its own lock file.

konduktor-nightly requires older library versions than the harness, e.g. kubernetes < 31. A new nightly build
can also break without notice. Therefore the lock file pins one nightly build and every dependency by hash.
The harness runs konduktor as a program and never imports it.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.core.errors import HarnessError, ToolError, UsageError
from harness.core.locks import locked
from harness.core.processes import environment, run
from harness.provision.uv import uv
from harness.settings import Settings

# Not imported at run time, so that a launch can start konduktor's process early (launch_process.py).
if TYPE_CHECKING:
    from harness.context import RunContext
    from harness.evidence.schema.bundle import Replaced

# The lock file is package data, so that an installed harness includes it. `make lock` writes it.
LOCK = Path(__file__).resolve().parent.parent / "locks" / "konduktor.txt"
MARKER = "complete"
KONDUKTOR: Final = "konduktor-nightly"
MISSING: Final = "launch.konduktor_missing"
INSTALL_SECONDS = 900
_REPLACED: dict[str, Path] = {}
"""Maps each `--replace konduktor` spec to the program that was last installed for it."""


def environment_dir(settings: Settings, lock: Path = LOCK) -> Path:
    """Return <cache>/konduktor-<hash>, where the hash depends on the lock file and the Python version."""
    if not lock.is_file():
        raise HarnessError(f"{lock} is missing", hint="install the harness again", cause=MISSING)
    inputs = lock.read_bytes() + sys.implementation.cache_tag.encode()
    return settings.cache_dir.absolute() / f"konduktor-{hashlib.sha256(inputs).hexdigest()[:12]}"


def konduktor_version(lock: Path = LOCK) -> str:
    """Return the konduktor-nightly version in the lock file."""
    pinned = [line for line in lock.read_text().splitlines() if line.startswith("konduktor-nightly==")]
    return pinned[0].removeprefix("konduktor-nightly==").rstrip(" \\")


def installed(settings: Settings) -> Path | None:
    """Return the path of the `konduktor` program, or None if its environment is not complete."""
    if KONDUKTOR in settings.replace:
        return None
    home = environment_dir(settings)
    return home / "bin" / "konduktor" if _complete(home) else None


def konduktor_bin(context: RunContext) -> Path:
    """Return the path of the `konduktor` program.

    The first call creates the program's environment, which takes 10 to 60 s. Later calls return immediately.
    Only one process at a time creates the environment, and other processes wait for it. An incomplete
    environment is deleted and created again. Raises HarnessError (cause launch.konduktor_missing) if a
    package cannot be installed.
    """
    if (spec := context.settings.replace.get(KONDUKTOR)) is not None:
        return _REPLACED.get(spec) or replaced_konduktor(context)[0]
    if (installed_program := installed(context.settings)) is not None:
        return installed_program
    home = environment_dir(context.settings)
    program = home / "bin" / "konduktor"
    with locked(home.with_suffix(".lock"), lambda: context.progress("waiting for konduktor's environment")):
        if not _complete(home):
            start = time.monotonic()
            context.progress(f"installing {_pinned(LOCK)} into {home}")
            shutil.rmtree(home, ignore_errors=True)
            _install(home)
            if not program.is_file():
                raise HarnessError(
                    f"{_pinned(LOCK)} has no bin/konduktor",
                    hint=f"check the content of {home}, and pin another nightly build",
                    cause=MISSING,
                )
            (home / MARKER).write_text(f"{_pinned(LOCK)}\n")
            context.progress(f"konduktor installed in {time.monotonic() - start:.0f} s")
    return program


def target_options() -> list[str]:
    """Return the options with which uv resolves packages for the Python version of konduktor's
    environment."""
    return ["--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"]


def replaced_konduktor(context: RunContext) -> tuple[Path, tuple[Replaced, ...]]:
    """Install the konduktor that the user chose (`--replace`), and return its program and the replaced
    packages. The program's environment contains the locked packages, except for those that the replacement
    changes. After this call, `konduktor_bin` returns this program, so that a launch runs the version that its
    evidence records, even if a checkout is edited in the meantime. Raises UsageError if konduktor cannot be
    resolved, built or installed.
    """
    from harness.core.replacements import parse
    from harness.provision.replaced_wheels import change, install

    replacement = parse(KONDUKTOR, context.settings.replace[KONDUKTOR])
    package_change = change([replacement], LOCK, target_options(), context)
    locked_home = environment_dir(context.settings)
    home = locked_home.with_name(f"{locked_home.name}-{package_change.key}")
    program = home / "bin" / "konduktor"
    with locked(home.with_suffix(".lock"), lambda: context.progress("waiting for konduktor's environment")):
        if not _complete(home):
            shutil.rmtree(home, ignore_errors=True)
            _install(home)
            install(package_change, ["--python", str(home / "bin" / "python")])
            if not program.is_file():
                raise UsageError(f"--replace: {replacement.spec} does not contain the program `konduktor`")
            (home / MARKER).write_text(f"{package_change.replaced[0].version}\n")
    _REPLACED[replacement.spec] = program
    return program, package_change.replaced


def _complete(home: Path) -> bool:
    """Return whether konduktor's environment is complete.

    The marker file is written last. If the Python installation was removed, bin/python is a broken link, and
    the environment is incomplete.
    """
    return (home / MARKER).is_file() and (home / "bin" / "python").exists()


def _pinned(lock: Path) -> str:
    return f"{KONDUKTOR}=={konduktor_version(lock)}"


def _install(home: Path) -> None:
    if program := uv():
        _run(program, "venv", "--quiet", "--python", sys.executable, str(home))
        # fmt: off
        _run(
            program, "pip", "sync", "--quiet", "--require-hashes", "--no-build", "--link-mode", "copy",
            "--compile-bytecode", "--python", str(home / "bin" / "python"), str(LOCK),
        )
        # fmt: on
        return
    _run(sys.executable, "-m", "venv", str(home))
    python = str(home / "bin" / "python")
    # --no-user is needed, because pip refuses to install into an environment if the user's pip.conf has `user
    # = true`.
    options = ["--quiet", "--no-user", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    _run(python, "-m", "pip", "install", *options, "-r", str(LOCK))


def _run(*command: str) -> None:
    env = environment(without=("VIRTUAL_ENV", "PYTHONPATH"))
    try:
        run(command, timeout=INSTALL_SECONDS, env=env, cause=MISSING)
    except ToolError as error:
        output = "\n".join(error.output.strip().splitlines()[-4:])
        raise HarnessError(
            f"{_pinned(LOCK)} is missing and could not be installed: {output}",
            hint="check pip's package index, from which konduktor is installed, then try again",
            cause=MISSING,
        ) from None
