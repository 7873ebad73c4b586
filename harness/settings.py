"""Define and load the settings.

Flags override environment variables, which override [tool.harness] in pyproject.toml.

Environment variables are named HARNESS_<NAME>. Some settings have established names instead: PLUTO_RUN_ID,
KEEP_CLUSTER, PLUTO_API_KEY, PLUTO_API_TOKEN and PLUTO_PROJECT.
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
    SettingsError,
)

from harness.core.errors import UsageError
from harness.core.input_limits import shown
from harness.core.pod_security import Standard
from harness.core.user_files import toml

ImagesMode = Literal["auto", "registry", "source"]
PREFIX = "HARNESS_"
CLUSTER_NAME = r"[a-z0-9]([a-z0-9.-]{0,47}[a-z0-9])?"
MAX_SECONDS = 365 * 24 * 3600
KEEP_RUNS = r"all|failed|last:\d{1,6}"
"""The pattern for values of the `keep_runs` setting, which harness.evidence.io.runs_folder implements."""


class Expect(BaseModel):
    """Expectations for a launch that cannot be derived from its workload file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranks: list[Annotated[int, Field(ge=0)]] | None = None
    """The ranks that log points. All other ranks must run to completion without logging. None means that all
    ranks log."""


def home() -> Path:
    """Return the user's home folder. Raises UsageError if it is not known.

    It can be unknown in a container or a service that runs with an arbitrary user id.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            f"the home folder is unknown: HOME is not set, and user id {os.getuid()} has no entry in the "
            "user database",
            hint="set HOME, or set HARNESS_CACHE_DIR and HARNESS_STATE_DIR to folders that you can write to",
        ) from None


def _xdg(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or home() / default) / "pluto-e2e-harness"


class Settings(BaseSettings):
    """The harness's settings. Durations are in seconds. Secrets are never printed."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        # Empty variables are ignored, because workflows can set a variable to "", but cannot unset it.
        env_ignore_empty=True,
        populate_by_name=True,
        extra="forbid",
        pyproject_toml_table_header=("tool", "harness"),
    )

    cluster_name: str = Field("pluto-e2e", description="the kind cluster to create or use")
    workers: int = Field(
        2, ge=0, le=16, description="number of kind worker nodes; 0 means a single-node cluster"
    )
    node_image: str | None = Field(None, description="kind node image to use instead of the stack's own")
    kubernetes: str | None = Field(
        None,
        pattern=r"^v?1\.\d+(\.\d+)?$",
        description="Kubernetes version of a new cluster, e.g. 1.35; harness/versions.toml must list a "
        "node image for it",
    )
    api_port: int = Field(
        0, ge=0, le=65535, description="port of a new API server on 127.0.0.1; 0 means any free port"
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig of your own cluster, used instead of a kind cluster"
    )
    context: str | None = Field(None, description="context in `kubeconfig`; unset means its current context")
    worker_image: str | None = Field(
        None, description="on your own cluster: the worker image, in a registry from which the nodes can pull"
    )
    tracker_image: str | None = Field(
        None, description="on your own cluster: the tracker's image, for `harness preflight --install`"
    )
    cluster_queue: str = Field(
        "cluster-queue", description="on your own cluster: the ClusterQueue for launches"
    )
    image_pull_secret: str | None = Field(
        None,
        pattern=r"^[^/]+/[^/]+$",
        description="on your own cluster: NAMESPACE/NAME of the image pull Secret for launches",
    )
    keep_cluster: bool = Field(
        False,
        validation_alias=AliasChoices("KEEP_CLUSTER", "HARNESS_KEEP_CLUSTER"),
        description="keep the cluster after a run",
    )
    queue: str = Field("user-queue", description="name of the LocalQueue in the namespace of every launch")
    cpu_request: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+)?m?$",
        description="CPU request of each pod, e.g. 200m; the limit is not changed. Unset: the job file's "
        "request, reduced only if all pods run on one node and would not fit there",
    )
    ephemeral_storage: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+)?([kKMGT]i?)?$",
        description="ephemeral-storage limit of each container in a rank's pod, for its own files, its log "
        "and emptyDir volumes, e.g. 500Mi; 0 means no limit. Unset: 10Gi on kind, no limit on your own "
        "cluster",
    )
    pod_security: Standard | None = Field(
        None,
        description="Pod Security Standard that the namespace of every launch enforces: privileged, baseline "
        "or restricted; konduktor's jobs need privileged. Unset: restricted for pods of `accept`, `train` "
        "and `netcheck` that comply with it, otherwise the cluster's default",
    )
    konduktor_config: Path | None = Field(
        None,
        description="your konduktor config, whose kubernetes.pod_config and jobset_config are also applied",
    )
    scripts: Path | None = Field(
        None,
        description="a folder whose files replace or extend those in /workspace of every rank's image",
    )
    recorder: bool = Field(
        True,
        description="record the points that each rank passes to Pluto's client, by wrapping its calls, so "
        "that workers need not write ground truth; false: use only the ground truth that workers write",
    )
    expect: Expect = Field(
        Expect(),
        description='the expected behaviour of the job, e.g. {"ranks": [0]} if only rank 0 logs. Unset: the '
        "workload's annotation `pluto-e2e-harness/expect-ranks`, or a konduktor job's label, or every rank",
    )
    logs: bool = Field(
        False,
        description="on a kind cluster: start VictoriaLogs, which `konduktor logs` reads; it stays in a kept "
        "cluster",
    )
    netcheck: bool = Field(
        False,
        description="run netcheck in every pod before the command; if the ranks cannot reach each other, "
        "they report the cause and exit at once; see docs/networking.md",
    )
    pod: Path | None = Field(
        None,
        description="a file that `harness accept`, `train` and `netcheck` merge into their pod template: "
        "tolerations, nodeSelector, affinity, runtimeClassName, resources, …",
    )
    env: dict[str, str] = Field(
        {},
        description="environment variables for the ranks of `harness accept`, `train` and `netcheck`: a "
        "table in pyproject.toml, JSON in the environment; `--env` overrides them",
    )
    replace: dict[str, str] = Field(
        {},
        description="packages that replace those in the lock files, by name: a table in pyproject.toml, JSON "
        "in the environment; `--replace` adds to it; see docs/how-to/versions.md",
    )
    images: ImagesMode = Field(
        "auto",
        description="registry: use published images; source: build images from source; auto: depends on "
        "whether the registries can be reached",
    )
    fresh: bool = Field(
        False, description="create the cluster with kind, not from the template of an earlier cluster"
    )
    kind_bin: str = Field("kind", description="the kind program")
    kubectl_bin: str = Field("kubectl", description="the kubectl program")
    runs_dir: Path = Field(Path("runs"), description="folder for bundles")
    keep_runs: str = Field(
        "all",
        pattern=f"^({KEEP_RUNS})$",
        description="which bundles of passed launches to keep: all, failed (none of them) or last:N; other "
        "bundles always stay",
    )
    cache_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_CACHE_HOME", ".cache"),
        description="folder for built and downloaded files; unset: in XDG_CACHE_HOME or ~/.cache",
    )
    state_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_STATE_HOME", ".local/state"),
        description="folder for the state of clusters; unset: in XDG_STATE_HOME or ~/.local/state",
    )
    versions_file: Path | None = Field(None, description="file to use instead of harness/versions.toml")

    pluto_run_id: str | None = Field(
        None,
        validation_alias=AliasChoices("PLUTO_RUN_ID"),
        description="the shared run id; unset: a new id that contains the nonce. An id that Pluto's client "
        "would read as a resume id (123, JOB-77) is rejected",
    )
    share_run_id: bool = Field(
        False,
        description="allow a run id that another launch on this cluster has used; the verdict then lists the "
        "points of other writers",
    )
    pluto_project: str = Field(
        "e2e", validation_alias=AliasChoices("PLUTO_PROJECT"), description="project of the run on the tracker"
    )
    pluto_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("PLUTO_API_KEY", "PLUTO_API_TOKEN"),
        description="API key of hosted Pluto",
    )
    tracker: Literal["embedded", "hosted"] = Field(
        "embedded", description="embedded: the harness's tracker in the cluster; hosted: hosted Pluto"
    )
    tracker_url: str = Field("", description="base URL of a hosted tracker; empty means Pluto's own server")

    wait_seconds: float = Field(
        600, gt=0, le=MAX_SECONDS, description="maximum seconds from launch to verdict"
    )
    create_seconds: float = Field(
        600, gt=0, le=MAX_SECONDS, description="maximum seconds to create a cluster"
    )

    @field_validator("cluster_name")
    @classmethod
    def _of_kind(cls, name: str) -> str:
        if not re.fullmatch(CLUSTER_NAME, name):
            raise ValueError(
                "lower-case letters, digits, '-' and '.' are expected, a letter or digit at both ends, at "
                "most 49 characters: kind appends -control-plane to it"
            )
        return name

    @field_validator("replace")
    @classmethod
    def _replacements(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            return value
        from harness.core.replacements import normalized  # Imported here, because the import takes 10 ms.

        return normalized(value)

    @field_validator("pluto_run_id", "pluto_api_key", "kubernetes", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("*")
    @classmethod
    def _expanded(cls, value: Any) -> Any:
        """Expand a leading ~ in a path. A shell expands it only at the start of a word."""
        if not isinstance(value, Path):
            return value
        try:
            return value.expanduser()
        except RuntimeError:
            raise ValueError(
                "the home folder of that user is unknown; an absolute path is expected"
            ) from None

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
    """Reads the settings from the [tool.harness] table in ./pyproject.toml. Raises UsageError if the file is
    too large or cannot be parsed."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        document = toml(Path(file_path), "settings")
        table: Any = document
        for name in ("tool", "harness"):
            table = table.get(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"settings {file_path}: {name} must be a table, not {shown(table)}")
        return document


def _input_text(error: Any) -> str:
    secret = {"pluto_api_key", "PLUTO_API_KEY", "PLUTO_API_TOKEN"}
    return (
        ""
        if secret & set(error["loc"]) or error["loc"][0] in ("env", "HARNESS_ENV")
        else f", found {shown(error['input'])}"
    )


def load(**flags: Any) -> Settings:
    """Return the settings from flags that are not None, the environment and ./pyproject.toml.

    Raises UsageError, which lists every invalid value.
    """
    overrides = {name: value for name, value in flags.items() if value is not None}
    _check_spelling()
    try:
        settings = Settings(**overrides)
    except SettingsError as error:
        raise UsageError(
            f"the settings are invalid: {error}",
            hint="HARNESS_EXPECT, HARNESS_ENV and HARNESS_REPLACE are expected to be JSON objects, such as "
            """HARNESS_EXPECT='{"ranks": [0]}'""",
        ) from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}{_input_text(e)}" for e in error.errors()]
        raise UsageError(
            "the settings are invalid: " + "; ".join(lines),
            hint="check the options, HARNESS_… variables and [tool.harness] in pyproject.toml",
        ) from None
    if settings.context and not settings.kubeconfig:
        raise UsageError(
            f"a kubeconfig is expected for context {settings.context}",
            hint="add --kubeconfig FILE (HARNESS_KUBECONFIG), or omit the context to use a kind cluster",
        )
    return settings


def _check_spelling() -> None:
    """Raise UsageError for a HARNESS_ variable whose name is similar to that of a setting.

    Other unknown HARNESS_ variables are accepted, because they may belong to another program.
    """
    names = {name.upper() for name in Settings.model_fields}
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in names:
            continue
        if close_matches := difflib.get_close_matches(name, names, n=1, cutoff=0.85):
            raise UsageError(f"{variable} is not a setting", hint=f"did you mean {PREFIX}{close_matches[0]}?")
