"""The check `exits`: two sources must confirm each rank's exit code, and a script that hides an exit code is
named."""

import bundles
import pytest
from process_events import PodEvents, recorded, together
from script_events import failing, plain, ran, with_script

from harness.evidence.schema.ground_truth import TruthStart
from harness.judge.ranks import exit_masking


def check(verdict, name="exits"):
    return next(one for one in verdict.checks if one.name == name)


def test_each_exit_code_is_known_from_two_sources(judged):
    verdict = judged(together(bundles.healthy()))
    assert check(verdict).result == "PASS"
    assert check(verdict).explanation == "2 exit codes, each from two sources"


@pytest.mark.parametrize(
    ("code", "how", "error", "failure"),
    [
        (1, "exception", "RuntimeError: boom", "ended with exit code 1 after step 5: RuntimeError: boom"),
        (3, "exit", "", "ended with exit code 3 after step 5"),
        (4, "os._exit", "", "ended with exit code 4 after step 5"),
        (-9, "", "", "was ended by signal 9 after step 5"),
    ],
)
def test_exit_code_0_masks_a_failed_rank(judged, code, how, error, failure):
    verdict = judged(failing(bundles.healthy(), code, how, error))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.exit_code_masked", [1])
    assert f"exited with code 0 even though rank 1 {failure}" in verdict.explanation
    assert check(verdict).result == "UNKNOWN"


def test_a_rank_that_failed_without_torchrun_was_masked(judged):
    job = recorded(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.start(9, "python", RANK=index, WORLD_SIZE=2)
        pod.add("group", 9, rank=index, world=2)
        pod.end(9, 5 * index)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.exit_code_masked", [1])


def test_a_rank_without_an_end_left_early(judged):
    """The rank's end was not recorded, because its torchrun was killed with it."""
    verdict = judged(failing(bundles.healthy(), how="", result=""))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.exited_early", [1])
    assert "after step 5" in verdict.explanation


def test_a_log_with_a_gap_proves_no_missing_end(judged):
    job = failing(bundles.healthy(), how="", result="")
    job.manifest = job.manifest.model_copy(update={"log_gaps": [f"{job.pod_name(1)}-x: cut"]})
    assert judged(job).verdict == "UNKNOWN"


def test_os_exit_before_the_client_finished_is_early(judged):
    job = recorded(bundles.healthy())
    for index in range(2):
        PodEvents(job, index).torchrun(index, how="os._exit", open_=index)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.exited_early", [1])


def test_only_the_last_life_of_a_restarted_rank_counts(judged):
    job = recorded(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2", "--max-restarts=1")
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2)
        pod.end(20, 1, "exception", "RuntimeError: first")
        pod.add("failed", 7, failures=[(20, 0, index, 1, "")])
        pod.workers(7, [(30, 0, index, 2)], restart=1)
        pod.rank(30, index, 2)
        pod.end(30)
        pod.result(7)
    verdict = judged(job)
    assert check(verdict, "rank-exit").result == "PASS"
    assert check(verdict, "world").result == "PASS"


def two_torchruns(job, second):
    recorded(job)
    for index in range(2):
        pod = PodEvents(job, index)
        for pid, script, state in ((7, "a.py", "FAILED"), (8, second, "SUCCEEDED")):
            pod.agent(pid, "--nnodes=2", script=script)
            pod.workers(pid, [(pid * 10, 0, index, 2)])
            pod.rank(pid * 10, index, 2, ppid=pid)
            pod.end(pid * 10, int(state == "FAILED"))
            pod.result(pid, state)
    return job


def test_command_that_was_run_again_and_succeeded_hides_nothing(judged):
    assert check(judged(two_torchruns(bundles.healthy(), "a.py")), "rank-exit").result == "PASS"


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("exec sh /workspace/train.sh --nproc-per-node=1 -m a.py", "PASS"),
        ("for seed in 1 2; do torchrun --nproc-per-node=1 a.py; done", "FAIL"),
        ("until torchrun \\\n  --nproc-per-node=1 a.py; do sleep 1; done", "PASS"),
    ],
)
def test_a_nested_script_may_run_torchrun_again(judged, script, result):
    job = with_script(two_torchruns(bundles.healthy(), "a.py"), script)
    assert check(judged(job), "rank-exit").result == result


def test_another_command_after_one_that_failed_hides_it(judged):
    verdict = judged(two_torchruns(bundles.healthy(), "b.py"))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.exit_code_masked")


def test_a_rank_exit_known_only_to_kubernetes_is_unknown(judged):
    job = together(bundles.healthy())
    job.processes = [
        e for e in job.processes if e.kind not in {"end", "result"} or not e.id.startswith("pod-uid-1")
    ]
    job.manifest = job.manifest.model_copy(update={"log_gaps": [f"{job.pod_name(1)}-x: cut"]})
    assert check(judged(job)).result == "UNKNOWN"


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("set -e\nexport A=1\npython3 a.py", "PASS"),
        ("exec python3 a.py --out=$OUT", "PASS"),
        ("python3 a.py\necho done", "UNKNOWN"),
        ("python3 a.py | tee log", "UNKNOWN"),
        ("! python3 a.py", "UNKNOWN"),
        ("trap 'exit 0' EXIT\npython3 a.py", "UNKNOWN"),
        ("if python3 a.py\nthen\n  date\nfi", "UNKNOWN"),
        ("for fold in 1 2\ndo\n  python3 a.py\ndone", "UNKNOWN"),
    ],
)
def test_the_script_decides_an_unrecorded_python_exit_code(judged, script, result):
    job = recorded(bundles.healthy())
    for kind, state in job.objects:
        if kind == "pod":
            command = ["bash", "-c", script]
            state.object["spec"]["containers"] = [{"name": bundles.CONTAINER, "command": command}]
    for index in range(2):
        pod = PodEvents(job, index)
        pod.start(9, "python", RANK=index, WORLD_SIZE=2)
        pod.add("group", 9, rank=index, world=2)
        pod.end(9, None)
    verdict = judged(job)
    assert check(verdict).result == result
    assert verdict.verdict == result
    if result == "UNKNOWN":
        assert "SystemExit" in check(verdict).explanation


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("torchrun a.py || true", "|| true"),
        ("torchrun a.py || echo failed", "|| echo"),
        ("set -e\ntorchrun \\\n  --nnodes=2 \\\n  a.py 2>&1 | tee log", "pipefail"),
        ("set -eo pipefail\ntorchrun a.py 2>&1 | tee log", ""),
        ("torchrun a.py\necho done", "set -e"),
        ("set -e\ntorchrun a.py", ""),
        ("torchrun a.py > log 2>&1\nexit 0", "exit 0"),
        ("nohup torchrun a.py > log 2>&1 &\nwait\necho done", "wait $!"),
        ("torchrun a.py; date", "set -e"),
        ("torchrun a.py # || true", ""),
        ("set -euo pipefail\ntrap 'sync; exit 0' EXIT\ntorchrun a.py", "trap"),
        ("set -e\ncleanup() {\n  rm -f /tmp/x\n  exit 0\n}\ntrap cleanup EXIT\ntorchrun a.py", "trap"),
        ("set -e\ntrap 'rm -f /tmp/x' EXIT\ntorchrun a.py", ""),
        ("torchrun a.py || { echo failed; }", "`exit 1`"),
        ("torchrun a.py || { echo failed; exit 3; }", ""),
        ("cd /app; torchrun a.py || printf x", "`exit 1`"),
        ("cd /app; torchrun a.py", ""),
        ("cd /app; torchrun a.py; date", "(`date`)"),
        ("if torchrun a.py; then echo fine; else echo failed; fi", "a condition hides the exit code"),
        ('if [ -n "$X" ]; then torchrun a.py; fi', ""),
        ("if [ -d x ]; then torchrun a.py; else echo none; fi", ""),
        ("if [ -d x ]; then torchrun a.py; fi; date", "(`date`)"),
        ("while ! torchrun a.py; do sleep 5; done", "a condition hides the exit code"),
        ("{ torchrun a.py; }", ""),
        ("! torchrun a.py", "a condition hides the exit code"),
        ("for n in 1 2 3; do torchrun a.py && break; done", "a loop hides the exit code"),
        ("set -e\nfor n in 1 2 3; do torchrun a.py && break; done", "a loop hides the exit code"),
        ("set -o errexit\ntorchrun a.py\necho done", ""),
        ("set -euo pipefail\ntorchrun a.py || sleep 5", "`exit 1`"),
        ("echo nothing", ""),
        ("python3 a.py & python3 b.py & wait", "wait $!"),
        ("find . -name a.py -exec python3 {} \\;", "find -exec"),
        ("script -qc 'python3 a.py' /tmp/typescript", "script -e"),
        ("script -qec 'python3 a.py' /tmp/typescript", ""),
    ],
)
def test_way_in_which_script_hides_exit_code(script, expected):
    description = exit_masking.way(script)
    assert (expected in description) if expected else not description


def test_a_second_torchrun_is_not_a_torchrun_restart(judged):
    job = two_torchruns(bundles.healthy(), "a.py")
    for rank in range(2):
        first, second = (
            TruthStart(
                attempt=str(pid), time_ms=ms, pod=job.pod_name(rank), pid=pid, restart=0, max_restarts=3
            )
            for pid, ms in ((70, 1_795_237_100_000), (80, 1_795_237_200_000))
        )
        job.truth[rank] = [first, *job.rows(rank), second, *job.truth[rank]]
    finding = check(judged(job), "restarts")
    assert "the run script started torchrun with rank 0 again" in finding.explanation
    assert "as the job allows" not in finding.explanation


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("torchrun a.py &\nsleep 1", "rank.exited_early"),
        ("nohup python3 a.py >log 2>&1 &", "rank.exited_early"),
        ("torchrun a.py &\nwait", "unification.no_run"),
        ("torchrun a.py &\nwhile kill -0 $!; do sleep 1; done", "unification.no_run"),
        ("torchrun a.py", "unification.no_run"),
    ],
)
def test_a_script_that_leaves_its_program_behind_ended_early(judged, script, cause):
    job = recorded(bundles.healthy())
    for kind, state in job.objects:
        if kind == "pod":
            command = ["bash", "-c", script]
            state.object["spec"]["containers"] = [{"name": bundles.CONTAINER, "command": command}]
    job.truth, job.runs, job.points, job.attachments = {}, [], [], []
    verdict = judged(job)
    assert verdict.cause == cause
    if cause == "rank.exited_early":
        assert verdict.ranks == [0]
        assert "he script ended before a process of rank 0 was recorded" in verdict.explanation
        assert "wait $!" in verdict.explanation


def test_the_workload_script_is_distinguished_from_the_init(judged):
    job = failing(bundles.healthy())
    init = "export KONDUKTOR_OUTPUT_DIR=/tmp/x\n[ -d /opt/harness/recorder ] && : python3\n" + "#\n" * 99
    for kind, state in job.objects:
        if kind == "pod":
            command = ["sh", "-c", init, "sh", "bash", "-c", "torchrun a.py || true"]
            state.object["spec"]["containers"] = [{"name": bundles.CONTAINER, "command": command}]
    assert "`|| true` after the command hides the exit code" in judged(job).explanation


UNTIL = "until python3 train.py; do sleep 1; done"
LOOP = "for seed in 1 2 3; do SEED=$seed python3 train.py; done"


@pytest.mark.parametrize(
    ("script", "runs", "result"),
    [
        (UNTIL, [1, 0], "PASS"),
        ("for i in 1 2 3; do\n  python3 train.py && break\ndone", [1, 1, 0], "PASS"),
        ("python3 supervise.py", [1, 0], "PASS"),
        (LOOP, [1, 0], "FAIL"),
        ("python3 supervise.py", [1, 0, 0], "FAIL"),
        (UNTIL, [1, 1], "FAIL"),
    ],
)
def test_rank_without_torchrun_that_is_tried_again_hides_nothing(judged, script, runs, result):
    job = with_script(bundles.healthy(), script)
    pod = plain(job)
    for number, code in enumerate(runs):
        ran(pod, 20 + number, code)
    found = check(judged(job), "rank-exit")
    assert found.result == result
    assert found.cause == (None if result == "PASS" else "rank.exit_code_masked")


@pytest.mark.parametrize(
    ("again", "result"),
    [
        (["train.py", "--resume"], "PASS"),
        (["train.py", "--resume-from", "/ckpt"], "PASS"),
        (["train.py", "--stage", "2"], "FAIL"),
        (["eval.py"], "FAIL"),
    ],
)
def test_a_second_try_may_go_on_from_a_checkpoint(judged, again, result):
    job = with_script(bundles.healthy(), f"python3 train.py || python3 {' '.join(again)}")
    pod = plain(job)
    ran(pod, 20, 1)
    ran(pod, 21, 0, *again)
    assert check(judged(job), "rank-exit").result == result


def test_the_last_shell_command_is_no_parent_process(judged):
    """The shell replaces itself with its last command, so a failed program looks like a child of this
    command."""
    job = recorded(bundles.healthy(nodes=1))
    pod = PodEvents(job, 0)
    for pid, ppid, code in ((20, 7, 4), (7, 1, 0)):
        pod.start(pid, "python", ppid=ppid, argv=["python3", f"{pid}.py"])
        pod.end(pid, code)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.exit_code_masked")


@pytest.mark.parametrize(("code", "result"), [(3, "FAIL"), (0, "PASS")])
def test_an_evaluation_behind_torchrun_that_failed_is_named(judged, code, result):
    job = together(bundles.healthy())
    pod = PodEvents(job, 1)
    pod.start(50, "python", argv=["python3", "evaluate.py"])
    pod.end(50, code)
    found = check(judged(job), "rank-exit")
    assert found.result == result
    if code:
        assert "process 50 (`python3 evaluate.py`) ended with exit code 3" in found.explanation


def limited(job, limit="timeout 25", after=30):
    """Record that the script ran torchrun under `limit`, and that torchrun received SIGTERM after `after`
    seconds."""
    recorded(job)
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        start = job.processes[-1]
        since = start.time_ms - 1000 * after
        job.processes[-1] = start.model_copy(update={"limit": limit, "limit_since_ms": since})
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2)
        pod.result(7, "raised", "SignalException: Process 7 got signal: 15")
    return job


@pytest.mark.parametrize(
    ("limit", "after", "match"),
    [
        ("timeout 25", 30, True),
        ("timeout -k 5 0.5m", 31, True),
        ("timeout 25", 10, False),
        ("timeout 1h", 30, False),
    ],
)
def test_timeout_of_script_that_ended_torchrun_is_told(judged, limit, after, match):
    job = with_script(limited(bundles.healthy(), limit, after), f"{limit} torchrun a.py\nexit 0")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.exit_code_masked")
    assert (f"`{limit}` in its script ended torchrun of rank 0 after step 5" in verdict.explanation) is match


def without_ranks(job: bundles.Job, *, trains: bool, seen: str = "", limit: str = "") -> bundles.Job:
    """Record that each pod's torchrun ended before it started a rank. If `trains` is true, another torchrun
    then trained."""
    if trains:
        together(job)
    else:
        recorded(job)
    for index in range(job.nodes):
        pod = PodEvents(job, index)
        pod.agent(5, "--nnodes=2", script="prepare.py")
        if limit:
            start = job.processes[-1]
            ended = int(bundles.START.timestamp() * 1000) - 1000
            job.processes[-1] = start.model_copy(update={"limit": limit, "limit_since_ms": ended})
        if "result" in seen:
            pod.result(5, "raised", "RendezvousTimeoutError: \nTraceback")
        if "end" in seen:
            pod.end(5, 2, "exit")
    return job


@pytest.mark.parametrize(
    ("seen", "limit", "cause", "message"),
    [
        ("", "", "rank.exited_early", "torchrun left before it started a rank: its record has no end"),
        (
            "",
            "timeout 8",
            "rank.exit_code_masked",
            "`timeout 8` in its script ended torchrun before it started a rank",
        ),
        ("end", "", "rank.exit_code_masked", "torchrun ended with exit code 2 before it started a rank"),
        ("result", "", "rank.exit_code_masked", "before it started a rank: RendezvousTimeoutError"),
    ],
    ids=["killed", "by a timeout", "by its options", "alone in the rendezvous"],
)
@pytest.mark.parametrize("trains", [True, False], ids=["and the next one trained", "and nothing trained"])
def test_a_torchrun_that_starts_no_rank_is_no_pass(judged, trains, seen, limit, cause, message):
    """Contract: the exit code of such a torchrun counts like that of a torchrun that started its ranks."""
    job = without_ranks(bundles.healthy(), trains=trains, seen=seen, limit=limit)
    verdict = judged(with_script(job, "torchrun prepare.py || true\ntorchrun train.py"))
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause), verdict.explanation
    assert message in verdict.explanation


def test_another_launcher_that_starts_no_rank_is_named(judged):
    """Contract: the exit codes of accelerate and deepspeed count like that of torchrun."""
    job = together(bundles.healthy())
    pod = PodEvents(job, 0)
    pod.start(
        5, "agent", argv=["python3", "/usr/bin/accelerate", "launch", "--num_machines", "2", "train.py"]
    )
    pod.end(5, 1)
    verdict = judged(with_script(job, "accelerate launch train.py || torchrun train.py"))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.exit_code_masked"), verdict.explanation
    assert "accelerate launch ended with exit code 1 before it started a rank" in verdict.explanation


def test_a_torchrun_that_prints_its_help_fails_nothing(judged):
    job = together(bundles.healthy())
    pod = PodEvents(job, 0)
    pod.agent(5, "--help")
    pod.end(5, 0)
    assert judged(with_script(job, "torchrun --help\ntorchrun train.py")).verdict == "PASS"


def test_a_rendezvous_retry_before_any_rank_still_passes(judged):
    job = recorded(bundles.healthy())
    for index in range(job.nodes):
        pod = PodEvents(job, index)
        pod.agent(5, "--nnodes=2")
        pod.result(5, "raised", "RendezvousTimeoutError")
        pod.end(5, 1, "exception")
        pod.torchrun(index)
    assert judged(with_script(job, "until torchrun train.py; do sleep 1; done")).verdict == "PASS"


@pytest.mark.parametrize(
    ("options", "again", "cause"),
    [
        (["--rdzv-id=a-0"], ["--rdzv-id=a-1"], None),
        (["--rdzv_id", "a", "--master_port", "1"], ["--rdzv_id", "b", "--master_port", "2"], None),
        (["--rdzv-id=a"], ["--rdzv-id=a", "--tee=3"], "rank.exit_code_masked"),
    ],
)
def test_a_retry_may_meet_elsewhere(judged, options, again, cause):
    """Contract: after a closed rendezvous, torchrun needs a new id. A retry with another id still counts as
    the same command."""
    job = recorded(bundles.healthy())
    for index in range(job.nodes):
        pod = PodEvents(job, index)
        pod.agent(5, "--nnodes=2", *options)
        pod.result(5, "raised", "RendezvousClosedError")
        pod.end(5, 1, "exception")
        pod.torchrun(index, options=("--nnodes=2", *again))
    script = with_script(job, "while :; do torchrun train.py && break; done")
    assert judged(script).cause == cause
