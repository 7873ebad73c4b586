"""The check `world`: if the ranks did not form one world, the verdict names the pods that trained alone and
the reason."""

import bundles
import pytest
from process_events import TORCHRUN, PodEvents, recorded, together

from harness.evidence.schema.bundle import Process, RendezvousSnapshot, Verdict
from harness.evidence.schema.ground_truth import TruthStart


def check(verdict: Verdict, name: str = "world"):
    return next(one for one in verdict.checks if one.name == name)


def alone(job, *options, world=1, **env):
    """Record that each pod's torchrun had these options and started a world of its own."""
    recorded(job)
    for index in range(job.nodes):
        pod = PodEvents(job, index)
        pod.agent(7, *options)
        pod.workers(7, [(20 + n, n, n, world) for n in range(world)], nodes=1)
        for n in range(world):
            pod.rank(20 + n, n, world, local=n)
            pod.end(20 + n)
        pod.result(7)
    return job


def test_ranks_of_one_world_have_met(judged):
    verdict = judged(together(bundles.healthy()))
    assert verdict.verdict == "PASS", verdict.explanation
    assert check(verdict).explanation == "All ranks met: 2 ranks in one world, in 2 pods"
    assert check(verdict, "rendezvous").explanation == check(verdict).explanation


def test_a_launch_without_recorded_processes_has_no_such_check(judged):
    verdict = judged(bundles.healthy())
    assert verdict.verdict == "PASS"
    assert "world" not in {one.name for one in verdict.checks}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--nnodes=1"], "--nnodes=1"),
        (["--nnodes", "1:1"], "--nnodes=1:1"),
        (["--standalone"], "--standalone"),
        ([], "no --nnodes"),
    ],
)
def test_pods_that_trained_alone_are_named_with_the_reason(judged, options, why):
    verdict = judged(alone(bundles.healthy(), *options))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "variables.world_of_one"), verdict.explanation
    assert why in verdict.explanation
    for index in (0, 1):
        assert bundles.healthy().pod_name(index) in verdict.explanation
    assert "rank 0 of a world of 1" in verdict.explanation
    assert "ll ranks met" not in " ".join(one.explanation for one in verdict.checks)


def test_a_world_of_one_leaves_the_keys_unjudged(judged):
    job = alone(bundles.healthy(), "--nnodes=1")
    launch = job.manifest.launch.model_copy(update={"recorder": True, "accounts": ["keys"]})
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    verdict = judged(job)
    assert verdict.cause == "variables.world_of_one"
    assert (check(verdict, "keys").cause, check(verdict, "keys").result) == (None, "UNKNOWN")
    assert verdict.consequences == []


def test_separate_worlds_per_pod_have_the_wrong_size(judged):
    verdict = judged(alone(bundles.healthy(per_node=2), "--nnodes=1", world=2))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rendezvous.world_size"), verdict.explanation
    assert "ranks 0 and 1 of a world of 2" in verdict.explanation


def test_one_pod_that_trained_alone_is_named(judged):
    job = recorded(bundles.healthy(nodes=3))
    for index, (rank, world, nodes) in enumerate([(0, 2, 2), (1, 2, 2), (0, 1, 1)]):
        pod = PodEvents(job, index)
        pod.agent(7, f"--nnodes={nodes}")
        pod.workers(7, [(20, 0, rank, world)], nodes=nodes)
        pod.rank(20, rank, world)
        pod.end(20)
        pod.result(7)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "variables.world_of_one"), verdict.explanation
    assert job.pod_name(2) in verdict.explanation
    assert job.pod_name(0) not in check(verdict).explanation


def without_torchrun(job, group, **env):
    recorded(job)
    for index in range(job.nodes):
        pod = PodEvents(job, index)
        pod.start(9, "python", argv=["python3", "train.py"], **env)
        if group:
            pod.add("group", 9, rank=group[0], world=group[1])
        pod.end(9)
    return job


def test_a_process_group_of_one_rank_is_alone(judged):
    verdict = judged(without_torchrun(bundles.healthy(), (0, 1), RANK=0, WORLD_SIZE=1))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "variables.world_of_one")
    assert "WORLD_SIZE=1 in its environment" in verdict.explanation


def test_a_script_without_a_process_group_is_alone(judged):
    verdict = judged(without_torchrun(bundles.healthy(), None, RANK=0))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "variables.world_of_one")
    assert "never initialised torch.distributed" in verdict.explanation


def test_the_process_group_size_overrides_the_torchrun_size(judged):
    job = recorded(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, index, 2)])
        pod.start(20, "rank", ppid=7, RANK=index, LOCAL_RANK=0, WORLD_SIZE=2)
        pod.add("group", 20, rank=0, world=1)
        pod.end(20)
        pod.result(7)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "variables.world_of_one")
    assert "the script initialised torch.distributed with world size 1" in verdict.explanation


def test_ranks_that_torchrun_started_have_met_without_process_group(judged):
    job = recorded(bundles.healthy())
    for index in range(2):
        PodEvents(job, index).torchrun(index, group=False)
    assert judged(job).verdict == "PASS"


def test_a_pod_without_recorded_processes_is_unknown(judged):
    job = recorded(bundles.healthy())
    PodEvents(job, 0).rank(20, 0, 2)
    PodEvents(job, 0).end(20)
    verdict = judged(job)
    assert verdict.verdict == "UNKNOWN"
    assert "ll ranks met" not in " ".join(one.explanation for one in verdict.checks)


def test_a_standalone_evaluation_after_training_passes(judged):
    job = together(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(30, "--standalone", script="evaluate.py")
        pod.workers(30, [(40, 0, 0, 1)], nodes=1)
        pod.rank(40, 0, 1, ppid=30)
        pod.end(40)
        pod.result(30)
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict.explanation


def test_ranks_are_named_by_the_pod_that_had_them(judged):
    """With c10d, torchrun's agents assign the ranks, so rank 0 may run in the second pod."""
    job = together(bundles.healthy(), order=[1, 0])
    job.truth[0], job.truth[1] = job.truth[1], job.truth[0]
    job.ended(0, 30, code=1)
    verdict = judged(job)
    assert verdict.ranks == [1], verdict.explanation
    assert f"ank 1 (pod {job.pod_name(0)}" in verdict.explanation


@pytest.mark.parametrize("given", [True, False])
def test_the_job_file_world_size_overrides_the_recorded_one(judged, given):
    job = together(bundles.healthy(nodes=2, per_node=2))
    expected = job.manifest.expected
    assert expected is not None
    changed = {"ranks": 2, "ranks_given": given}
    job.manifest = job.manifest.model_copy(update={"expected": expected.model_copy(update=changed)})
    verdict = judged(job)
    if given:
        assert (verdict.verdict, verdict.cause) == ("FAIL", "rendezvous.world_size")
        assert "4 ranks met, but the job file asks for 2" in check(verdict).explanation
    else:
        assert verdict.verdict == "PASS", verdict.explanation
        assert "4 ranks in one world" in check(verdict).explanation


def test_processes_of_an_earlier_pod_do_not_count(judged):
    job = together(bundles.healthy())
    earlier = PodEvents(job, 0, uid="earlier-pod")
    earlier.agent(7, "--nnodes=1")
    earlier.workers(7, [(20, 0, 0, 1)], nodes=1)
    assert judged(job).verdict == "PASS"


def test_world_with_rank_in_two_pods_is_none(judged):
    job = recorded(bundles.healthy())
    for index in range(2):
        PodEvents(job, index).torchrun(1)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rendezvous.world_size")
    assert "rank 1 ran in several pods" in check(verdict).explanation.lower()


@pytest.mark.parametrize(("world", "verdict"), [(2, "PASS"), (1, "FAIL"), (None, "UNKNOWN")])
def test_without_the_recorder_workers_must_record_their_world(judged, world, verdict):
    job = bundles.healthy()
    changed = job.manifest.launch.model_copy(update={"processes": True, "recorder": False})
    job.manifest = job.manifest.model_copy(update={"launch": changed})
    for rank in range(2):
        start = TruthStart(attempt="a", time_ms=1, pod=job.pod_name(rank), world=world, pid=7)
        job.truth[rank] = [start, *job.truth[rank]]
    seen = judged(job)
    assert seen.verdict == verdict, seen.explanation


def test_a_rank_maps_to_the_pod_that_ran_it(tmp_path):
    job = together(bundles.healthy(), order=[1, 0])
    ranks = job.write(tmp_path / "bundle").ranks()
    assert {rank: pod.name for rank, pod in ranks.items()} == {0: job.pod_name(1), 1: job.pod_name(0)}


def test_ranks_without_a_world_are_judged_by_exits(judged):
    job = recorded(bundles.healthy())
    for index in range(2):
        job.drop_pod(index, after=6)
        job.ended(index, 30, code=1)
    verdict = judged(job)
    assert check(verdict).cause is None
    assert not any("which world" in text for text in verdict.consequences)


def test_a_torchrun_that_joins_late_is_no_cause(judged):
    """The containers are inspected at a fixed time, at which a pod on a busy machine may still be
    starting."""
    job = together(bundles.healthy())
    torchrun = Process(pid=7, parent=1, command=[*TORCHRUN, "--nnodes=2", "train.py"])
    job.inspections = [RendezvousSnapshot(at=bundles.at(20), pod=job.pod_name(1), processes=[torchrun])]
    assert judged(job).verdict == "PASS"


def test_a_world_of_any_recorded_size_is_judged(judged):
    """Contract: the time to judge does not depend on the recorded size, even if it is huge."""
    job = recorded(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.start(9, "python")
        pod.add("group", 9, rank=index, world=2**62)
        pod.end(9)
    verdict = judged(job)
    assert verdict.verdict != "PASS"
    assert not [check for check in verdict.checks if check.cause == "run.judge_error"]
