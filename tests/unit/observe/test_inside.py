"""What a look into a container shows."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

from kubernetes.client.exceptions import ApiException

from harness.evidence.schema.bundle import Process
from harness.observe import container_inspection as inspection


def test_what_the_script_in_the_container_prints() -> None:
    """The script prints processes with their arguments, except scripts, and TCP sockets of both families."""
    command = base64.b64encode(b"\0".join([b"bash", b"-c", b"x" * 400]) + b"\0").decode()
    output = f"""process 7 1 2 34 T {command}
process 8 7 0 0 - {""}
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0B00007F:04D2 00000000:0000 0A 00000000:00000000 00:00000000
   1: 0000000000000000FFFF0000020014AC:A5AC 0000000000000000FFFF0000030014AC:04D2 01 00000000:00000000"""
    found = inspection.parse("p", output)
    assert found.processes == [
        Process(pid=7, parent=1, ticks=2, reaped=34, state="T", command=["bash", "-c", "…"]),
        Process(pid=8, parent=7, command=[]),
    ]
    assert (found.listening, found.connected) == ([1234], ["172.20.0.3:1234"])


def test_a_stopped_process_is_seen_as_stopped(tmp_path: Path) -> None:
    """Contract: the script, run here by bash, shows the state of a real process that SIGSTOP stopped."""
    code = "import os, signal; print('here', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as stopped:
        assert stopped.stdout is not None
        stopped.stdout.readline()
        done = subprocess.run(["bash", "-c", inspection._LOOK], capture_output=True, text=True, check=True)
        stopped.kill()
    states = {process.pid: process.state for process in inspection.parse("p", done.stdout).processes}
    assert states[stopped.pid] == "T"
    assert "S" in states.values()


def test_the_words_of_a_refused_look_are_kept() -> None:
    """Contract: a paused container is known by what containerd says, deep inside what the client raises."""
    body = '{"kind":"Status","message":"error executing command: cannot exec in a paused state","code":500}'
    reason = f"Handshake status 500 Internal Server Error -+-+- {{'audit-id': 'x'}} -+-+- b'{body}'"
    message = inspection._why(ApiException(status=0, reason=reason))
    assert message == "ApiException: error executing command: cannot exec in a paused state"
