"""Run konduktor with its own HOME, in a process that starts before the launch is prepared.

`konduktor launch` takes 1 s, including 0.6 s for importing libraries. Therefore its process starts together
with the harness, imports the libraries in parallel, and waits for a line on stdin. Then it runs konduktor's
script, which reads HOME and the config as usual.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from pathlib import Path

from harness.core import processes
from harness.core.errors import UsageError
from harness.core.proxies import Proxy
from harness.core.user_files import read_text
from harness.provision.konduktor import installed
from harness.settings import Settings

SECONDS = 60
"""konduktor's timeout in seconds. A launch normally takes 1 s, but up to 20 s on a busy machine."""
LIBRARIES = (
    "kubernetes",
    "google.auth.transport.requests",
    "jsonschema",
    "jinja2",
    "rich.console",
    "click",
    "prettytable",
    "filelock",
    "dotenv",
)
"""Libraries that konduktor imports, and that its process imports in advance. konduktor's own modules are not
included, because they read files when they are imported."""
_WAITING = """
import contextlib, gc, importlib, json, runpy, sys
gc.disable()
libraries, *sys.argv = sys.argv[1:]
for name in libraries.split(","):
    with contextlib.suppress(Exception):  # konduktor itself reports this error
        importlib.import_module(name)
gc.freeze()  # otherwise, the interpreter's exit scans a million objects, which takes 0.3 s
gc.enable()
if line := sys.stdin.readline():  # otherwise, the harness has exited
    if proxy := json.loads(line):  # konduktor's Kubernetes client reads neither variables nor proxy-url
        from kubernetes.client import Configuration

        def with_proxy(self, *given, **named):
            original(self, *given, **named)
            self.proxy, self.proxy_headers = proxy

        original, Configuration.__init__ = Configuration.__init__, with_proxy
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def early(job: Path, settings: Settings) -> AbstractContextManager[Konduktor | None]:
    """Start konduktor's process before the harness's imports, and return a context manager for it.

    The context manager yields None if konduktor is not installed yet, if the job file is probably a manifest,
    or if a file or folder cannot be read or written. In the last case, the launch later reports the error.
    """
    try:
        program = installed(settings)
        if program is None or "apiVersion:" in read_text(job, "job file"):
            return nullcontext()
        return Konduktor(settings.state_dir, program)
    except (OSError, UsageError):
        return nullcontext()


class Konduktor:
    """The command `konduktor launch` with its own HOME, which is removed at the end of the `with` block."""

    def __init__(self, state_dir: Path, program: Path | None) -> None:
        """Create a HOME in `state_dir`, and start the process if `program` is not None.

        Also remove the HOMEs that killed processes left behind.
        """
        state_dir.mkdir(parents=True, exist_ok=True)
        for folder in state_dir.glob("launch-*"):
            if not processes.is_alive(folder.name.split("-")[1]):
                shutil.rmtree(folder, ignore_errors=True)
        self.home = Path(tempfile.mkdtemp(prefix=f"launch-{os.getpid()}-", dir=state_dir))
        self.config, self.kubeconfig, self.job = (
            self.home / name for name in ("config.yaml", "kubeconfig", "job.yaml")
        )
        self._temporary = self.home / "tmp"
        """The TMPDIR of konduktor's process, to which the Kubernetes client writes the client key. If the
        process is killed, the key remains in this folder."""
        self._temporary.mkdir()
        schemas = self.home / ".konduktor" / "schemas"
        schemas.mkdir(parents=True, mode=0o700)
        (schemas / "podspec.json").write_text("{}")  # Without this file, konduktor would download the schema.
        self._until = ExitStack()
        self._waiting = self._start(program) if program is not None and _of_python(program) else None

    def launch(self, program: Path, proxy: Proxy | None = None) -> subprocess.CompletedProcess[str]:
        """Run `konduktor launch` on the files in this HOME. Raises ToolError.

        `proxy` is the proxy through which konduktor reaches the API server. The proxy's password is passed to
        the process through a pipe.
        """
        process, self._waiting = self._waiting, None
        command = self._command(program)
        if process is None and proxy is not None and _of_python(program):
            process = self._start(program)
        if process is None:  # No process was started in advance, or an earlier call used it.
            return processes.run(command, timeout=SECONDS, env=self._environment())
        with self._until:
            line = json.dumps(proxy and (str(proxy), proxy.headers)) + "\n"
            result = processes.communicated(process, command, line, timeout=SECONDS)
        return processes.checked(result)

    def __enter__(self) -> Konduktor:
        return self

    def __exit__(self, *_: object) -> None:
        process, self._waiting = self._waiting, None
        try:
            with self._until:
                if process is not None:
                    processes.kill_group(process)
                    process.communicate()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def _start(self, program: Path) -> subprocess.Popen[str]:
        python = program.with_name("python")
        return self._until.enter_context(
            processes.started(
                [str(python), "-P", "-c", _WAITING, ",".join(LIBRARIES), *self._command(program)],
                cause="launch.konduktor_missing",
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )

    def _command(self, program: Path) -> list[str]:
        return [str(program), "--kubeconfig", str(self.kubeconfig), "launch", "-y", "-s", "-d", str(self.job)]

    def _environment(self) -> dict[str, str]:
        """Return a minimal environment, so that no API key gets into konduktor's logs."""
        own = {
            "HOME": str(self.home),
            "TMPDIR": str(self._temporary),
            "KUBECONFIG": str(self.kubeconfig),
            "KONDUKTOR_CONFIG": str(self.config),
            "KONDUKTOR_SKIP_IMAGE_CHECK": "1",
            "KONDUKTOR_DISABLE_USAGE_COLLECTION": "1",
        }
        return {"USER": "harness", **processes.environment(own, only=("PATH", "LANG", "USER"))}


def _of_python(program: Path) -> bool:
    """Return whether a script's interpreter is Python, according to the script's first two lines.

    If the interpreter's path is too long for a `#!` line, it is in the second line.
    """
    with program.open("rb") as text:
        return any(b"python" in line for line in islice(text, 2))
