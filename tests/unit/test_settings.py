"""Flags override the environment, which overrides pyproject.toml; what does not fit is named."""

import pwd
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.reference.settings import variables
from harness.settings import Settings, load


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KEEP_CLUSTER", "PLUTO_API_KEY", "PLUTO_API_TOKEN", "PLUTO_RUN_ID", "HARNESS_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_order_of_override(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pyproject.toml").write_text("[tool.harness]\nworkers = 1\ncluster_name = 'mine'\n")
    assert load().workers == 1
    monkeypatch.setenv("HARNESS_WORKERS", "3")
    assert load().workers == 3
    assert load(workers=0).workers == 0
    assert load().cluster_name == "mine"


@pytest.mark.parametrize("name", ["..", "../x", "Mine", "a_b", "-a", "a" * 50, "", "a b", "a/b"])
def test_a_cluster_name_that_kind_refuses_is_refused_first(folder: Path, name: str) -> None:
    """Contract: nothing is created for it, and no folder outside of the clusters' own is named by it."""
    with pytest.raises(UsageError, match=r"cluster_name: .*lower-case letters, digits, '-' and '\.'"):
        load(cluster_name=name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.harness\n", "pyproject.toml is not valid TOML"),
        ("[tool]\nharness = 7\n", "expected harness to be a table, found 7"),
        ("tool = 'x'\n", "expected tool to be a table, found 'x'"),
        ("[tool.harness]\nworkers = 99999999999999999999\n", "workers: "),
        ("[tool.harness]\nwait_seconds = inf\n", "wait_seconds: .*less than or equal"),
        ("[tool.harness]\nruns_dir = ['x']\n", "runs_dir: "),
    ],
)
def test_settings_that_cannot_be_used(folder: Path, text: str, message: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load()


def test_names_that_users_know(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEP_CLUSTER", "true")
    monkeypatch.setenv("PLUTO_API_TOKEN", "mlpi_secret")
    settings = load()
    assert settings.keep_cluster is True
    assert settings.pluto_api_key is not None
    assert "mlpi_secret" not in repr(settings)


def test_an_empty_variable_is_an_unset_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: this applies to every variable of every setting. A workflow cannot unset a variable."""
    (folder / "pyproject.toml").write_text("[tool.harness]\nworkers = 1\n")
    for field, of in Settings.model_fields.items():
        for variable in variables(field, of):
            monkeypatch.delenv(variable, raising=False)
    unset = load()
    for field, of in Settings.model_fields.items():
        for variable in variables(field, of):
            monkeypatch.setenv(variable, "")
    assert load() == unset
    monkeypatch.setenv("PLUTO_API_TOKEN", "mlpi_secret")
    assert load().pluto_api_key is not None


@pytest.mark.parametrize("variable", ["HARNESS_EXPECT", "HARNESS_ENV"])
def test_a_variable_that_is_not_json_is_rejected(
    folder: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: the message does not contain the value, which may be a secret."""
    monkeypatch.setenv(variable, "mlpi_secret")
    with pytest.raises(UsageError, match=variable.removeprefix("HARNESS_").lower()) as error:
        load()
    assert "JSON" in str(error.value.hint)
    assert "mlpi_secret" not in str(error.value)


def test_a_tilde_is_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: in a file, a variable, and in `--kubeconfig=~/config`, where a shell does not expand it."""
    monkeypatch.setenv("HOME", "/home/me")
    (folder / "pyproject.toml").write_text("[tool.harness]\nruns_dir = '~/runs'\n")
    monkeypatch.setenv("HARNESS_CACHE_DIR", "~/cache")
    settings = load(kubeconfig=Path("~/.kube/config"))
    assert settings.runs_dir == Path("/home/me/runs")
    assert settings.cache_dir == Path("/home/me/cache")
    assert settings.kubeconfig == Path("/home/me/.kube/config")
    with pytest.raises(UsageError, match=r"runs_dir: .*absolute path"):
        load(runs_dir=Path("~no-such-user/runs"))


def test_a_user_without_a_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: the message names the variables to set, and with these no home folder is needed."""

    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="home folder") as error:
        load()
    assert "HARNESS_CACHE_DIR" in str(error.value.hint)
    monkeypatch.setenv("HARNESS_CACHE_DIR", "/tmp/cache")
    monkeypatch.setenv("HARNESS_STATE_DIR", "/tmp/state")
    assert load().cache_dir == Path("/tmp/cache")


@pytest.mark.parametrize("text", ["[tool.harness]\nwrokers = 1\n", "[tool.harness]\nworkers = 'many'\n"])
def test_a_setting_that_does_not_fit_is_named(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"wrokers|workers"):
        load()


@pytest.mark.parametrize(("variable", "meant"), [("WOKERS", "WORKERS"), ("CLUSTERNAME", "CLUSTER_NAME")])
def test_a_variable_that_is_nearly_a_setting(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be passed over, and the user believe it set. What only begins like ours is somebody's own."""
    for name in ("NONCE", "RANK_SECONDS", "STALL_SECONDS", "TRUTH_ROWS", "JOB", "FAULTS_PARALLEL", "HOUSE"):
        monkeypatch.setenv(f"HARNESS_{name}", "x")
    load()
    monkeypatch.setenv(f"HARNESS_{variable}", "3")
    with pytest.raises(UsageError, match=f"HARNESS_{variable} is not a setting") as error:
        load()
    assert error.value.hint == f"did you mean HARNESS_{meant}?"


def test_a_context_needs_a_kubeconfig(tmp_path: Path) -> None:
    """Contract: nothing is launched on a kind cluster when another was named."""
    with pytest.raises(UsageError, match="context mine is set, but no kubeconfig"):
        load(context="mine")
    assert load(context="mine", kubeconfig=tmp_path / "k").context == "mine"


def test_a_key_that_does_not_fit_is_not_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that YAML or TOML reads as a number."""
    (tmp_path / "pyproject.toml").write_text("[tool.harness]\npluto_api_key = 12345678\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as raised:
        load()
    assert "PLUTO_API_KEY" in str(raised.value)
    assert "12345678" not in str(raised.value)


@pytest.mark.parametrize("text", ["1", "1.36.x", "latest", "1.36; true"])
def test_a_kubernetes_version_is_numbers(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from the inputs of workflows."""
    monkeypatch.setenv("HARNESS_KUBERNETES", text)
    with pytest.raises(UsageError, match="kubernetes"):
        load()


def test_an_empty_kubernetes_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow's input that was left empty."""
    monkeypatch.setenv("HARNESS_KUBERNETES", "")
    assert load().kubernetes is None
