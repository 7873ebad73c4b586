"""A job file's mistakes are told before anything is created; rendering changes only what a launch must."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import UsageError
from harness.launchers.job_file import DURATION_LABEL, JobFile

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job() -> JobFile:
    return JobFile.load(ROOT / "jobs/multinode.yaml")


def test_the_main_job_is_what_it_says(job: JobFile) -> None:
    assert (job.num_nodes, job.ranks, job.queue) == (2, 2, "user-queue")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "A_b"}, "name"),
        ({"name": "x" * 41}, "40 characters"),
        ({"num_nodes": 0}, "num_nodes"),
        ({"num_nodes": True}, "num_nodes"),
        ({"run": "  "}, "run"),
        ({"resources": {"image_id": "busybox:latest"}}, "other than latest"),
        ({"resources": {"image_id": "busybox"}}, "other than latest"),
        ({"resources": {"cpus": None}}, r"resources\.cpus"),
        ({"resources": {"labels": {"a": 1}}}, "quote the numbers"),
        ({"resources": {"labels": {DURATION_LABEL: "1h"}}}, "whole seconds"),
    ],
)
def test_each_mistake_is_told(job: JobFile, change: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        job.with_(**change)


@pytest.mark.parametrize("text", ["a: [", "just text", ""])
def test_a_file_that_is_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"job\.yaml"):
        JobFile.load(tmp_path / "job.yaml")
    with pytest.raises(UsageError, match="does not exist"):
        JobFile.load(tmp_path / "none.yaml")


def test_world_size_counts_processes_per_node(job: JobFile) -> None:
    assert job.with_(num_nodes=3, run="torchrun --nproc-per-node=4 x.py").ranks == 12
    with pytest.raises(UsageError, match="not a number"):
        job.with_(run="torchrun --nproc_per_node=$N x.py").ranks  # noqa: B018


def test_render_sets_image_environment_and_the_shorter_duration(job: JobFile) -> None:
    rendered = yaml.safe_load(job.render(image="a/b:1", envs={"PLUTO_RUN_ID": "x"}, max_seconds=500.9))
    assert rendered["resources"]["image_id"] == "a/b:1"
    assert rendered["envs"] == {"PLUTO_RUN_ID": "x"}
    assert rendered["resources"]["labels"][DURATION_LABEL] == "500"
    assert rendered["run"] == job.document["run"]
    longer = yaml.safe_load(job.render(image="a/b:1", envs={}, max_seconds=9000))
    assert longer["resources"]["labels"][DURATION_LABEL] == "3200"


def test_secrets_are_not_in_what_konduktor_gets(job: JobFile) -> None:
    """By their names: konduktor would write them into its log and into the JobSet."""
    secret = {"HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "k", "DB_PASSWORD_1": "p", "token": "u", "A_KEY": 1}
    plain = {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "8", "KEYS": "a", "MONKEY": "b", "STEPS": "3"}
    changed = job.with_(envs={**secret, **plain})
    assert changed.secret_envs == {name: str(value) for name, value in secret.items()}
    assert yaml.safe_load(changed.render(image="a/b:1", envs={}, max_seconds=9))["envs"] == plain


@pytest.mark.parametrize(("cpus", "told"), [(1, "1"), ("0.5", "0.5"), ("4+", None)])
def test_cpus(job: JobFile, cpus: Any, told: str | None) -> None:
    assert job.with_(resources={"cpus": cpus}).cpus == (Decimal(told) if told else None)
