"""Remember which kubeconfigs the user has used with the harness on this machine.

A bundle contains the path of a kubeconfig. A kubeconfig can run programs (`exec`) and send files to a server
(`tokenFile`). A command that opens a bundle therefore uses only a kubeconfig that `harness run` or `harness
attach` has used on this machine.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

FOLDER = "kubeconfigs"


def remember(state_dir: Path, kubeconfig: Path) -> None:
    """Record in `state_dir` that the user has used the given kubeconfig."""
    mark = _mark(state_dir, kubeconfig)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def is_known(state_dir: Path, kubeconfig: Path) -> bool:
    """Return whether the user has used this kubeconfig, or whether the harness itself created it in
    `state_dir`."""
    own = Path(os.path.realpath(kubeconfig)).is_relative_to(os.path.realpath(state_dir))
    return own or _mark(state_dir, kubeconfig).is_file()


def _mark(state_dir: Path, kubeconfig: Path) -> Path:
    return state_dir / FOLDER / sha256(os.fsencode(os.path.realpath(kubeconfig))).hexdigest()[:32]
