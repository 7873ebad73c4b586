"""What an attached command does when its job is replaced, or when no controller reads the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.cli.torchrun import attached
from harness.cli.torchrun.attached import Attached
from harness.cli.torchrun.jobs import unobserved
from harness.core.errors import HarnessError

Object = dict[str, Any]


def job(uid: str, phase: str = "Running", generation: int = 1, observed: int | None = 1) -> Object:
    metadata = {"name": "demo", "uid": uid, "generation": generation}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, "observedGeneration": observed}}


@dataclass
class Jobs:
    """The jobs of a namespace, as the API server returns them one after another."""

    answers: list[Object]
    asked_pods: list[str] = field(default_factory=list)

    def find(self, name: str) -> Object:
        del name
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    get = find

    def pods(self, name: str) -> list[Object]:
        self.asked_pods.append(name)
        return []

    def exit_code(self, one: Object) -> int:
        return 0 if one["status"]["phase"] == "Succeeded" else 1


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "POLL_SECONDS", 0.0)


@pytest.mark.parametrize("uid", ["", "mine"])
def test_success_of_namesake_is_not_this_job_s(uid: str) -> None:
    """Contract: a job that was replaced while a command followed it is not said to have succeeded."""
    answers = [job("mine"), job("other", "Succeeded")]
    jobs = Jobs(answers if not uid else answers[1:])
    follower = Attached(jobs, "demo", None, lambda line: None, uid=uid)  # type: ignore[arg-type]
    with pytest.raises(HarnessError, match="another TorchrunJob with this name was created"):
        follower.follow()


def test_code_is_not_sent_to_namesake() -> None:
    """Contract: `sync` ends before it reads the other job's pods."""
    jobs = Jobs([job("other")])
    sender = Attached(jobs, "demo", None, lambda line: None, uid="mine")  # type: ignore[arg-type]
    with pytest.raises(HarnessError, match="another TorchrunJob with this name was created"):
        sender.sync_code(10)
    assert jobs.asked_pods == []


def test_a_job_that_goes_on_keeps_its_exit_code() -> None:
    """Contract: the same job, with the phases that it passes through."""
    jobs = Jobs([job("mine"), job("mine", "Preempted"), job("mine", "Succeeded")])
    assert Attached(jobs, "demo", None, lambda line: None).follow() == 0  # type: ignore[arg-type]


def test_a_change_that_no_controller_reads_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: the phase of a job whose controller is down is old. The follower says so, after a while."""
    assert unobserved(job("mine")) == ""
    assert unobserved({"metadata": {"generation": 1}}) == ""
    assert "generation 3, observed 2" in unobserved(job("mine", generation=3, observed=2))
    lines: list[str] = []
    late = job("mine", generation=3, observed=2)
    for seconds, expected in ((1000.0, False), (0.0, True)):
        monkeypatch.setattr(attached, "STATUS_SECONDS", seconds)
        lines.clear()
        jobs = Jobs([late, late, job("mine", "Succeeded", 3, 3)])
        assert Attached(jobs, "demo", None, lines.append).follow() == 0  # type: ignore[arg-type]
        assert any("has not observed the latest change" in line for line in lines) == expected
        assert "observed" not in lines[-1]
