"""The recorder accounts for each value, step and start of the unmodified client, whatever its type.

Every test runs real programs with the recorder's folder on PYTHONPATH, and a tracker on loopback.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from recorded_program import Points, Run

from harness.evidence.schema.ground_truth import (
    TruthSettings,
)
from harness.judge.catalogue import CAUSES

ODD = """
    import collections, datetime, decimal, fractions, types, numpy, pluto
    class OnlyItems:
        def items(self):
            return iter([("only/a", 1.0), ("only/a", 2.0), ("only/b", 2)])
    run = pluto.init(name="node0")
    run.log(OnlyItems(), step=0)
    run.log(types.MappingProxyType({"proxy": 1.0}), step=1)
    run.log({"decimal": decimal.Decimal("0.5"), "fraction": fractions.Fraction(1, 2), "beside": 1.0}, step=2)
    run.log({"deep": {"x": {"y": [1.0, {"z": 2.0}]}}, "counter": collections.Counter(a=3)}, step=3)
    run.log({"when": datetime.date(2026, 1, 1), "numpy text": numpy.str_("a"), "set": {1, 2}}, step=4)
    run.log({"phase": "warm-up", "long": "x" * 201, "bytes": b"1", "empty": [], "mixed": ["a", "b"]}, step=5)
    for step in range(6, 9):
        run.log({"loss": 0.5, "ok": step > 6, "lone": None}, step=step)
    for refused in ({3: 1.0, "with a key": 2.0}, {"complex": numpy.complex64(1j), "with complex": 1.0}):
        try:
            run.log(refused, step=9)
        except TypeError:
            pass
    try:
        run.log(["no", "mapping"], step=9)
    except AttributeError:
        pass
    run.finish()
"""


def test_every_value_is_accounted_for_whatever_its_type(ran: Run, kept: Callable[..., Points]) -> None:
    """Contract: each leaf was logged, or is named with its type and the reason why not."""
    done = ran(ODD)
    assert done.code == 0, done.output
    assert done.ended()
    left = done.left()
    for key, kind in {
        ("only/a", "float"),
        ("decimal", "Decimal"),
        ("fraction", "Fraction"),
        ("deep.x.y.0", "float"),
        ("deep.x.y.1.z", "float"),
        ("counter.a", "int"),
        ("when", "date"),
        ("numpy text", "str_"),
        ("set.0", "int"),
        ("long", "str"),
        ("bytes", "bytes"),
        ("empty", "list"),
        ("3", "float"),
        ("with a key", "float"),
        ("complex", "complex64"),
        ("with complex", "float"),
        ("", "str"),
    }:
        assert (key, kind) in left, (key, left)
    assert (left["ok", "bool"], left["lone", "NoneType"]) == (3, 3)
    assert not {"proxy", "beside", "phase", "mixed", "loss", "only/b"} & {key for key, _ in left}
    why = {key: reason for key, _, reason in done.entries()}
    assert "client raised TypeError: Object of type complex is not JSON serializable" in why["with complex"]
    assert why["ok"] == "the client leaves out booleans (bool)"
    assert "the client leaves out values that are not int or float (Decimal)" in why["decimal"]
    logged = {key for key in kept() if key in done.points()}
    assert {("only/b", 0), ("proxy", 1), ("beside", 2), ("loss", 8)} <= logged


@pytest.mark.parametrize(
    ("step", "expected"),
    [("numpy.int64(5)", "a step of type int64"), ("numpy.array(5)", "a step of type ndarray"), ("'7'", "")],
)
def test_step_of_another_type_is_recorded_with_its_number(
    ran: Run, kept: Callable[..., Points], step: str, expected: str
) -> None:
    """The client queues NumPy's steps as bytes, which it cannot send. The record is still complete."""
    done = ran(f"""
        import numpy, pluto
        run = pluto.init(name="node0")
        run.log({{"loss": 0.5}}, step={step})
        run.finish()
    """)
    assert done.code == 0, done.output
    assert done.ended()
    assert done.points() == {("loss", 7 if "7" in step else 5): "0.5"}
    assert all(expected in why for _, _, why in done.entries())
    assert done.left() == ({("loss", "float"): 1} if expected else {})
    assert (kept() == done.points()) is not bool(expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("settings={'mode': 'noop'}", "mode of the run is noop"),
        ("settings={'sync_process_enabled': False}", "sync_process_enabled"),
    ],
)
def test_a_run_that_sends_nothing_is_accounted_for(ran: Run, options: str, reason: str) -> None:
    done = ran(f"""
        import pluto
        run = pluto.init(name="node0", {options})
        for step in range(3):
            run.log({{"loss": 1.0, "nested": {{"a": 1}}}}, step=step)
        run.finish()
    """)
    assert (done.account().handed, done.account().logged) == (6, 0), done.output
    assert all(reason in why for _, _, why in done.entries())


def test_numbers_that_come_past_log_are_recorded(ran: Run, kept: Callable[..., Points]) -> None:
    """As the client's own migration does it, and programs that know its queue."""
    done = ran("""
        import time, pluto
        run = pluto.init(name="node0")
        run.log({"loss": 1.0}, step=0)
        run._log_metrics_batch([({"batch": 2.0}, 1, time.time()), ({"batch": 3.0}, 2, time.time())])
        run._sync_manager.enqueue_metrics({"direct": 4.0}, int(time.time() * 1000), 3)
        run.finish()
    """)
    assert done.code == 0, done.output
    assert done.points() == kept()
    assert len(done.points()) == 4
    assert (done.account().handed, done.account().past) == (1, 3)


def test_a_client_whose_queue_is_unknown_says_so(ran: Run) -> None:
    """What cannot be observed is never taken for logged."""
    done = ran("""
        import pluto
        from pluto.sync.store import SyncStore
        SyncStore.put = SyncStore.enqueue; del SyncStore.enqueue
        import pluto.sync.process as process
        process.SyncProcessManager.enqueue_metrics = lambda self, metrics, timestamp_ms, step: self.store.put(
            run_id=self.run_id, record_type=0, payload=metrics, timestamp_ms=timestamp_ms, step=step)
        process.SyncProcessManager.enqueue_system_metrics = lambda *_: None
        run = pluto.init(name="node0")
        run.log({"loss": 1.0}, step=0)
        run.finish()
    """)
    assert "queue is not known" in done.account().unseen, done.output
    assert done.ended()


def test_the_second_init_of_a_process_is_marked(ran: Run) -> None:
    done = ran("""
        import pluto
        for value in (1.0, 2.0):
            run = pluto.init(name="node0")
            run.log({"loss": value})
            run.finish()
    """)
    kinds = [line.kind for line in done.lines()]
    assert kinds == ["start", "row", "init", "row", "client", "account", "end"], done.output


@pytest.mark.parametrize(
    ("given", "mode", "uploads"),
    [({}, "perf", True), ({"mode": "noop"}, "noop", True), ({"sync_process_enabled": False}, "perf", False)],
)
def test_how_the_client_was_made_is_recorded(
    ran: Run, kept: Callable[..., Points], given: dict[str, object], mode: str, uploads: bool
) -> None:
    """A client that sends nothing is known by its settings; one that sends names its queue."""
    done = ran(f"""
        import pluto
        run = pluto.init(name="node0", settings={given!r})
        run.log({{"loss": 1.0}}, step=0)
        run.finish()
    """)
    [settings] = [line for line in done.truth[0] if isinstance(line, TruthSettings)]
    assert (settings.mode, settings.uploads) == (mode, uploads), done.output
    assert bool(settings.queue) == (not given) == bool(kept()), settings


_ADVICE = "psutil.cpu_freq = lambda percpu=False: None"
"""What the cause rank.no_cpu_frequency recommends."""


@pytest.mark.parametrize(
    ("given", "own", "starts"),
    [({"HARNESS_CPU_FREQUENCY": "0"}, "", True), ({}, "", False), ({}, _ADVICE, True)],
    ids=["kind", "own cluster", "advice"],
)
def test_client_starts_on_kernel_without_cpu_frequency(
    ran: Run, kept: Callable[..., Points], given: dict[str, str], own: str, starts: bool
) -> None:
    """The recorder lets it start on the harness's own clusters, and records that. Elsewhere it fails."""
    assert _ADVICE in CAUSES["rank.no_cpu_frequency"].action
    done = ran(
        f"""
        import psutil, pluto
        psutil._psplatform.cpu_freq = lambda: []
        {own}
        run = pluto.init(name="node0")
        run.log({{"loss": 1.0}}, step=0)
        run.finish()
        """,
        **given,
    )
    frequencies = [line.cpu_frequency for line in done.truth.get(0, []) if isinstance(line, TruthSettings)]
    if starts:
        assert done.code == 0, done.output
        assert frequencies == [not given]
        assert kept() == {("loss", 0): "1.0"}
    else:
        assert done.code == 1
        assert frequencies == []
        assert "ValueError: min() " in done.output
