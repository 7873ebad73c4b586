"""The commands of published guides, typed as their readers type them, on a cluster given by a kubeconfig."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import guide_table
import pytest
from harness_command import environment

from harness.context import RunContext
from harness.provision.cluster import Ready
from harness.provision.images.build import build_controller
from harness.provision.images.stack import resolve
from harness.settings import Settings

pytestmark = [pytest.mark.guides, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
STATE = """kubectl get pods -o wide; kubectl get events --sort-by=.lastTimestamp
for pod in $(kubectl get pods -o name); do kubectl logs $pod --all-containers --prefix --tail=40; done"""
"""Shows why the namespace did not come to where a row starts."""


class Shell:
    """One user's shell in a folder: variables that a command assigns are there for the next."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        self._variables = folder / ".variables"
        self._variables.touch()

    def type(self, command: str, seconds: float, until: str = "") -> tuple[int, str]:
        """Run a command. Return its exit code and its output, both streams together.

        With `until`, send SIGINT, as Ctrl-C does, once its output matches that regex. The code is 0 then.
        """
        script = f"set -a; . {self._variables}; {command}\ncode=$?; export -p >{self._variables}; exit $code"
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        over = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
        over.start()
        output, matched = "", False
        try:
            assert process.stdout is not None
            for line in process.stdout:
                output += line
                if until and not matched and re.search(until, output):
                    matched = True
                    os.killpg(process.pid, signal.SIGINT)
            code = process.wait()
        finally:
            over.cancel()
        return (0 if matched else code), output


@pytest.fixture(scope="module")
def shell(
    cluster: Ready, harness_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """A shell whose kubectl and harness use a namespace of their own on a cluster given by KUBECONFIG."""
    shared = cluster.cluster.shared_folder
    assert shared is not None
    context = RunContext(settings=harness_settings, progress=print)
    cluster.cluster.provide_image(cluster.worker.tag, context, everywhere=True)
    folder = tmp_path_factory.mktemp("guides")
    tools = folder / "bin"
    tools.mkdir()
    (tools / "kubectl").symlink_to(shutil.which(harness_settings.kubectl_bin) or "kubectl")
    for program in ("harness", "kubectl-torchrun"):
        (tools / program).symlink_to(Path(sys.executable).with_name(program))
    kubeconfig = folder / "kubeconfig"
    shutil.copy(cluster.kind.kubeconfig, kubeconfig)
    namespace = f"guides-{os.getpid()}-{int(time.time()) % 10000}"
    env = {
        **environment(folder),
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "IMAGE": cluster.worker.tag,
        "NAMESPACE": namespace,
        "ROOT": str(ROOT),
        "SHARED": str(shared.on_nodes),
    }
    found = Shell(folder, env)
    use = f"kubectl config set-context --current --namespace={namespace}"
    assert found.type(f"kubectl create namespace {namespace} && {use}", 60)[0] == 0
    yield found
    found.type(f"kubectl delete namespace {namespace} --timeout=120s", 150)
    found.type(f"kubectl delete persistentvolume -l guides={namespace}", 60)
    cluster.cluster.free_disk(namespace, lambda _: None)


@pytest.fixture(scope="module")
def controller(cluster: Ready, harness_settings: Settings) -> str:
    """The image of the torchrun controller, on every node."""
    context = RunContext(settings=harness_settings, progress=print)
    image = build_controller(resolve(context), context).tag
    cluster.cluster.provide_image(image, context, everywhere=True)
    return image


@pytest.mark.parametrize("name", guide_table.typed())
def test_commands_of_a_guide(shell: Shell, name: str, request: pytest.FixtureRequest) -> None:
    """Contract: each command line of the guide does what docs/guides.md says, in the guide's order."""
    if name == "torchrun":
        shell.env["CONTROLLER"] = request.getfixturevalue("controller")
    guide, failed = guide_table.read(name), []
    for row in guide.rows:
        if not row.command:
            continue
        for command in row.before:
            code, output = shell.type(command, row.seconds)
            print(f"$ {command}\n{output}")
            assert code == 0, f"{command}: exit code {code}\n{output}{shell.type(STATE, 60)[1]}"
        command = guide.typed(row)
        began = time.monotonic()
        code, output = shell.type(command, row.seconds, row.expect if row.follows else "")
        print(f"$ {command}\n{output}({time.monotonic() - began:.0f} s, exit code {code})")
        if code != row.code:
            failed.append(f"{command}: exit code {code}, expected {row.code}\n{output}")
        elif row.expect and not re.search(row.expect, output):
            failed.append(f"{command}: nothing matches {row.expect!r}\n{output}")
    assert not failed, "\n".join(failed)
