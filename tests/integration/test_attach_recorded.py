"""`harness attach` to a job that the recorder's policy recorded: the digests in its logs, and the tracker.

The ranks are real programs with the unmodified client and the recorder's folder on PYTHONPATH, as the policy
sets it. An API server on loopback serves their output as the logs of pods.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attached_jobs as jobs
import pytest
import yaml
from bundle_api import BundleApi
from mounting import lay_out
from pydantic import SecretStr
from tracker_server import KEY, Server

from harness.attach.job_lookup import Target
from harness.attach.resources import roles
from harness.attach.session import Options, attach
from harness.attach.tracker import TrackerOptions
from harness.attach.tracker_key import SecretKey
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.service_proxy import service_of
from harness.evidence import Bundle
from harness.evidence.schema.bundle import Check, Verdict
from harness.launch.mounts import recorder
from harness.report.finalize import Outcome
from harness.settings import Settings
from harness.tracker.shared.keys import project_key

SERVICE = "http://tracker.tools.svc.cluster.local:8080"
LOG = """
    import os, pathlib, time, pluto
    from _harness_recorder.ground_truth import client_state
    rank = os.environ["RANK"]
    def sent():
        folder = pathlib.Path(run._sync_manager.db_path).parent
        end = time.monotonic() + float(os.environ.get("SENT_SECONDS", "60"))
        while (unsent := client_state.read(str(folder))["unsent"]) and time.monotonic() < end:
            time.sleep(0.02)
        print(f"not sent: {unsent}; uploader {(folder / '.sync.pid').read_text()}" if unsent else "sent")
    run = pluto.init(name=f"node{rank}")
    for step in range(900, 1100):
        run.log({f"loss/{rank}": 1 / (step + 1)}, step=step)
    sent()
"""
"""Under torchrun, `run.finish()` does not wait until the client has sent its points."""
TRAIN = f"{LOG}    run.finish()\n"
LOSING = f"""{LOG}
    import signal
    os.kill(run._sync_manager._process.pid, signal.SIGKILL)
    run.log({{f"loss/{{rank}}": 7.5}}, step=1100)
    run.finish()
"""
"""The uploader is killed before the last point. The client reports no error."""
DYING = f"{LOG}    os.kill(os.getpid(), 9)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorder's folder, as the ConfigMap lays it out in a container."""
    return lay_out(recorder.MOUNTED, tmp_path_factory.mktemp("recorder"))


@dataclass
class Recorded:
    """A Job of two ranks that was recorded through the admission policy, and the verdict of `harness attach`
    on it."""

    api: BundleApi
    server: Server
    folder: Path
    home: Path
    settings: Settings
    env: dict[str, str] = field(default_factory=dict)
    """The environment variables in the specs of all pods."""
    nonce: str = "uid-train"

    @classmethod
    def of(cls, server: Server, folder: Path, api: BundleApi, home: Path) -> Recorded:
        """Return a job whose namespace has the Secret `own` with the tracker's key."""
        folders = {name: home / name for name in ("runs_dir", "state_dir", "cache_dir")}
        settings = Settings(kubeconfig=api.kubeconfig(home), pluto_api_key=KEY, **folders)
        api.secrets["own"] = {"api-key": encoded(KEY)}
        return cls(api, server, folder, home, settings)

    def __post_init__(self) -> None:
        self.run_id = f"shared-{self.home.name}"
        self.env = {
            "PLUTO_URL_API": self.server.url,
            "PLUTO_PROJECT": "e2e",
            "PLUTO_RUN_ID": self.run_id,
        }

    def train(
        self, *ranks: int, program: str = TRAIN, world: int = 2, folder: str = "home", **environment: str
    ) -> None:
        """Run the ranks one after the other, in the environment that torchrun sets. Ranks of different jobs
        need different folders, because the client leaves its points to the uploader of an earlier process in
        its folder, even if this uploader is a zombie.
        """
        for rank in ranks:
            home = self.home / f"{folder}{rank}"
            given = {
                "PYTHONPATH": str(self.folder),
                "HARNESS_NONCE": self.nonce,
                "HARNESS_RECORDER_MODE": "admitted",
                "HARNESS_LOG": str(self.log(rank)),
                "PLUTO_RUN_ID": self.run_id,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(world),
                "TORCHELASTIC_RESTART_COUNT": "0",
                **environment,
            }
            process = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(program)],
                env=self.server.pluto_environment(home, **given),
                cwd=home,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            with self.log(rank).open("a") as log:
                log.write(process.stdout + process.stderr)

    def log(self, rank: int) -> Path:
        path = self.home / f"log{rank}"
        path.touch()
        return path

    def pod(self, index: int, code: int | None = 0, recorded: bool = True, **more: Any) -> dict[str, Any]:
        values = dict(self.env)
        values |= {"HARNESS_NONCE": self.nonce, "HARNESS_RECORDER_MODE": "admitted"} if recorded else {}
        found = jobs.pod(index, code, **more)
        found["spec"]["hostname"] = socket.gethostname()
        key = {"secretKeyRef": {"name": "own", "key": "api-key"}}
        found["spec"]["containers"][0]["env"] = [
            *({"name": n, "value": v} for n, v in values.items()),
            {"name": "PLUTO_API_KEY", "valueFrom": key},
        ]
        return found

    def serve(self, *pods: dict[str, Any], job: dict[str, Any] | None = None, start: float = 1) -> None:
        """Serve the Job with its pods. Each pod's log is the output of the rank with the pod's index."""
        self.api.objects["job"] = [job or jobs.job("train", 2, jobs.condition("Complete"))]
        self.api.objects["pod"] = list(pods) or [self.pod(0), self.pod(1)]
        for pod in self.api.objects["pod"]:
            rank = int(pod["metadata"]["annotations"][jobs.INDEX])
            lines = self.log(rank).read_text().splitlines()
            self.api.logs[pod["metadata"]["name"], "main"] = jobs.stamped(*lines, start=start)

    def attach(self, word: str = "job/train", **options: Any) -> Outcome:
        """Attach with the key in the Secret `own`, unless `secret` is given. If `secret` is "", use the
        user's own key."""
        secret = SecretKey.of(options.pop("secret", "own"))
        asked = Options(tracker=TrackerOptions(secret=secret, **options))
        return attach(Target(word), asked, RunContext(settings=self.settings, progress=lambda _: None))


@pytest.fixture
def recorded(server: Server, folder: Path, api: BundleApi, tmp_path: Path) -> Recorded:
    return Recorded.of(server, folder, api, tmp_path)


@pytest.fixture(scope="module")
def trained(server: Server, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return two ranks that have logged every point to one run."""
    ranks = Recorded(BundleApi(), server, folder, tmp_path_factory.mktemp("trained"), Settings())
    ranks.train(0, 1)
    return ranks


@pytest.fixture
def logged(recorded: Recorded, trained: Recorded) -> Recorded:
    """Return a copy of the job in `trained`, which a test may change."""
    recorded.run_id, recorded.env = trained.run_id, dict(trained.env)
    for rank in (0, 1):
        recorded.log(rank).write_text(trained.log(rank).read_text())
    recorded.serve()
    return recorded


def check(verdict: Verdict, name: str) -> Check:
    return next(each for each in verdict.checks if each.name == name)


def not_passed(verdict: Verdict) -> dict[str, str]:
    return {
        each.name: f"{each.result} {each.explanation}" for each in verdict.checks if each.result != "PASS"
    }


def test_a_job_with_every_point_in_its_run_passes(logged: Recorded) -> None:
    """Contract: digests, run and key are found without options, and every check is PASS."""
    outcome = logged.attach()
    assert outcome.verdict.verdict == "PASS", not_passed(outcome.verdict)
    assert "All 400 points of the ranks are in run E2E-" in outcome.verdict.explanation
    assert all(method == "GET" for method, _ in logged.api.requests)


def test_the_number_of_ranks_is_known_from_their_recorders(logged: Recorded) -> None:
    """Contract: the number is known even if torchrun determines it on the node, as with Kubeflow's
    operator."""
    logged.env["PET_NPROC_PER_NODE"] = "auto"
    with logged.log(0).open("a") as log:
        log.write(logged.log(1).read_text())
    logged.serve(logged.pod(0), job=jobs.job("train", 1, jobs.condition("Complete")))
    outcome = logged.attach()
    assert outcome.verdict.verdict == "PASS", not_passed(outcome.verdict)
    expected = check(outcome.verdict, "expected").explanation
    assert expected == "2 ranks on 1 node, from the recorders' lines"


@pytest.mark.nightly
def test_lost_point_is_named_with_its_metric_and_block(recorded: Recorded) -> None:
    """Contract: if the uploader died before the last point and the job completed, the verdict is FAIL."""
    recorded.train(0)
    recorded.train(1, program=LOSING)
    recorded.serve()
    verdict = recorded.attach().verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.lost_points", [1])
    assert "rank 1: loss/1: 1 of 201 points, in steps 1000–1999" in verdict.explanation


@pytest.mark.nightly
def test_ranks_in_two_runs_fail_with_both_runs(recorded: Recorded) -> None:
    """Contract: Lightning-AI/pytorch-lightning#11380: each rank created its own run instead of sharing
    one."""
    recorded.train(0)
    recorded.train(1, PLUTO_RUN_ID="another")
    recorded.serve()
    verdict = recorded.attach().verdict
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.split_runs")
    # In this test, both pods have this machine's host name, so each attachment belongs to both.
    assert 1 in verdict.ranks
    assert "rank 1 logged 200 points to run E2E-" in verdict.explanation
    assert "(id another)" in verdict.explanation
    assert check(verdict, "no-lost-points").result == "UNKNOWN"


@pytest.mark.nightly
def test_dead_rank_keeps_points_until_its_last_line(recorded: Recorded) -> None:
    """Contract: wandb/wandb#6657: a killed run. The rank's exit is the cause, and its points are UNKNOWN."""
    recorded.train(0)
    recorded.train(1, program=DYING)
    failed = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    recorded.serve(recorded.pod(0), recorded.pod(1, 137), job=failed)
    verdict = recorded.attach().verdict
    assert verdict.verdict != "PASS"
    complete = check(verdict, "ground-truth-complete")
    assert complete.result == "UNKNOWN"
    assert (
        "rank 1: train-1-abcd1: it ended without a summary. Its last line is from 20" in complete.explanation
    )
    assert "what it logged afterwards is not known" in complete.explanation
    assert {check(verdict, name).result for name in ("no-lost-points", "values")} == {"UNKNOWN"}


def test_rank_that_was_not_recorded_is_unknown_with_reason(logged: Recorded) -> None:
    """Contract: the record of one of two ranks never proves that the job is correct."""
    logged.serve(logged.pod(0), logged.pod(1, recorded=False))
    verdict = logged.attach().verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "unification.not_recorded", [1])
    assert "rank 1: no recorder was injected into its container" in verdict.explanation


@pytest.mark.nightly
def test_a_log_whose_beginning_was_rotated_away_is_unknown(recorded: Recorded) -> None:
    """Contract: kubernetes/kubernetes#11046: the kubelet returns only the newest file of a rotated log."""
    recorded.train(0)
    recorded.train(1, TORCHELASTIC_RESTART_COUNT="1")
    recorded.serve(recorded.pod(0), recorded.pod(1, when=500))
    rotated = recorded.log(1).read_text().splitlines()
    recorded.api.logs["train-1-abcd1", "main"] = jobs.stamped(*rotated, start=400)
    verdict = recorded.attach().verdict
    assert verdict.verdict == "UNKNOWN"
    assert "the beginning of its log was rotated away" in check(verdict, "ground-truth-complete").explanation


def test_rotated_log_without_line_of_recorder_names_rotation(logged: Recorded) -> None:
    logged.serve(logged.pod(0), logged.pod(1, when=500))
    logged.api.logs["train-1-abcd1", "main"] = jobs.stamped("step 9999", start=400)
    verdict = logged.attach().verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert "rank 1: the beginning of its log was rotated away" in verdict.explanation


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_tracker_that_cannot_be_read_costs_only_points(logged: Recorded) -> None:
    """Contract: each reason is one sentence, the verdict is UNKNOWN, and the other evidence is kept."""
    api, settings = logged.api, logged.settings
    api.secrets["two"] = {"one": encoded("a"), "other": encoded("b")}
    api.secrets["binary"] = {"key": base64.b64encode(b"\xff\xfe").decode()}
    api.secrets["wrong"] = {"key": encoded("mlpi_wrong_key")}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"secret": "wrong", "url": logged.server.url}, "does not accept the key"),
        ({"secret": "none"}, "there is no Secret none in namespace team"),
        ({"secret": "two"}, "Secret two in namespace team has 2 keys (one, other), so it is not clear which"),
        ({"secret": "two/third"}, "has no key third. Its keys are one, other"),
        ({"secret": "binary"}, "is not an API key"),
        ({"url": SERVICE}, "the API server cannot reach the tracker at Service tracker in namespace tools"),
        ({"run": "E2E-9999"}, "the tracker has no run E2E-9999 in project e2e; the job's"),
        ({"project": "other"}, "in project other; the job's recorders report shared-"),
    ]
    for options, sentence in cases:
        outcome = logged.attach(**options)
        verdict = outcome.verdict
        shown = "\n".join(each.explanation for each in verdict.checks)
        assert sentence.lower() in shown.lower(), (options, shown)
        assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "tracker.unreachable"), options
        assert check(verdict, "completed").result == check(verdict, "rank-exit").result == "PASS"
        assert "mlpi_wrong_key" not in everything(outcome.bundle)
    api.forbidden = {"secret", "services/proxy"}
    for options, sentence in (
        ({"secret": "wrong"}, "you are not permitted to read Secret wrong in namespace team"),
        (
            {"url": SERVICE, "secret": ""},
            "you are not permitted to reach Service tracker in namespace tools through the API server",
        ),
    ):
        verdict = logged.attach(**options).verdict
        assert verdict.verdict == "UNKNOWN"
        assert sentence in check(verdict, "tracker").explanation
    logged.settings = settings.model_copy(update={"pluto_api_key": None})
    verdict = logged.attach(secret="").verdict
    assert "the tracker needs an api key, but none was found" in check(verdict, "tracker").explanation.lower()


def everything(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_key_of_secret_reads_tracker_through_api_server(logged: Recorded) -> None:
    """Contract: kubernetes/kubernetes#38775: the proxy strips Authorization; argoproj/argo-rollouts#895: the
    key in the Secret ends with a newline. The key is in no file of the bundle, and the printed Roles permit
    each request.
    """
    logged.settings = logged.settings.model_copy(update={"pluto_api_key": None})
    logged.api.services["tools/tracker:8080"] = logged.server.url
    logged.api.secrets["pluto"] = {"password": encoded("x"), "PLUTO_API_KEY": encoded(f"{KEY}\n")}
    outcome = logged.attach(url=SERVICE, secret="pluto")
    assert outcome.verdict.verdict == "PASS", not_passed(outcome.verdict)
    assert KEY not in everything(outcome.bundle)
    documents = list(yaml.safe_load_all(roles("team", False, "pluto", service_of(SERVICE, "team"))))
    proxied = {
        (each["metadata"]["namespace"], *rule["resourceNames"])
        for each in documents
        for rule in each["rules"]
        if rule["resources"] == ["services/proxy"]
    }
    assert proxied == {("tools", "tracker:8080")}
    asked = [path for _, path in logged.api.requests if "/proxy/" in path or "/secrets" in path]
    assert asked
    assert all(
        path.startswith("/api/v1/namespaces/tools/services/tracker:8080/proxy/")
        or path == "/api/v1/namespaces/team/secrets/pluto"
        for path in asked
    )


def test_key_of_project_reads_points_through_plutos_own_api(logged: Recorded) -> None:
    """Contract: a user's key has no access to the audit view, but the verdict is the same."""
    key = project_key(KEY, "e2e")
    logged.settings = logged.settings.model_copy(update={"pluto_api_key": SecretStr(key)})
    verdict = logged.attach(secret="", url=logged.server.url).verdict
    assert verdict.verdict == "PASS", not_passed(verdict)


def test_own_key_is_not_sent_to_pods_tracker(logged: Recorded) -> None:
    """Contract: somebody who controls a pod's variables or log does not receive the key of the user who
    attaches."""
    verdict = logged.attach(secret="").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "tracker.unreachable")
    assert "PLUTO_API_KEY is not sent to the tracker" in check(verdict, "tracker").explanation
    assert logged.attach(secret="", url=logged.server.url).verdict.verdict == "PASS"


def test_unused_secret_is_not_sent_to_pods_tracker(
    logged: Recorded,
) -> None:
    """Contract: somebody who controls a job's variables or log, such as the author of a TorchrunJob, does not
    receive the key in a Secret that the job does not use.
    """
    logged.api.secrets["team"] = {"api-key": encoded(KEY)}
    verdict = logged.attach(secret="team").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "tracker.unreachable")
    assert "key in Secret team is not sent to the tracker" in check(verdict, "tracker").explanation
    assert logged.attach(secret="team", url=logged.server.url).verdict.verdict == "PASS"


def test_run_is_found_in_what_recorder_and_client_wrote(logged: Recorded) -> None:
    """Contract: without options and variables, the tracker, the project and the run are found in the logs."""
    logged.env = {"PLUTO_PROJECT": "overridden in the program"}
    logged.serve()
    outcome = logged.attach()
    assert outcome.verdict.verdict == "PASS", not_passed(outcome.verdict)
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.expected is not None
    assert (manifest.expected.run_id, manifest.expected.project) == (logged.run_id, "e2e")


def test_job_with_unknown_tracker_is_unknown_with_options(logged: Recorded) -> None:
    """Contract: the verdict names the missing information and the options that provide it."""
    logged.env = {}
    for rank in (0, 1):
        lines = [line for line in logged.log(rank).read_text().splitlines() if "View run" not in line]
        logged.log(rank).write_text("\n".join(lines) + "\n")
    logged.serve()
    verdict = logged.attach().verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert "which tracker the ranks log to (PLUTO_URL_API" in verdict.explanation
    assert any("--tracker-url URL" in line for line in verdict.next)


@pytest.mark.nightly
def test_an_older_run_is_not_an_accusation(recorded: Recorded) -> None:
    """Contract: wandb/wandb#1040: a resumed run. Points of an earlier job make the verdict UNKNOWN, and do
    not count as foreign."""
    recorded.train(0, program=TRAIN.replace("loss", "before"), folder="earlier")
    recorded.log(0).write_text("")
    recorded.train(0, 1)
    late = jobs.job("train", 2, jobs.condition("Complete"))
    late["metadata"]["creationTimestamp"] = "2999-01-01T00:00:00Z"
    recorded.serve(job=late)
    verdict = recorded.attach().verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.stale_run")
    assert check(verdict, "no-unexpected-points").result == "UNKNOWN"
    assert check(verdict, "no-lost-points").result == "PASS"


@pytest.mark.nightly
def test_client_leaves_points_to_earlier_uploader(recorded: Recorded) -> None:
    """Contract: FAIL with every point that was not sent. The client mistakes any process with the pid in its
    file `.sync.pid` for its uploader, even a zombie or an unrelated process that reuses the pid.
    """
    queue = recorded.home / "home1" / "pluto" / ".pluto" / "e2e" / recorded.run_id
    queue.mkdir(parents=True)
    (queue / ".sync.pid").write_text(str(os.getpid()))
    recorded.train(0)
    recorded.train(1, SENT_SECONDS="3")
    assert "not sent: {'loss/1'" in recorded.log(1).read_text()
    recorded.serve()
    verdict = recorded.attach().verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.lost_points", [1])
    assert "rank 1: loss/1: 200 of 200 points" in verdict.explanation
    assert f"The client of rank 1 handed its points to process {os.getpid()}" in verdict.explanation


@pytest.mark.parametrize("url", ["tracker:8080", "ftp://x", "http://", "http://x:port"])
def test_a_tracker_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--tracker-url"):
        TrackerOptions(url=url).check()


@pytest.mark.parametrize("word", ["A", "a/b/c", "a/", "-a", "a b"])
def test_a_secret_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--secret"):
        SecretKey.of(word)
