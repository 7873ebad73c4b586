"""A job file's mistakes are reported before anything is created.

Rendering changes only what a launch must.
"""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.errors import UsageError
from harness.launch.konduktor.job_file import DURATION_LABEL, JobFile

ROOT = Path(__file__).parents[4]


@pytest.fixture
def job() -> JobFile:
    return JobFile.load(ROOT / "jobs/multinode.yaml")


def test_the_main_job_is_what_it_says(job: JobFile) -> None:
    assert (job.num_nodes, job.ranks, job.queue) == (2, 2, "user-queue")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "A_b"}, "name"),
        ({"name": "x" * 41}, "at most 40 lower-case letters"),
        ({"num_nodes": 0}, "num_nodes"),
        ({"num_nodes": True}, "num_nodes"),
        ({"num_nodes": "two"}, "found 'two'"),
        ({"num_nodes": 1_000_000_000}, "num_nodes: expected at most 1000 nodes, found 1000000000"),
        ({"num_nodes": 99_999}, "num_nodes: expected at most 1000 nodes, found 99999"),
        ({"num_nodes": 10**5000}, "found a number with more than 4300 digits"),
        ({"name": "x" * 10**6}, r"found 'x+… \(1000000 characters\)"),
        ({"run": "#" * 200_000}, "run: expected at most 122880 bytes, found 200000"),
        ({"envs": {"A" * 300: "1"}}, "envs: expected variable names of at most 255 characters, found 300"),
        ({"envs": {"A": "x" * 200_000}}, r"envs\.A: expected at most 122880 bytes, found 200000"),
        ({"envs": {f"A{n}": "x" * 100_000 for n in range(9)}}, "at most 524288 bytes of names and values"),
        ({f"field{n}": 1 for n in range(10_000)}, "; and more"),
        ({"resources": {"image_id": "foo: {{ bar }}"}}, r"resources\.image_id: .* found 'foo: \{\{ bar"),
        (
            {"resources": {"image_id": "a" * 600 + ":1"}},
            r"resources\.image_id: expected at most 512 characters, found 602",
        ),
        ({"run": "  "}, "run"),
        ({"run": ["torchrun"]}, "found a list"),
        ({"run": None}, "run: .*found nothing"),
        ({"num_node": 2}, "did you mean 'num_nodes'"),
        ({"schedule": "daily"}, "fields are name, num_nodes"),
        ({"setup": "pip install x"}, "never runs these commands"),
        ({"experimental": {"config_overrides": {}}}, "HARNESS_KONDUKTOR_CONFIG"),
        ({"envs": {"2FAST": "1"}}, "found '2FAST'"),
        ({"envs": {"FAST": None}}, r"envs\.FAST: .*found nothing"),
        ({"resources": {"gpus": 8}}, r"resources\.gpus: konduktor has no such field"),
        ({"resources": {"cpu": 8}}, "did you mean 'cpus'"),
        ({"resources": {"cpus": "4+"}}, r"resources\.cpus: .*found '4\+'"),
        ({"resources": {"cpus": 0}}, r"resources\.cpus: .*found 0"),
        ({"resources": {"memory": "2Gi"}}, r"resources\.memory: .*found '2Gi'"),
        ({"resources": {"memory": 0.5}}, r"resources\.memory: .*found 0\.5"),
        ({"resources": {"image_id": ["a:1"]}}, "image_id: .*found a list"),
        ({"resources": {"labels": {"team": "a b"}}}, r"resources\.labels\.team: .*found 'a b'"),
        ({"resources": {"labels": {"a b": "c"}}}, "'a b' is not a valid Kubernetes label name"),
        ({"resources": {"image_id": "busybox:latest"}}, "other than latest"),
        ({"resources": {"image_id": "busybox"}}, "other than latest"),
        ({"resources": {"cpus": None}}, r"resources\.cpus"),
        ({"resources": {"labels": {"a": 1}}}, "put numbers in quotes"),
        ({"resources": {"labels": {DURATION_LABEL: "1h"}}}, "whole number of seconds"),
    ],
)
def test_each_mistake_is_told(job: JobFile, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job.with_(**change)


def test_all_mistakes_are_told_at_once(job: JobFile) -> None:
    with pytest.raises(UsageError, match=r"name: .*; num_nodes: .*; run: .*; resources\.cpus: "):
        job.with_(name="A_b", num_nodes=0, run="", resources={"cpus": "many"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"job\.yaml is not valid YAML, line 1, column 5"),
        ("a:\n\tb: 1", r"job\.yaml is not valid YAML, line 2, column 1"),
        ("just text", r"job\.yaml: expected a mapping of fields, found text"),
        ("- 1", "found a list"),
        ("", r"job\.yaml: the file is empty"),
    ],
)
def test_a_file_that_is_no_job(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        JobFile.load(tmp_path / "job.yaml")
    with pytest.raises(UsageError, match="does not exist"):
        JobFile.load(tmp_path / "none.yaml")


def test_world_size_counts_processes_per_node(job: JobFile) -> None:
    assert job.with_(num_nodes=3, run="torchrun --nproc-per-node=4 x.py").ranks == 12
    with pytest.raises(UsageError, match="expected at most 1024 processes per node, found 1025"):
        job.with_(run="torchrun --nproc_per_node=1025 x.py").ranks  # noqa: B018
    with pytest.raises(UsageError, match="expected at most 100000 ranks in total, found 1024000"):
        job.with_(num_nodes=1000, run="torchrun --nproc_per_node=1024 x.py").ranks  # noqa: B018
    with pytest.raises(UsageError, match="at most 1024 processes"):
        job.with_(run=f"torchrun --nproc_per_node={'9' * 5000} x.py").ranks  # noqa: B018
    for text in ("two", "0"):
        with pytest.raises(UsageError, match=rf"expected a number of at least 1, found '{re.escape(text)}'"):
            job.with_(run=f"torchrun --nproc_per_node={text} x.py").ranks  # noqa: B018


@pytest.mark.parametrize("text", ["$N", "$(nproc)", "gpu", "auto"])
def test_a_count_that_the_script_computes_is_not_given(job: JobFile, text: str) -> None:
    computed = job.with_(run=f"torchrun --nproc_per_node={text} x.py")
    assert not computed.has_rank_count
    assert computed.ranks == computed.num_nodes
    assert job.with_(run="torchrun x.py").has_rank_count


def test_render_sets_image_environment_and_the_shorter_duration(job: JobFile) -> None:
    rendered = yaml.safe_load(job.render(image="a/b:1", envs={"PLUTO_RUN_ID": "x"}, max_seconds=500.9))
    assert rendered["resources"]["image_id"] == "a/b:1"
    assert rendered["envs"] == {"PLUTO_RUN_ID": "x"}
    assert rendered["resources"]["labels"][DURATION_LABEL] == "500"
    assert rendered["run"] == job.document["run"]
    longer = yaml.safe_load(job.render(image="a/b:1", envs={}, max_seconds=9000))
    assert longer["resources"]["labels"][DURATION_LABEL] == "3200"


def test_secrets_are_not_in_what_konduktor_gets(job: JobFile) -> None:
    """Variables with names of secrets are left out: konduktor would write them into log and JobSet."""
    secret = {"HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "k", "DB_PASSWORD_1": "p", "token": "u", "A_KEY": 1}
    plain = {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "8", "KEYS": "a", "MONKEY": "b", "STEPS": "3"}
    changed = job.with_(envs={**secret, **plain})
    assert changed.secret_envs == {name: str(value) for name, value in secret.items()}
    assert yaml.safe_load(changed.render(image="a/b:1", envs={}, max_seconds=9))["envs"] == plain


def test_secrets_in_urls_and_scripts_are_known(job: JobFile) -> None:
    """A variable with a password in its URL goes by reference, and a secret in a script is redacted."""
    script = f"export HF_TOKEN=hf_abcdef\nDB_PASSWORD='p w' API_KEY=$GIVEN\n{job.document['run']}"
    envs = {"DATA": "postgres://me:pass-word@db/x", "SITE": "https://a.b/c"}
    changed = job.with_(envs=envs, run=script)
    assert list(changed.secret_envs) == ["DATA"]
    assert changed.secrets == {"postgres://me:pass-word@db/x", "pass-word", "hf_abcdef", "p w"}
    assert job.secrets == set()


@pytest.mark.parametrize(("cpus", "expected"), [(1, "1"), ("0.5", "0.5")])
def test_cpus_are_read_as_exact_decimals(job: JobFile, cpus: Any, expected: str) -> None:
    assert job.with_(resources={"cpus": cpus}).cpus == Decimal(expected)
