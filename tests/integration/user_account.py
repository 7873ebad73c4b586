"""An account of this machine without root privileges, whose home has a space in its name.

Its programs run in a mount namespace of their own, in which the interpreter and the packages of the tests
have paths that every user can read. Outside of it, they can be in a folder that only root can read.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VISIBLE = Path("/mnt")
"""The folder that is replaced with readable copies in the namespace. It exists on every Linux system."""
GROUP = "docker"
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""An ASCII locale that Python does not replace by UTF-8, as en_US.US-ASCII would be."""


@dataclass(frozen=True)
class Account:
    """A user account. `binds` maps a path in VISIBLE to the folder of this machine that is mounted there."""

    name: str
    home: Path
    binds: Mapping[str, Path]

    def run(
        self, command: list[object], *, timeout: float = 300, **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the account's home, with a login's environment and these variables."""
        env = {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "PATH": "/usr/bin:/bin"}
        # An interpreter with its own libpython needs this path.
        env["LD_LIBRARY_PATH"] = str(VISIBLE / "python" / "lib")
        env |= {name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ}
        mounts = [f"mount -t tmpfs -o mode=0755 tmpfs {VISIBLE}"]
        for name, folder in self.binds.items():
            words = shlex.quote(str(folder)), shlex.quote(str(VISIBLE / name))
            mounts.append(f"mkdir {words[1]} && mount --bind {words[0]} {words[1]}")
        user = pwd.getpwnam(self.name)
        become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups", "--"]
        script = " && ".join([*mounts, f'exec {shlex.join(become)} "$@"'])
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *map(str, command)],
            cwd=self.home,
            env={**env, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def own(self, path: Path) -> Path:
        """Make the account the owner of a path in its home, recursively."""
        subprocess.run(["chown", "-R", f"{self.name}:", str(path)], check=True)
        return path

    def install(self, wheel: Path) -> Path:
        """Return the folder of the programs of a new virtual environment in the home, with the wheel.

        The account creates it. Its dependencies are those of the tests, which are not downloaded again.
        """
        venv, python = self.home / "my venv", VISIBLE / "python" / "bin" / Path(_interpreter()).name
        others = [str(VISIBLE / name) for name in self.binds if name.startswith("packages")]
        self._must([python, "-m", "venv", "--without-pip", venv])
        copy = self.own(Path(shutil.copy(wheel, self.home)))
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin/python"]
        path = os.pathsep.join(others)  # pip is one of the tests' packages.
        self._must([*pip, "install", "--quiet", "--no-index", "--no-deps", copy], PYTHONPATH=path)
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / "dependencies.pth").write_text("\n".join(others) + "\n")
        self.own(packages / "dependencies.pth")
        return venv / "bin"

    def _must(self, command: list[object], **variables: str) -> None:
        done = self.run(command, **variables)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def obstacle() -> str:
    """Return why no account can be created here, or ""."""
    if os.geteuid() != 0:
        return "only root can create an account"
    lacking = [name for name in ("useradd", "userdel", "setpriv", "unshare") if shutil.which(name) is None]
    return f"{', '.join(lacking)} is not there" if lacking else ""


@contextmanager
def account() -> Iterator[Account]:
    """Yield a new account, a member of the group `docker` if there is one, and delete it and its home."""
    name = f"e2e{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="harness-"))
    folder.chmod(0o755)
    home = folder / "a user's home"
    packages = [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    binds = {"python": Path(_interpreter()).parents[1]}
    binds |= {f"packages{number}": path for number, path in enumerate(packages)}
    groups = ["--groups", GROUP] if any(group.gr_name == GROUP for group in grp.getgrall()) else []
    home.mkdir()
    words = ["useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", *groups, name]
    try:
        subprocess.run(words, check=True, capture_output=True)
        created = Account(name, home, binds)
        created.own(home)
        yield created
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
