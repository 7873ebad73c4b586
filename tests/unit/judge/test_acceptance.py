"""Acceptance tests: every node must report, and a node is accepted only if its report is complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from acceptance_bundles import NODES, check, checks, nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge.engine import judge

HEALTHY: dict[int, Any] = {index: checks() for index in range(NODES)}


def verdict(job: Any, path: Path) -> Any:
    return judge(job.write(path / "bundle"))


def test_every_node_answered_and_everything_passed(tmp_path: Path):
    """Contract: a PASS contains the number of nodes, and states that no GPU was accepted if none was
    tested."""
    seen = verdict(nodes(HEALTHY), tmp_path)
    assert seen.verdict == "PASS", seen.explanation
    assert "Every node sent a complete report (3 nodes)" in seen.explanation
    assert "12 checks on 3 nodes passed" in seen.explanation
    assert "no GPU was tested, so no GPU is accepted" in seen.explanation
    assert "run-exists" not in {check.name for check in seen.checks}


def test_a_node_without_a_report_is_named(tmp_path: Path):
    """Contract: the checks that the node's pod completed before it stopped are not enough to accept the
    node."""
    seen = verdict(nodes({**HEALTHY, 1: None}), tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "node.not_answered", [1])
    assert "1 of 3 nodes sent no report: e2e-worker2" in seen.explanation


def test_a_node_that_nobody_heard_of(tmp_path: Path):
    """Contract: an expected node counts as not accepted even if no pod ran on it."""
    job = nodes(HEALTHY)
    expected = job.manifest.expected.model_copy(update={"node_names": ["e2e-worker1", "e2e-worker9"]})
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    seen = verdict(job, tmp_path)
    assert (seen.verdict, seen.cause) == ("FAIL", "node.not_answered")
    assert "e2e-worker9: no pod started there" in seen.explanation


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"verdict": "FAIL", "cause": "compute.wrong"}, ("FAIL", "compute.wrong", [2])),
        ({"verdict": "FAIL", "cause": "of.another_version"}, ("FAIL", "acceptance.failed", [2])),
        ({"verdict": "UNKNOWN"}, ("UNKNOWN", "run.evidence_missing", [2])),
        ({"measured": 1.0}, ("UNKNOWN", "run.evidence_missing", [2])),
        ({"measured": None}, ("UNKNOWN", "run.evidence_missing", [2])),
        ({"verdict": "WARN", "cause": "compute.slow"}, ("PASS", None, [])),
    ],
)
def test_one_check_of_one_node(tmp_path: Path, changed: dict[str, Any], expected: tuple[Any, ...]):
    """Contract: the worst check on any node decides. A measurement beyond its limit does not pass."""
    by_node = {**HEALTHY, 2: checks(compute__gemm__fp32=changed)}
    seen = verdict(nodes(by_node), tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == expected, seen.explanation
    if "measured" not in changed:
        word = "compute.gemm.fp32 on 1 pod" if expected[0] == "PASS" else "the text of compute.gemm.fp32"
        assert word in seen.explanation


def test_a_cpu_that_passes_for_a_gpu(tmp_path: Path):
    """Contract: if the GPUs should be tested, a report about a CPU proves nothing."""
    seen = verdict(nodes(HEALTHY, device="cuda"), tmp_path)
    assert seen.verdict == "UNKNOWN"
    assert "it tested cpu instead of cuda" in seen.explanation


def test_a_check_that_other_nodes_have(tmp_path: Path):
    """Contract: a node whose report lacks checks is UNKNOWN."""
    seen = verdict(nodes({**HEALTHY, 0: checks()[:3]}), tmp_path)
    assert (seen.verdict, seen.ranks) == ("UNKNOWN", [0])
    assert "no DDP check" in seen.explanation


@settings(max_examples=25)
@given(index=st.integers(0, NODES - 1), drop=st.sets(st.integers(0, 3), min_size=1))
def test_nothing_that_is_left_out_makes_a_pass(
    tmp_path_factory: pytest.TempPathFactory, index: int, drop: set[int]
):
    """Property: if any checks are missing from any node's report, the verdict is not PASS."""
    kept = [check for at, check in enumerate(checks()) if at not in drop]
    seen = verdict(nodes({**HEALTHY, index: kept}), tmp_path_factory.mktemp("left-out"))
    assert seen.verdict != "PASS"


def without_cuda() -> list[Any]:
    wrong = {"verdict": "UNKNOWN", "cause": "image.no_cuda", "text": "PyTorch 2.6.0 is built without CUDA"}
    return [check("env.shm", measured=None, limit=None, **wrong)]


def test_an_image_without_cuda_is_about_the_image(tmp_path: Path):
    """Contract: the verdict has one cause, accuses no rank, and advises which option to use."""
    seen = verdict(nodes(dict.fromkeys(range(NODES), without_cuda()), device="cuda"), tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "image.no_cuda", []), seen.explanation
    assert (
        "PyTorch 2.6.0 is built without CUDA. 3 pods reported this, so no node is judged" in seen.explanation
    )
    assert any("--image IMAGE" in step for step in seen.next)


def test_an_image_without_cuda_comes_before_a_failed_node(tmp_path: Path):
    by_node = {
        0: checks(compute__gemm__fp32={"verdict": "FAIL", "cause": "compute.wrong"}),
        1: without_cuda(),
    }
    seen = verdict(nodes({**HEALTHY, **by_node}, device="cuda"), tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "image.no_cuda", [])


def test_what_most_nodes_share_is_said_first(tmp_path: Path):
    """Contract: the explanation begins with the failure that most nodes share, followed by the failure of a
    single node."""
    shared = {"verdict": "FAIL", "cause": "training.failed"}
    own = {"verdict": "FAIL", "cause": "shm.full"}
    by_node = {0: checks(train__learns=shared), 1: checks(train__learns=shared, env__shm=own), 2: checks()}
    seen = verdict(nodes(by_node), tmp_path)
    assert (seen.cause, seen.ranks) == ("training.failed", [0, 1])
    assert seen.explanation.startswith(
        "2 of 3 nodes failed with the same cause (training.failed): look for a"
    )
    assert "also, node e2e-worker2: env.shm" in seen.explanation.replace("Also", "also")
