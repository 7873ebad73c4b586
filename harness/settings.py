"""One typed settings object. Flags override the environment, which overrides [tool.harness] in pyproject.

Environment variables are HARNESS_<NAME>, and the names users already know: PLUTO_RUN_ID, KEEP_CLUSTER,
PLUTO_API_KEY, PLUTO_API_TOKEN, PLUTO_PROJECT.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
)

from harness.core.bounds import shown
from harness.core.errors import UsageError
from harness.core.user_files import toml

ImagesMode = Literal["auto", "registry", "source"]
PREFIX = "HARNESS_"
CLUSTER_NAME = r"[a-z0-9]([a-z0-9.-]{0,47}[a-z0-9])?"
MAX_SECONDS = 365 * 24 * 3600
KEEP_RUNS = r"all|failed|last:\d{1,6}"
"""What `keep_runs` can be; harness.evidence.io.folder says what it means."""


class Expect(BaseModel):
    """What a launch must do beside what its file says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranks: list[Annotated[int, Field(ge=0)]] | None = None
    """The ranks that log. The others must run to their end and log nothing. None: every rank logs."""


def _xdg(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "pluto-e2e-harness"


class Settings(BaseSettings):
    """Everything that a user can choose. Seconds, counts and paths; secrets are never printed as text."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        populate_by_name=True,
        extra="forbid",
        pyproject_toml_table_header=("tool", "harness"),
    )

    cluster_name: str = Field("pluto-e2e", description="kind cluster to make or use")
    workers: int = Field(2, ge=0, le=16, description="kind worker nodes; 0 is a single-node cluster")
    node_image: str | None = Field(None, description="kind's node image, in place of the stack's own")
    kubernetes: str | None = Field(
        None,
        pattern=r"^v?1\.\d+(\.\d+)?$",
        description="of a new cluster, e.g. 1.35: one that harness/versions.toml has a node image of",
    )
    api_port: int = Field(0, ge=0, le=65535, description="of a new cluster's API server on 127.0.0.1; 0: any")
    kubeconfig: Path | None = Field(
        None, description="of a cluster of yours, which is used in place of a kind cluster"
    )
    context: str | None = Field(None, description="of that kubeconfig; unset: its current one")
    worker_image: str | None = Field(
        None, description="on a cluster of yours: the worker image, where its nodes find it"
    )
    tracker_image: str | None = Field(
        None, description="on a cluster of yours: the tracker's image, for `harness preflight --install`"
    )
    cluster_queue: str = Field(
        "cluster-queue", description="on a cluster of yours: the ClusterQueue that launches are to use"
    )
    image_pull_secret: str | None = Field(
        None,
        pattern=r"^[^/]+/[^/]+$",
        description="on a cluster of yours: NAMESPACE/NAME of a Secret that launches get for their images",
    )
    keep_cluster: bool = Field(
        False,
        validation_alias=AliasChoices("KEEP_CLUSTER", "HARNESS_KEEP_CLUSTER"),
        description="keep the cluster after a run",
    )
    queue: str = Field("user-queue", description="LocalQueue that every launch's namespace gets")
    cpu_request: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+)?m?$",
        description="CPU that each pod asks for, e.g. 200m, its limit unchanged. Unset: as the job file "
        "says, less only where one node takes all pods and they would not fit",
    )
    ephemeral_storage: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+)?([kKMGT]i?)?$",
        description="what each container of a rank may write to its node's disk: its own files, log and "
        "emptyDirs, e.g. 500Mi; 0: no limit. Unset: 10Gi on kind, no limit on a cluster of yours",
    )
    konduktor_config: Path | None = Field(
        None,
        description="a konduktor config of yours: its kubernetes.pod_config and jobset_config are used too",
    )
    scripts: Path | None = Field(
        None,
        description="a folder of yours: its files are laid over /workspace of every rank's image",
    )
    recorder: bool = Field(
        True,
        description="record what each rank hands to Pluto's client, around the client's calls, so that no "
        "worker needs a ground truth of its own; false: only what a worker records itself",
    )
    expect: Expect = Field(
        Expect(),
        description='what the job is to do: {"ranks": [0]} where only rank 0 logs. Unset: the annotation '
        "`pluto-e2e-harness/expect-ranks` of the workload, a label of a konduktor job; else every rank logs",
    )
    logs: bool = Field(
        False,
        description="on a kind cluster: start VictoriaLogs, which `konduktor logs` reads; a kept cluster "
        "keeps it",
    )
    netcheck: bool = Field(
        False,
        description="run netcheck in every pod before the command, so that the ranks of a job that cannot "
        "meet end at once, with the cause; see docs/networking.md",
    )
    pod: Path | None = Field(
        None,
        description="a file that `harness accept`, `train` and `netcheck` merge into their pod template: "
        "tolerations, nodeSelector, affinity, runtimeClassName, resources, …",
    )
    env: dict[str, str] = Field(
        {},
        description="variables of the ranks of `harness accept`, `train` and `netcheck`, a table in "
        "pyproject.toml and JSON in the environment; `--env` comes before them",
    )
    images: ImagesMode = Field(
        "auto", description="published images, images built from source, or by whether registries answer"
    )
    fresh: bool = Field(
        False, description="have kind create the cluster, and use no template of an earlier one"
    )
    kind_bin: str = Field("kind", description="the kind program")
    kubectl_bin: str = Field("kubectl", description="the kubectl program")
    runs_dir: Path = Field(Path("runs"), description="where bundles go")
    keep_runs: str = Field(
        "all",
        pattern=f"^({KEEP_RUNS})$",
        description="bundles of launches that passed: all, failed (none of them), last:N. Others always stay",
    )
    cache_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_CACHE_HOME", ".cache"),
        description="what is built or fetched once; unset: below XDG_CACHE_HOME or ~/.cache",
    )
    state_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_STATE_HOME", ".local/state"),
        description="which clusters are the harness's; unset: below XDG_STATE_HOME or ~/.local/state",
    )
    versions_file: Path | None = Field(None, description="replaces harness/versions.toml")

    pluto_run_id: str | None = Field(
        None,
        validation_alias=AliasChoices("PLUTO_RUN_ID"),
        description="the shared run id; unset: made with a nonce. Refused when Pluto's client would read it "
        "as a resume id (123, JOB-77)",
    )
    share_run_id: bool = Field(
        False,
        description="launch also with a run id that another launch of this cluster used. The verdict then "
        "names what others wrote",
    )
    pluto_project: str = Field(
        "e2e", validation_alias=AliasChoices("PLUTO_PROJECT"), description="the run's project"
    )
    pluto_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("PLUTO_API_KEY", "PLUTO_API_TOKEN"),
        description="key of hosted Pluto",
    )
    tracker: Literal["embedded", "hosted"] = Field(
        "embedded", description="the harness's own in the cluster, or hosted Pluto"
    )
    tracker_url: str = Field("", description="base URL of a hosted tracker; empty: Pluto's own")

    wait_seconds: float = Field(600, gt=0, le=MAX_SECONDS, description="launch to verdict at most")
    create_seconds: float = Field(600, gt=0, le=MAX_SECONDS, description="cluster creation at most")

    @field_validator("cluster_name")
    @classmethod
    def _of_kind(cls, name: str) -> str:
        if not re.fullmatch(CLUSTER_NAME, name):
            raise ValueError(
                "lower-case letters, digits, '-' and '.' are expected, a letter or digit at both ends, at "
                "most 49 characters: kind appends -control-plane to it"
            )
        return name

    @field_validator("pluto_run_id", "pluto_api_key", "kubernetes", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, _Pyproject(settings_cls)


class _Pyproject(PyprojectTomlConfigSettingsSource):
    """[tool.harness] of ./pyproject.toml, read with bounds. Raises UsageError."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        document = toml(Path(file_path), "settings")
        table: Any = document
        for name in ("tool", "harness"):
            table = table.get(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"settings {file_path}: {name} is a table; seen {shown(table)}")
        return document


def _seen(error: Any) -> str:
    secret = {"pluto_api_key", "PLUTO_API_KEY", "PLUTO_API_TOKEN"}
    return (
        ""
        if secret & set(error["loc"]) or error["loc"][0] in ("env", "HARNESS_ENV")
        else f", seen {shown(error['input'])}"
    )


def load(**flags: Any) -> Settings:
    """Return settings from flags that are not None, the environment and ./pyproject.toml.

    Raises UsageError naming every value that does not fit.
    """
    chosen = {name: value for name, value in flags.items() if value is not None}
    _spelt()
    try:
        found = Settings(**chosen)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}{_seen(e)}" for e in error.errors()]
        raise UsageError(
            "settings do not fit: " + "; ".join(lines),
            hint="they come from options, HARNESS_… variables and [tool.harness] of pyproject.toml",
        ) from None
    if found.context and not found.kubeconfig:
        raise UsageError(
            f"context {found.context} of which kubeconfig?",
            hint="--kubeconfig FILE (HARNESS_KUBECONFIG); without both, a kind cluster of ours is used",
        )
    return found


def _spelt() -> None:
    """Refuse a variable that is nearly a setting. Another program may own other names with our prefix."""
    names = {name.upper() for name in Settings.model_fields}
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in names:
            continue
        if near := difflib.get_close_matches(name, names, n=1, cutoff=0.85):
            raise UsageError(f"{variable} is no setting", hint=f"did you mean {PREFIX}{near[0]}?")
