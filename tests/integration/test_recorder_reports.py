"""The reports of an admitted recorder to a tracker on loopback, around the unmodified client.

The summaries merge blocks, like those of a long training, because the limits for points and for digests per
metric are small. Each block of 1,000 steps has 10 points.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from mounting import lay_out
from test_recorder_admitted import UID, Job, text, words
from tracker_server import KEY, Server

from harness.evidence.schema.columns import Part
from harness.evidence.schema.tracker import DigestReport
from harness.judge.finding import Finding
from harness.judge.points import digest_check, digest_records
from harness.judge.points import digest_reports as judged_reports
from harness.launch.mounts import recorder
from harness.tracker.client.audit import EmbeddedAudit
from harness.tracker.shared.keys import launch_key
from harness.workers.recorder import digest_lines, digest_reports

BEGIN = """
    import functools, os, pathlib, signal, sys, time, pluto
    from _harness_recorder.ground_truth import client_state
    from _harness_recorder.recorder import digest_recording, client_calls, digest_reports, point_digests
    digest_recording.LINE_SECONDS, digest_reports.END_SECONDS = 0.0, 60.0  # On a busy machine, too.
    digest_recording.Digests = functools.partial(point_digests.Digests, 30)
    point_digests.MAX_NODES = 4
    run = pluto.init(name="node0")
    def log(steps):
        for step in steps:
            run.log({"loss": step / 7, "lr": 1 / (step + 1)}, step=step)
    def reports():
        return client_calls._recording.lines.reports
    def until(condition):
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        assert condition()
"""
TRAIN = f"""{BEGIN}
    log(range(0, 10_000, 100))
    run.finish()
"""
KILLED = f"""{BEGIN}
    log(range(0, 10_000, 100))
    until(lambda: reports().acknowledged[0] and not reports().state(0)["unsent"])
    log([10_000])                              # The line of this point commits to all reports.
    queue = str(pathlib.Path(run._sync_manager.db_path).parent)
    until(lambda: not client_state.read(queue)["unsent"])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recorder's folder, with the same files as the ConfigMap in a container."""
    return lay_out(recorder.MOUNTED, tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def job(server: Server, folder: Path, tmp_path: Path) -> Job:
    return Job(server, folder, tmp_path)


@pytest.fixture(scope="module")
def trained(server: Server, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return a job whose only rank has logged 10 blocks of 2 metrics."""
    job = Job(server, folder, tmp_path_factory.mktemp("trained"))
    job.run(TRAIN)
    return job


def reports_of(job: Job) -> list[DigestReport]:
    with job.server.client() as client:
        audit = EmbeddedAudit(client)
        (run,) = audit.runs(external_id=f"run-{job.home.name}", project="e2e", job_name=None)
        return audit.digests([run.run_id]) or []


def judge(
    job: Job,
    parts: Callable[[list[Part]], list[Part]] = list,
    reports: Callable[[list[DigestReport]], list[DigestReport]] = list,
    lines: Callable[[list[str]], list[str]] = list,
) -> dict[str, Finding]:
    run, rows = job.rows()
    pods = [digest_records.read(lines(job.log(0)), UID, pod="pod-0")]
    judged_reports.verify(pods, reports(reports_of(job)), [int(run)])
    return {one.name: one for one in digest_check.judge(pods, ranks=[0], parts=parts(rows), run=run)}


def without(metric: str, step: int) -> Callable[[list[Part]], list[Part]]:
    """Return a function that removes a point from the rows of a run."""

    def removed(parts: list[Part]) -> list[Part]:
        for name, *columns in parts:
            if name == metric and step in columns[0]:
                at = columns[0].index(step)
                for column in columns:
                    del column[at]
        return parts

    return removed


def sent(job: Job) -> dict[str, object]:
    summary = digest_records.read(job.log(0), UID).records[0].summary
    assert summary is not None
    assert summary.sent is not None
    return {name: getattr(summary.sent, name) for name in summary.sent.__struct_fields__}


def test_lost_point_of_long_run_names_its_block(trained: Job) -> None:
    assert words(judge(trained)) == {}
    findings = judge(trained, without("lr", 6300))
    assert words(findings) == {"no-lost-points": "FAIL"}
    assert "rank 0: lr: 1 of 100 points, in steps 6000–6999" in text(findings["no-lost-points"])
    # The summary alone names four blocks.
    old = trained.judge(0, parts=without("lr", 6300))
    assert "rank 0: lr: 1 of 100 points, in steps 4000–7999" in text(old["no-lost-points"])


def test_every_block_is_reported_and_the_lines_stay_short(trained: Job) -> None:
    entries = {}
    for line in trained.log(0):
        assert not line.startswith(("@rec1", "@rec2")) or len(line) < digest_lines.MAX_LINE
        assert KEY not in line
    pods = [digest_records.read(trained.log(0), UID)]
    run, _ = trained.rows()
    judged_reports.verify(pods, reports_of(trained), [int(run)])
    blocks = pods[0].records[0].blocks
    assert blocks is not None
    entries = {
        (metric, block): leaf.points for metric, of in blocks.leaves.items() for block, leaf in of.items()
    }
    assert entries == {(metric, block): 10 for metric in ("loss", "lr") for block in range(10)}
    assert sent(trained) | {"reports": 0, "head": "", "run": ""} == {
        "run": "", "reports": 0, "head": "", "unsent": 0, "dropped": 0, "failures": 0, "why": "",
    }  # fmt: skip


def test_a_changed_or_deleted_report_contradicts_the_log(trained: Job) -> None:
    def swapped(reports: list[DigestReport]) -> list[DigestReport]:
        first, second, *rest = reports
        packed = {"packed": second.packed}
        return [first.model_copy(update=packed), second, *rest]

    changes: list[tuple[Callable[[list[DigestReport]], list[DigestReport]], str]] = [
        (lambda reports: reports[:-1], "they were lost or deleted, or its log is forged"),
        (lambda _: [], "they were lost or deleted, or its log is forged"),
        (swapped, "one of them was changed"),
    ]
    for change, words_ in changes:
        findings = judge(trained, reports=change)
        complete = findings["ground-truth-complete"]
        assert (complete.result, complete.cause) == ("UNKNOWN", "unification.digests_contradict")
        assert words_ in text(complete)
        assert findings["no-lost-points"].result == findings["values"].result == "UNKNOWN"


def test_a_forged_log_contradicts_the_reports(trained: Job) -> None:
    """The forger knows the nonce, and rewrites one line and the hash chain of all lines after it."""

    def forged(log: list[str]) -> list[str]:
        written, chain = [], ""
        for item, line in zip(digest_lines.decode(UID, log), log, strict=True):
            if isinstance(item, digest_lines.Line):
                points = item.points - (item.number > 5)
                item = item._replace(points=points)  # noqa: PLW2901
                chain = digest_lines.chained(chain, item)
                written.append(digest_lines.encode_line(UID, item._replace(chain=chain)))
            else:
                written.append(line)
        return written

    complete = judge(trained, lines=forged)["ground-truth-complete"]
    assert (complete.result, complete.cause) == ("UNKNOWN", "unification.digests_contradict")
    assert "does not match line" in text(complete)


def test_the_blocks_of_a_killed_rank_are_judged(job: Job) -> None:
    job.run(KILLED, code=-9)
    findings = judge(job)
    assert set(words(findings).values()) == {"UNKNOWN"}
    complete = text(findings["ground-truth-complete"])
    assert "what it logged afterwards is not known" in complete
    assert "of its points up to its recorder's last line are in the run" in complete
    findings = judge(job, without("loss", 3300))
    assert findings["no-lost-points"].result == "FAIL"
    assert ", in steps 3000–3999" in text(findings["no-lost-points"])
    assert "loss: 1 of " in text(findings["no-lost-points"])


def test_a_launchs_key_reports_too(job: Job) -> None:
    """Contract: a key that may write points may also send their digests."""
    key = launch_key(KEY, "n1", project="e2e", run=f"run-{job.home.name}")
    job.run(TRAIN, PLUTO_API_KEY=key)
    assert words(judge(job)) == {}
    assert {one.launch for one in reports_of(job)} == {"n1"}
    assert key not in "\n".join(job.log(0))


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def tracker_that(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve the route for reports with `answer`. Yield the URL, and the list of request bodies."""
    bodies: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)).decode())
            answer(self)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()


def responds(status: int, body: bytes = b"{}", **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


TO_REPORTS = (
    BEGIN
    + """
    reported = digest_reports.Reports.__init__
    def init(self, nonce, rank, attempt, op):
        reported(self, nonce, rank, attempt, op)
        self._url = os.environ["REPORTS"]
    digest_reports.Reports.__init__ = init
    digest_reports.SECONDS = float(os.environ.get("REPORT_SECONDS", "0.5"))
"""
)
"""The beginning of a program whose reports go to $REPORTS instead of the tracker."""
ELSEWHERE = f"""{TO_REPORTS}
    longest = 0.0
    for step in range(0, 10_000, 100):
        begun = time.monotonic()
        log([step])
        longest = max(longest, time.monotonic() - begun)
    begun = time.monotonic()
    client_calls._recording.finished()
    ended = time.monotonic() - begun
    def stopped():
        log([9900])
        return reports().stopped
    until(stopped)
    print(f"seconds {{longest}} {{ended}}")
    run.finish()
"""
"""A program whose reports go to $REPORTS instead of the tracker."""


def hangs(_: BaseHTTPRequestHandler) -> None:
    time.sleep(20)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(responds(404), "HTTP 404", id="absent"),
        *(
            pytest.param(answer, why, marks=pytest.mark.nightly, id=why)
            for answer, why in (
                (hangs, "timed out"),
                (responds(401), "HTTP 401"),
                (responds(302, Location="http://127.0.0.1:1/"), "HTTP 302"),
                (responds(503), "HTTP 503"),
                (responds(507), "HTTP 507"),
                (responds(200, b"<html>"), "JSONDecodeError"),
                (responds(200, b'{"reports": true}'), "the response is not from the tracker"),
                (responds(200, b'{"reports": 7}'), "7 reports of this process instead of 0"),
            )
        ),
    ],
)
def test_a_tracker_without_the_route_changes_nothing(job: Job, answer: Answer, why: str) -> None:
    """Contract: the training is not delayed, the verdict is based on the summary, and the summary contains
    the reason."""
    with tracker_that(answer) as (url, bodies):
        output = job.run(ELSEWHERE, REPORTS=url)
    assert max(map(float, output.split("seconds ")[1].split()[:2])) < 5
    assert json.loads(bodies[0])["entries"] == []
    state = sent(job)
    assert (state["reports"], state["head"], state["unsent"]) == (0, "", 0)
    assert why in str(state["why"])
    assert int(str(state["failures"])) >= 1
    assert int(str(state["dropped"])) >= 20
    findings = judge(job, without("lr", 6300))
    assert "rank 0: lr: 1 of 100 points, in steps 4000–7999" in text(findings["no-lost-points"])
    assert {line.partition(" ")[0] for line in job.log(0)} == {"@rec1", "@sum1"}


@pytest.mark.nightly
def test_report_resent_after_lost_response_is_stored_once(job: Job) -> None:
    """Contract: anthropics/anthropic-sdk-java#370: a request that timed out may have been accepted."""
    lost = 0

    def forwards(request: BaseHTTPRequestHandler) -> None:
        nonlocal lost
        body = bodies[-1]
        with httpx.Client(trust_env=False) as client:
            names = ("Authorization", "X-Run-Id", "X-Project-Name", "X-Run-Name")
            headers = {name: request.headers[name] for name in names}
            path = f"{job.server.url}{digest_reports.ROUTE}"
            response = client.post(path, content=body.encode(), headers=headers)
        if json.loads(body)["entries"] and lost < 2:
            lost += 1
            request.close_connection = True  # The tracker has stored the report.
        else:
            responds(response.status_code, response.content)(request)

    with tracker_that(forwards) as (url, bodies):
        job.run(TO_REPORTS + TRAIN.removeprefix(BEGIN), REPORTS=url, REPORT_SECONDS="60")
    assert lost == 2
    state = sent(job)
    assert (state["failures"], state["unsent"], state["dropped"], state["why"]) == (2, 0, 0, "")
    reports = reports_of(job)
    assert [one.number for one in reports] == [*range(int(str(state["reports"])))]
    assert words(judge(job)) == {}
    assert "in steps 6000–6999" in text(judge(job, without("lr", 6300))["no-lost-points"])


@pytest.mark.nightly
def test_a_redirect_gets_no_key(job: Job) -> None:
    """Contract: python/cpython#77842: urllib sends a request's headers to the redirect's target host."""
    with (
        tracker_that(responds(200)) as (other, others),
        tracker_that(responds(307, Location=other)) as (url, bodies),
    ):
        job.run(ELSEWHERE, REPORTS=url)
    assert bodies
    assert not others


@pytest.mark.nightly
def test_reports_to_an_unreachable_tracker_are_counted(job: Job) -> None:
    job.run(ELSEWHERE, REPORTS="http://127.0.0.1:1/")
    state = sent(job)
    assert "refused" in str(state["why"])
    assert state["failures"] == 5
