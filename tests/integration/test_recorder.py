"""The recorder around the unmodified client: what a program hands over is recorded, and nothing else changes.

Every test runs real programs as a rank's container would: the recorder's folder at the front of PYTHONPATH,
and a tracker on loopback. What was recorded is compared with the rows that the tracker has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_program import NONCE, Points, Run

from harness.evidence.schema.ground_truth import (
    TruthFault,
    TruthRow,
    TruthStart,
)

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
    """Names, steps and values are those that the client sends, to the last bit. Others are left out."""
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
    """The client leaves out a plain bool at once, and one of NumPy when it uploads."""
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
    """No two calls of several threads get one step, and each is recorded with the one that is sent."""
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
    """Contract: it changes nothing of what the client does."""
    found = []
    for name, more in {"with": {}, "without": {"PYTHONPATH": ""}}.items():
        done = ran(KINDS, PLUTO_RUN_ID=f"{tmp_path.name}-{name}", **more)
        assert done.code == 0, done.output
        found.append(kept(f"{tmp_path.name}-{name}"))
    assert found[0] == found[1]


def test_an_exception_leaves_no_end(ran: Run) -> None:
    """A program that an exception ended may have had more to log, so its record does not end."""
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
    """Also without finish(): the client's own comes first, at the exit."""
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
    """Each has a record of its own with its own end, and says whose child it is."""
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
    # The last one finished its run: a pool may kill it afterwards.
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
    """Its parent has no LOCAL_RANK, so it is the rank itself. A helper that it starts says nothing."""
    done = ran(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)", LOCAL_RANK="0"
    )
    assert [line.kind for line in done.lines()] == ["start", "account", "end"]
    assert done.lines()[-1].count == 0  # type: ignore[union-attr]


def test_a_failure_is_told_once_and_recorded(ran: Run, kept: Callable[..., Points]) -> None:
    """What cannot be recorded reaches the tracker all the same, and the record says that it is not whole."""
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


def test_a_client_that_is_not_as_expected_runs_on(ran: Run, tmp_path: Path, recorder_folder: Path) -> None:
    """Another client of that name is left alone, and the log says that it is not recorded."""
    package = tmp_path / "other" / "pluto"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import op")
    (package / "op.py").write_text("answer = 42")
    done = ran(
        "import pluto; print(pluto.op.answer)", PYTHONPATH=f"{recorder_folder}{os.pathsep}{package.parent}"
    )
    assert (done.code, "42" in done.output) == (0, True)
    assert "does not support this version of pluto.op" in done.output


def test_an_image_s_own_sitecustomize_still_runs(ran: Run, tmp_path: Path, recorder_folder: Path) -> None:
    """And sys.path is what it would be without the recorder, so that no module of ours hides another."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "sitecustomize.py").write_text("import builtins; builtins.image = 'its own'")
    program = "import json, sys, sitecustomize; print(json.dumps([image, sitecustomize.__file__, sys.path]))"
    with_ = ran(program, PYTHONPATH=f"{recorder_folder}{os.pathsep}{tmp_path / 'image'}")
    without = ran(program, PYTHONPATH=str(tmp_path / "image"))
    assert json.loads(with_.output) == json.loads(without.output)


def test_outside_a_launch_nothing_is_prepared(ran: Run) -> None:
    done = ran("import sys; print([type(f).__module__ for f in sys.meta_path])", HARNESS_NONCE="")
    assert "_harness_recorder" not in done.output


def test_a_worker_that_records_too_has_both(ran: Run, tmp_path: Path) -> None:
    """Its own record is the first one, and the termination message holds its digest alone."""
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
