"""What a terminal shows of a running launch, from the evidence as it is written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import bundles
import process_events
import pytest
from rich.console import Console

from harness.cli.view.live import Live, watching
from harness.evidence import BundleWriter, Redactor
from harness.evidence.kubernetes.objects import COMPLETION_INDEX
from harness.evidence.schema.bundle import Expected, Observation
from harness.workers.ground_truth import truth_frames

NONCE = "abc"


def pod(index: int, phase: str, reason: str = "") -> Observation:
    status: dict[str, Any] = {"phase": phase}
    if reason:
        status["containerStatuses"] = [{"state": {"waiting": {"reason": reason}}}]
    metadata = {"name": f"pod-{index}", "uid": f"u{index}", "annotations": {COMPLETION_INDEX: str(index)}}
    document = {"metadata": metadata, "spec": {"nodeName": f"node-{index}"}, "status": status}
    return Observation(received_at="2026-11-21T05:00:00Z", type="MODIFIED", object=document)


def shown(live: Live, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(live.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_ranks_side_by_side(tmp_path: Path) -> None:
    """It shows phase or waiting reason, node, step and loss from the ground truth, and the last line. It
    shows no secrets.
    """
    live = Live(Console(file=io.StringIO()))
    writer = BundleWriter.create(tmp_path, NONCE, Redactor(["s3cret-key"]))
    writer.listener = live
    writer.update(expected=Expected(num_nodes=2, ranks=2, run_id="r", project="p", queue="q"))
    with writer.stage("images"):
        pass
    with writer.stage("observe"):
        writer.observe("pod", pod(0, "Running"))
        writer.observe("pod", pod(1, "Pending", "ErrImagePull"))
        writer.observe("node", pod(0, "Running"))
        rows = [["loss/node0", 6, 0.5, 1], ["loss/node0", 7, 0.25, 2]]
        frame = truth_frames.encode(NONCE, {"k": "rows", "r": 0, "q": 0, "n": 0, "rows": rows})
        live.logged("pod-0", f"2026-11-21T05:00:01Z rank 0 says hello\n2026-11-21T05:00:02Z {frame}\n")
        text = shown(live)
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "✓ images" in text
    assert "observe 0s" in text
    assert lines["0"].split()[:6] == ["0", "node-0", "Running", "7", "0.25", "2"]
    assert "rank 0 says hello" in lines["0"]
    assert lines["1"].split()[:3] == ["1", "node-1", "ErrImagePull"]
    assert "@truth1" not in text


@pytest.mark.parametrize("width", [80, 110])
def test_a_long_last_line_is_cut_and_nothing_else(tmp_path: Path, width: int) -> None:
    """Contract: every terminal shows where a rank is and what it does."""
    live = Live(Console(file=io.StringIO()))
    writer = BundleWriter.create(tmp_path, NONCE, Redactor([]))
    writer.listener = live
    with writer.stage("observe"):
        writer.observe("pod", pod(0, "ContainerCreating"))
        live.logged("pod-0", f"2026-11-21T05:00:01Z {'long ' * 60}\n")
        rank = next(line for line in shown(live, width).splitlines() if "node-0" in line)
    assert rank.split()[:4] == ["0", "node-0", "ContainerCreating", "long"]
    assert len(rank.rstrip()) == width


def test_nothing_that_a_log_says_stops_it(tmp_path: Path) -> None:
    """Cut, forged or odd frames, pods of no rank, and early lines do not stop it."""
    live = Live(Console(file=io.StringIO()))
    live.logged("pod-0", "2026-11-21T05:00:01Z @truth1 zzz 00\n")
    assert shown(live) is not None
    writer = BundleWriter.create(tmp_path, NONCE, Redactor([]))
    writer.listener = live
    writer.update(command=["x"])
    odd = truth_frames.encode(NONCE, {"k": "rows", "r": "x", "q": 0, "rows": [[1]]})
    live.logged("pod-0", f"t {odd}\n")
    other = pod(0, "Running")
    other.object["metadata"]["annotations"] = None
    live.observed("pod", other)
    assert "between stages" in shown(live)


def test_the_last_line_is_what_a_terminal_shows() -> None:
    """A progress bar is shown whole, and no control character reaches the reader's terminal."""
    live = Live(Console(file=io.StringIO()))
    live.observed("pod", pod(0, "Running"))
    live.logged("pod-0", "2026-11-21T05:00:01Z train: 1%\rtrain: \x1b[32m2%\x1b[0m\x1b]0;title\x07 of all\n")
    assert [one.last for one in live._pods.values()] == ["train: 2% of all"]


def test_lines_where_there_is_no_terminal(capsys: Any) -> None:
    with watching(quiet=False) as (progress, listener):
        progress("hello")
    assert listener is None
    assert "s] hello" in capsys.readouterr().err
    with watching(quiet=True) as (progress, listener):
        progress("hello")
    assert capsys.readouterr().err == ""


def test_live_output_shows_each_rank_beside_its_pod(tmp_path: Path) -> None:
    """Contract: with c10d the agent decides ranks; what a pod's processes recorded comes before its index."""
    job = process_events.recorded(bundles.healthy(nodes=2))
    for index in (0, 1):
        process_events.PodEvents(job, index, f"u{index}").torchrun(rank=1 - index)
    first = [event for event in job.processes if event.uid == "u0"]
    live = Live(Console(file=io.StringIO()))
    writer = BundleWriter.create(tmp_path, NONCE, Redactor([]))
    writer.listener = live
    writer.update(expected=Expected(num_nodes=2, ranks=2, run_id="r", project="p"))
    rows = {"k": "rows", "r": 1, "q": 0, "n": 0, "rows": [["loss", 7, 0.25, 2]]}

    def ranks() -> dict[str, list[str]]:
        lines = [line.split() for line in shown(live).splitlines() if "node-" in line]
        return {words[1]: words for words in lines}

    with writer.stage("observe"):
        for index in (0, 1):
            writer.observe("pod", pod(index, "Running"))
        live.logged("pod-0", f"2026-11-21T05:00:01Z {truth_frames.encode(NONCE, rows)}\n")
        assert [words[0] for words in ranks().values()] == ["0", "1"]
        for event in first:
            writer.process(event)
        assert [words[0] for words in ranks().values()] == ["1", "?"]
        for event in job.processes[len(first) :]:
            writer.process(event)
        assert ranks()["node-0"][:4] == ["1", "node-0", "Running", "7"]
        assert ranks()["node-1"][:3] == ["0", "node-1", "Running"]
