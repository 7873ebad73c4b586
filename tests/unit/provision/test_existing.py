"""A cluster of the user's own that is named wrongly: told at once, with what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness import run as running
from harness.cli.main import main
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.locks import acquire
from harness.faults.step_variables import of_cluster
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.existing import ExistingCluster
from harness.provision.images.build import ImageRef
from harness.settings import load

SECRET = "t0p-s3cret"


def kubeconfig(folder: Path, current: str | None = "staging", *names: str) -> Path:
    document = {
        "current-context": current,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in names],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": SECRET}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def refused(path: Path, context: str | None = None) -> UsageError:
    with pytest.raises(UsageError) as error:
        ExistingCluster(load(kubeconfig=path, context=context))
    assert (error.value.exit_code, error.value.cause) == (64, "cluster.kubeconfig")
    assert str(path) in error.value.message
    assert SECRET not in str(error.value)
    return error.value


def test_context_that_is_asked_for_or_current_one(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "staging", "production", "staging")
    assert ExistingCluster(load(kubeconfig=path)).context == "staging"
    assert ExistingCluster(load(kubeconfig=path, context="production")).kube().context == "production"


@pytest.mark.parametrize(("current", "asked"), [("staging", "prod"), ("prod", None)])
def test_unknown_context_is_told_with_those_that_there_are(
    tmp_path: Path, current: str, asked: str | None
) -> None:
    """Contract: what was expected, what was seen, what to do."""
    error = refused(kubeconfig(tmp_path, current, "production", "staging"), asked)
    assert "expected context prod" in error.message
    assert error.message.endswith("contexts in this file: production, staging")
    assert "--context NAME" in error.hint


def test_no_current_context_and_no_contexts(tmp_path: Path) -> None:
    assert "expected a current context" in refused(kubeconfig(tmp_path, None, "production")).message
    none = refused(kubeconfig(tmp_path, None))
    assert none.message.endswith("contexts in this file: none")
    assert "--kubeconfig FILE" in none.hint


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"just words", "holds no kubeconfig"),
        (b"a: [", "is not valid YAML, line 1, column 5: did not find expected node content"),
        (b"\xff\xfe\x00", "is encoded in UTF-16, but must be encoded in UTF-8"),
        (b"contexts: 5", "contexts in this file: none"),
        (b"contexts: [null]", "contexts in this file: none"),
    ],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, content: bytes | None, seen: str) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_bytes(content)
    error = refused(path)
    assert error.message.endswith(seen)
    assert "--kubeconfig FILE" in error.hint


def test_a_folder_as_kubeconfig_is_refused(tmp_path: Path) -> None:
    assert "is a folder, but must be a regular file" in refused(tmp_path).message


def test_a_run_leaves_no_bundle(tmp_path: Path) -> None:
    """Contract: bad usage is told before anything is created."""
    settings = load(
        kubeconfig=kubeconfig(tmp_path, "staging", "staging"), context="prod", runs_dir=tmp_path / "runs"
    )
    context = RunContext(settings=settings, progress=lambda _: None)
    with pytest.raises(UsageError, match="expected context prod"):
        running.run(JobFile.load(Path("jobs/multinode.yaml")), context)
    assert not (tmp_path / "runs").exists()


def test_the_command_ends_as_with_other_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kubeconfig(tmp_path, "staging", "staging")
    with pytest.raises(SystemExit) as ended:
        main(["preflight", "--kubeconfig", str(path), "--context", "prod"])
    assert ended.value.code == 64
    assert capsys.readouterr().err.startswith("harness: expected context prod")


def test_no_fault_is_injected_into_a_users_cluster(tmp_path: Path) -> None:
    """Contract: what a fault may strike is found by the kind cluster, and a user's cluster is none."""
    there = ExistingCluster(load(kubeconfig=kubeconfig(tmp_path, "a", "a")))
    image = ImageRef("worker:1", "sha256:0")
    use = acquire(tmp_path / "use")
    with pytest.raises(UsageError, match="works only on a kind cluster that the harness created"):
        of_cluster(Ready(there, there.kube(), image, 1, {}, use), tmp_path)
    use.release()
