"""When the ranks should have met, every container is looked at from inside, once."""

import threading

import pytest

from harness.core.clock import Clock
from harness.evidence import torchrun_processes
from harness.evidence.schema.bundle import Observation, Process, RendezvousSnapshot
from harness.observe import container_inspection as inspection
from harness.observe.rendezvous import RendezvousMonitor

TORCHRUN = [
    "python3",
    "/usr/bin/torchrun",
    "--rdzv_id=1",
    "--nnodes",
    "2",
    "--master-port=7",
    "--standalone",
    "/x.py",
]


def seen(pod: str, *, worker: bool = False, ticks: int = 0, reaped: int = 0) -> RendezvousSnapshot:
    processes = [Process(pid=9, parent=1, ticks=ticks, reaped=reaped, command=TORCHRUN)]
    processes += [Process(pid=10, parent=9, command=["python3", "/x.py"])] * worker
    return RendezvousSnapshot(at="t", pod=pod, processes=processes)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch):
    """A rendezvous of two pods with a deadline of 20 s, looked at after `after` seconds."""
    recorded: list[RendezvousSnapshot] = []
    at = [100.0]
    clock = Clock(monotonic=lambda: at[0])
    made = RendezvousMonitor(None, 2, 20.0, recorded.append, clock)  # type: ignore[arg-type]
    made.recorded = recorded  # type: ignore[attr-defined]

    def look(*answers: RendezvousSnapshot, after: float = 21) -> RendezvousMonitor:
        for answer in answers:
            item = {"metadata": {"name": answer.pod, "uid": answer.pod}, "status": {"phase": "Running"}}
            made.observe("pod", Observation(received_at="t", type="MODIFIED", object=item))
        by_pod = {answer.pod: answer for answer in answers}
        monkeypatch.setattr(inspection, "_inspect", lambda _, pod, *__: by_pod[pod["metadata"]["name"]])
        at[0] = 100 + after
        return made

    return look


def test_a_torchrun_that_waits_is_the_end(met) -> None:
    """Every container is recorded, whichever of them waits."""
    made = met(seen("a"), seen("b", worker=True))
    assert "torchrun is still waiting in a" in (made.reason() or "")
    assert [one.pod for one in made.recorded] == ["a", "b"]


def test_ranks_that_met_are_not_looked_at_again(met) -> None:
    made = met(seen("a", worker=True), seen("b", worker=True))
    assert made.reason() is None
    assert met(seen("a"), seen("b")).reason() is None


def test_ranks_that_ended_have_met(met) -> None:
    """A torchrun whose ranks are done waits for the others' end.

    One whose rank failed is about to report it.
    """
    assert met(seen("a", reaped=34), seen("b", worker=True)).reason() is None


def test_a_rank_that_is_ending_is_a_rank(met) -> None:
    """A process frees its memory, and with it its command line, before torchrun learns of its end."""
    rank = Process(pid=10, parent=9, command=[])
    ending = seen("a").model_copy(update={"processes": [*seen("a").processes, rank]})
    assert met(ending, seen("b", worker=True)).reason() is None


def test_a_torchrun_that_is_still_starting_gets_more_time(met) -> None:
    """A slow machine is no fault: an agent that uses CPU is looked at again."""
    made = met(seen("a", ticks=90), seen("b"))
    assert made.reason() is None
    assert made.recorded == []
    assert met(seen("a"), seen("b"), after=27).reason() is not None


def test_an_endless_torchrun_start_is_judged_before_the_deadline(met) -> None:
    """Half as long again is enough for all. After it Kueue ends the job, and only says that time was over."""
    assert met(seen("a", ticks=90), seen("b")).reason() is None
    made = met(seen("a", ticks=90), seen("b"), after=31)
    assert "torchrun is still waiting in a, b" in (made.reason() or "")
    assert [one.pod for one in made.recorded] == ["a", "b"]


@pytest.mark.parametrize("ticks", [3, 4, 8])
def test_one_that_polls_is_not_starting(met, ticks) -> None:
    """The torchrun that keeps the store uses 1 to 2 % of a core while it waits, and more on a slower core."""
    assert met(seen("a", ticks=ticks), seen("b")).reason() is not None


def test_container_that_cannot_be_looked_into_holds_nobody_up(met, monkeypatch) -> None:
    """The API server froze during the look."""
    made = met(seen("a", worker=True), seen("b", worker=True))
    answers = {"a": seen("a", worker=True)}
    frozen = threading.Event()
    monkeypatch.setattr(inspection, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(
        inspection,
        "_inspect",
        lambda _, pod, *__: answers.get(pod["metadata"]["name"]) or frozen.wait(),
    )
    assert made.reason() is None
    assert [one.error for one in made.recorded] == [None, "no response within 0.2 s"]
    frozen.set()


def test_not_before_every_pod_runs(met) -> None:
    assert met(seen("a")).reason() is None


def test_options_of_torchrun() -> None:
    """Options are read in every spelling, and none of the script's own."""
    [agent] = torchrun_processes.agents(seen("a", worker=True))
    assert (agent.nodes, agent.port, agent.rendezvous_id, agent.started) == ("2", "7", "1", True)
    both = Process(
        pid=3,
        parent=1,
        command=["python3", "-m", "torch.distributed.run", "--rdzv-endpoint=h:5", "--nnodes=1:4"],
    )
    [agent] = torchrun_processes.agents(RendezvousSnapshot(at="t", pod="p", processes=[both]))
    assert (agent.host, agent.port, agent.nodes) == ("h", "5", "4")
    assert (
        torchrun_processes.agents(
            RendezvousSnapshot(at="t", pod="p", processes=[Process(pid=3, parent=1, command=["sleep", "9"])])
        )
        == []
    )
