"""Programs that only tests need: Helm, built by Go, and Prometheus, of Debian. The system is not changed.

python -m tests.tools        # fetch both into the cache
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.locks import locked
from harness.settings import Settings

HELM = "v3.22.0"
SECONDS = 1800
HINT = "install helm and prometheus, and put them on PATH; only nightly tests need them"


def helm() -> str:
    """Return the path of Helm. Raises HarnessError if it cannot be built."""
    return shutil.which("helm") or str(_fetched(f"helm-{HELM}", _build_helm))


def prometheus() -> str:
    """Return the path of Prometheus. Raises HarnessError if there is no package of it."""
    return shutil.which("prometheus") or str(_fetched("prometheus", _unpack_prometheus))


def available(name: str) -> bool:
    """Return whether a program is there already, so that nothing is fetched."""
    return bool(shutil.which(name)) or any(_folder().glob(f"{name}*"))


def _folder() -> Path:
    return Settings().cache_dir / "tools"


def _fetched(name: str, fetch: Callable[[Path], Path]) -> Path:
    """Return the path of a program in the cache. It is put there complete or not at all."""
    target = _folder() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(_folder() / f".{name}.lock", lambda: print(f"another process fetches {name}")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=_folder()) as unfinished:
                os.replace(fetch(Path(unfinished)), target)
    return target


def _build_helm(folder: Path) -> Path:
    # Go checks what it downloads against its checksum database.
    _run(["go", "install", f"helm.sh/helm/v3/cmd/helm@{HELM}"], folder, GOBIN=str(folder))
    return folder / "helm"


def _unpack_prometheus(folder: Path) -> Path:
    """Unpack Debian's package. Installed, it would start a service."""
    _run(["apt-get", "download", "--quiet", "prometheus"], folder)
    [package] = folder.glob("prometheus_*.deb")
    _run(["dpkg", "--extract", str(package), str(folder)], folder)
    return folder / "usr/bin/prometheus"


def _run(command: list[str], folder: Path, **variables: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise HarnessError(
            f"`{' '.join(command)}` cannot run: {command[0]} is not on PATH", hint=HINT
        ) from None
    if done.returncode:
        raise HarnessError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-2000:]}", hint=HINT)


def main() -> int:
    """Fetch all programs. Return the exit code."""
    try:
        print(f"helm: {helm()}")
        print(f"prometheus: {prometheus()}")
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
