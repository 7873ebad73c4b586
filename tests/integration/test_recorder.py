"""The recorder around the unmodified client records the values that a program logs, and changes nothing else.

Every test runs real programs like a rank's container, with the recorder's folder at the front of PYTHONPATH
and a tracker on loopback. The recorded values are compared with the rows in the tracker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mounting import lay_out
from tracker_server import Server

from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.schema.ground_truth import (
    TruthAccount,
    TruthEnd,
    TruthFault,
    TruthLeft,
    TruthLine,
    TruthRow,
    TruthSettings,
    TruthStart,
)
from harness.judge.catalogue import CAUSES
from harness.launch.mounts import recorder
from harness.tracker.client.audit import EmbeddedAudit, collect

NONCE = "0123abcd"
Points = dict[tuple[str, int], str]
"""Maps (metric, step) to the exact text of the value."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recorder's folder, with the same files as the ConfigMap in a container."""
    return lay_out(recorder.MOUNTED, tmp_path_factory.mktemp("recorder"))


@dataclass
class Ran:
    """A program that has ended, with its output, the container's log and the recorder's lines."""

    code: int
    output: str
    log: str
    truth: dict[int, list[TruthLine]] = field(init=False)
    own: dict[int, list[TruthLine]] = field(init=False)

    def __post_init__(self) -> None:
        collector = TruthCollector(NONCE)
        for line in self.log.splitlines():
            collector.feed(line)
        self.truth, self.own = collector.result(), collector.outside()

    def lines(self, rank: int = 0) -> list[TruthLine]:
        """Return a rank's ground truth, without its code facts and settings."""
        return [line for line in self.truth.get(rank, []) if line.kind not in ("code", "settings")]

    def points(self, rank: int = 0) -> Points:
        rows = [line for line in self.lines(rank) if isinstance(line, TruthRow)]
        return {(row.metric, row.step): repr(row.value) for row in rows}

    def account(self, rank: int = 0) -> TruthAccount:
        (account,) = [line for line in self.lines(rank) if isinstance(line, TruthAccount)]
        assert account.handed == account.logged + account.left
        return account

    def entries(self, rank: int = 0) -> dict[tuple[str, str, str], int]:
        """Return the number of omitted values by key, type and reason."""
        lines = [line for line in self.lines(rank) if isinstance(line, TruthLeft)]
        return {entry[:3]: entry[3] for line in lines for entry in line.left}

    def left(self, rank: int = 0) -> dict[tuple[str, str], int]:
        return {(key, kind): count for (key, kind, _), count in self.entries(rank).items()}

    def ended(self, rank: int = 0) -> bool:
        return any(isinstance(line, TruthEnd) for line in self.lines(rank))


Run = Callable[..., Ran]


@pytest.fixture
def ran(server: Server, folder: Path, tmp_path: Path) -> Run:
    """Return a function `ran(program, **environment)`, which runs a program as a rank that logs to this
    test's run."""

    def run(program: str, *, options: tuple[str, ...] = (), **environment: str) -> Ran:
        log = tmp_path / "log"
        log.touch()
        home = tmp_path / f"home{environment.get('RANK', '0')}"
        given = {
            "PYTHONPATH": str(folder),
            "HARNESS_NONCE": NONCE,
            "HARNESS_LOG": str(log),
            "PLUTO_RUN_ID": f"run-{tmp_path.name}",
            "RANK": "0",
            **environment,
        }
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(program)],
            env=server.pluto_environment(home, **given),
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return Ran(done.returncode, done.stdout, log.read_text())

    return run


@pytest.fixture
def kept(server: Server, tmp_path: Path) -> Callable[..., Points]:
    """Return a function that returns the points in this test's run in the tracker, without the client's own
    metrics."""

    def read(run_id: str = f"run-{tmp_path.name}") -> Points:
        written: dict[str, list[object]] = {"runs": [], "attachments": [], "points": [], "writers": []}
        with server.client() as client:
            collect(
                EmbeddedAudit(client),
                external_id=run_id,
                project="e2e",
                job_name=None,
                write=lambda kind, record: written[kind].append(record),
                write_points=lambda rows: written["points"].extend(rows.records()),
            )
        return {
            (point.metric, point.step): repr(point.value)  # type: ignore[attr-defined]
            for point in written["points"]
            if not point.metric.startswith("sys/")  # type: ignore[attr-defined]
        }

    return read


KINDS = """
    import pluto, numpy, threading, time, math
    class Tensor:  # as torch's: the client knows it by item()
        reads = 0
        def __init__(self, value): self.value = value
        def item(self):
            Tensor.reads += 1
            return self.value
    run = pluto.init(name="node0")
    run.log({"plain": 0.1, "whole": 7, "flag": True, "nan": math.nan, "inf": -math.inf, "big": 2**70}, step=3)
    run.log({"implicit": 1.5})                                   # step 4
    run.log({"implicit": 2.5, "tensor": Tensor(0.25)})           # step 5
    assert Tensor.reads == 1, Tensor.reads
    pluto.log({"global": numpy.float32(0.1), "double": numpy.float64(0.1), "count": numpy.int64(4)}, step=9)
    run.log({"list": [1, 2, 3], "tensors": [Tensor(1.0), Tensor(2.0)]}, step=10)
    run.log({"text": "warm-up", "histogram": pluto.Histogram([1, 2, 2])}, step=11)
    run.log({"nested": {"a": 1}, "none": None}, step=11)
    run.log({"array": numpy.zeros(3), "beside": 1}, step=12)     # the client leaves the array out
    run.log({"twice": 1.0}, step=13)
    run.log({"twice": 2.0}, step=13)
    run.log({"dated": 5.0}, step=14, timestamp=1_700_000_000.5)
    run.log(step=15, data={"named": 6.0})
    run.finish()
"""


def test_recorded_values_equal_those_in_the_tracker(ran: Run, kept: Callable[..., Points]) -> None:
    """Names, steps and values equal those that the client sends, to the last bit. Values that it does not
    send are omitted."""
    done = ran(KINDS)
    assert done.code == 0, done.output
    points = done.points()
    assert points.pop(("flag", 3)) == "1.0"
    assert points == kept()
    assert done.ended()
    names = {metric for metric, _ in points}
    assert {"plain", "tensor", "list", "beside", "named", "dated"} <= names
    assert not {"text", "histogram", "nested", "array", "none"} & names
    assert points["implicit", 5] == "2.5"
    account = done.account()
    assert done.left() == {
        ("flag", "bool"): 1,
        ("list", "int"): 2,
        ("tensors", "Tensor"): 1,
        ("nested.a", "int"): 1,
        ("none", "NoneType"): 1,
        ("array", "ndarray"): 1,
    }
    assert (account.handed, account.logged, account.left, account.past, account.unseen) == (27, 20, 7, 0, "")


def test_a_value_refused_by_the_tracker_is_recorded(ran: Run, kept: Callable[..., Points]) -> None:
    """The client omits a Python bool immediately, and a NumPy bool when it uploads."""
    done = ran("""
        import pluto, numpy
        run = pluto.init(name="node0")
        run.log({"flag": numpy.bool_(True), "plain": True}, step=0)
        run.finish()
    """)
    assert done.points() == {("flag", 0): "1.0", ("plain", 0): "1.0"}, done.output
    assert {key: kind.rstrip("_") for key, kind in done.left()} == {"flag": "bool", "plain": "bool"}
    assert kept() == {}


@pytest.mark.nightly
def test_steps_that_client_counts_are_right_with_many_threads(ran: Run, kept: Callable[..., Points]) -> None:
    """Calls from several threads get different steps, and each call is recorded with the step that is
    sent."""
    program = """
        import pluto, threading, time
        class Slow(dict):  # other threads call while the client reads the metrics
            def items(self):
                time.sleep(0.001)
                return super().items()
        run = pluto.init(name="node0")
        def work(number):
            for value in range(40):
                run.log(Slow({f"thread{number}": value}))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        [thread.start() for thread in threads]; [thread.join() for thread in threads]
        run.finish()
    """
    done = ran(program)
    assert done.code == 0, done.output
    assert len(done.points()) == 240
    assert sorted(step for _, step in done.points()) == [*range(1, 241)]
    assert done.points() == kept()


@pytest.mark.nightly
def test_with_and_without_recorder_tracker_gets_same(
    ran: Run, kept: Callable[..., Points], tmp_path: Path
) -> None:
    """Contract: the recorder does not change the points that the client sends."""
    found = []
    for name, more in {"with": {}, "without": {"PYTHONPATH": ""}}.items():
        done = ran(KINDS, PLUTO_RUN_ID=f"{tmp_path.name}-{name}", **more)
        assert done.code == 0, done.output
        found.append(kept(f"{tmp_path.name}-{name}"))
    assert found[0] == found[1]


def test_an_exception_leaves_no_end(ran: Run) -> None:
    """A program that was ended by an exception might have logged more, so its record has no end."""
    done = ran("""
        import pluto
        run = pluto.init(name="node0")
        run.log({"loss": 1.0}, step=0)
        raise RuntimeError("boom")
    """)
    assert done.code == 1
    assert "boom" in done.output
    assert [line.kind for line in done.lines()] == ["start", "row"]


@pytest.mark.parametrize(
    ("last", "ends"), [("sys.exit(0)", True), ("sys.exit(3)", True), ("os._exit(0)", False)]
)
def test_an_ordered_end_is_an_end(ran: Run, last: str, ends: bool) -> None:
    """The record has an end even without a call of finish(), because the client calls it at exit, before the
    recorder ends."""
    done = ran(f"""
        import os, sys, pluto
        run = pluto.init(name="node0")
        run.log({{"loss": 1.0}}, step=0)
        {last}
    """)
    assert done.ended() is ends, done.output
    assert done.points() == {("loss", 0): "1.0"}


@pytest.mark.nightly
def test_children_of_a_rank_record_what_they_log(ran: Run) -> None:
    """Each child process has its own record with its own end, and names its parent."""
    done = ran("""
        import atexit, multiprocessing, os, subprocess, sys, pluto
        CHILD = "import pluto; run = pluto.init(name='child'); run.log({'child': 1.0}, step=0); run.finish()"
        run = pluto.init(name="node0")
        run.log({"loss": 1.0}, step=0)
        def work(step):
            run.log({"loss": 99.0}, step=step)
        child = multiprocessing.get_context("fork").Process(target=work, args=[50])
        child.start(); child.join()
        if (pid := os.fork()) == 0:
            work(51)
            atexit.unregister(run.finish)              # the client would wait for its parent's children
            sys.exit(0)                                # our exit handler runs
        os.waitpid(pid, 0)
        alone = {**os.environ, "PLUTO_DIR": "child"}
        subprocess.run([sys.executable, "-c", CHILD], check=True, env=alone)
        run.log({"loss": 2.0}, step=1)
        run.finish()
        print("PID", os.getpid(), flush=True)
    """)
    lines = [line for line in done.lines() if line.kind in {"start", "row", "account", "end", "fault"}]
    pid = int(done.output.partition("PID ")[2].split()[0])
    parents = [line.parent for line in lines if isinstance(line, TruthStart)]
    assert parents == [None, pid, pid, pid], done.output
    # The last child called finish(), after which a process pool may kill it.
    each = ["row", "row", "account"], ["row", "account"], ["row", "account"], ["row", "account", "account"]
    assert [line.kind for line in lines] == [kind for one in each for kind in ("start", *one, "end")]
    steps = {("loss", 0), ("loss", 1), ("loss", 50), ("loss", 51), ("child", 0)}
    assert done.points().keys() == steps


def test_a_program_without_a_rank_records_nothing(ran: Run) -> None:
    done = ran(
        """
        import pluto
        run = pluto.init(name="node0"); run.log({"loss": 1.0}, step=0); run.finish()
    """,
        RANK="",
    )
    assert done.code == 0, done.output
    assert "@truth1" not in done.log


def test_a_rank_of_torchrun_that_never_logs_says_so(ran: Run) -> None:
    """The parent of the process has no LOCAL_RANK, so the process is the rank itself. A helper process that
    it starts records nothing."""
    done = ran(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)", LOCAL_RANK="0"
    )
    assert [line.kind for line in done.lines()] == ["start", "account", "end"]
    assert done.lines()[-1].count == 0  # type: ignore[union-attr]


def test_a_failure_is_told_once_and_recorded(ran: Run, kept: Callable[..., Points]) -> None:
    """Values that cannot be recorded still reach the tracker, and the record is marked as incomplete."""
    done = ran("""
        import pluto
        run = pluto.init(name="node0")
        run.log({"loss": 1.0}, step=0)
        run.log({"x" * 5000: 1.0, "loss": 2.0}, step=1)   # no frame holds it
        run.log({"x" * 5000: 1.0, "loss": 3.0}, step=2)
        run.log({"loss": 4.0}, step=3)
        run.finish()
    """)
    assert done.code == 0, done.output
    assert done.output.count("[harness] the recorder around Pluto's client failed") == 1
    faults = [line for line in done.lines() if isinstance(line, TruthFault)]
    assert len(faults) == 1
    assert "the frame has" in faults[0].text
    assert done.points()["loss", 3] == "4.0"


def test_a_client_that_is_not_as_expected_runs_on(ran: Run, tmp_path: Path, folder: Path) -> None:
    """An unknown package with the client's name is not changed, and the log contains a message that it is not
    recorded."""
    package = tmp_path / "other" / "pluto"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import op")
    (package / "op.py").write_text("answer = 42")
    done = ran("import pluto; print(pluto.op.answer)", PYTHONPATH=f"{folder}{os.pathsep}{package.parent}")
    assert (done.code, "42" in done.output) == (0, True)
    assert "does not support this version of pluto.op" in done.output


def test_an_image_s_own_sitecustomize_still_runs(ran: Run, tmp_path: Path, folder: Path) -> None:
    """sys.path is the same as without the recorder, so that no module of the recorder hides another one."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "sitecustomize.py").write_text("import builtins; builtins.image = 'its own'")
    program = "import json, sys, sitecustomize; print(json.dumps([image, sitecustomize.__file__, sys.path]))"
    with_ = ran(program, PYTHONPATH=f"{folder}{os.pathsep}{tmp_path / 'image'}")
    without = ran(program, PYTHONPATH=str(tmp_path / "image"))
    assert json.loads(with_.output) == json.loads(without.output)


def test_outside_a_launch_nothing_is_prepared(ran: Run) -> None:
    done = ran("import sys; print([type(f).__module__ for f in sys.meta_path])", HARNESS_NONCE="")
    assert "_harness_recorder" not in done.output


def test_a_worker_that_records_too_has_both(ran: Run, tmp_path: Path) -> None:
    """The worker's own record comes first, and the termination message contains only its digest."""
    workers = Path(__file__).parents[2] / "harness" / "workers"
    done = ran(
        f"""
        import os, sys
        sys.path.insert(0, {str(workers)!r})
        from ground_truth import Recorder
        import pluto
        truth = Recorder("{NONCE}", 0, fd=os.open(os.environ["HARNESS_LOG"], os.O_WRONLY | os.O_APPEND))
        run = pluto.init(name="node0")
        truth.record("loss", 0, 0.5); run.log({{"loss": 0.5}}, step=0)
        truth.record("kept back", 1, 0.5)
        run.finish()
        truth.end()
    """,
        KONDUKTOR_OUTPUT_DIR="out",
    )
    assert done.code == 0, done.output
    assert done.points() == {("loss", 0): "0.5", ("kept back", 1): "0.5"}
    (other,) = done.own.values()
    assert [line.metric for line in other if isinstance(line, TruthRow)] == ["loss"]
    assert [line.outside for line in other if isinstance(line, TruthStart)] == [True]
    message = json.loads((tmp_path / "home0" / "out" / "result.json").read_text())
    assert (message["truth"]["0"]["count"], "s" in message["truth"]["0"]) == (2, False)


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
    """Contract: each leaf value was logged, or is listed with its type and the reason why it was not."""
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
    """The client queues NumPy steps as bytes, which it cannot send. The record mentions this, and has an
    end."""
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
    """The client's own migration, and programs that use the client's queue directly, do this."""
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
    """Values that the recorder cannot observe never count as logged."""
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
    """The settings show whether a client sends nothing, and otherwise contain its queue."""
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
"""The workaround that the action of rank.no_cpu_frequency recommends."""


@pytest.mark.parametrize(
    ("given", "own", "starts"),
    [({"HARNESS_CPU_FREQUENCY": "0"}, "", True), ({}, "", False), ({}, _ADVICE, True)],
    ids=["kind", "own cluster", "advice"],
)
def test_client_starts_on_kernel_without_cpu_frequency(
    ran: Run, kept: Callable[..., Points], given: dict[str, str], own: str, starts: bool
) -> None:
    """On the harness's own clusters, the recorder enables the client to start, and records this. On other
    clusters, the client fails."""
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
