"""Log to one MLflow run, which all ranks and all attempts share.

MLflow keeps every value that was ever logged for a step, so a value must not be sent twice. Before a rank
logs a metric for the first time, and after each request with an unknown outcome, the rank reads which steps
the server already has, and does not send them again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .sender import Point

TAG = "training.id"
"""The tag by which all ranks find the run that rank 0 created, even after a restart."""
AT_ONCE, PARAMS_AT_ONCE, LONGEST_PARAM = 1000, 100, 500
"""Maximum number of values per request, of params per request, and of characters per param.

The last number is the lowest limit among MLflow's storage backends.
"""
CREATED_SECONDS = 30.0
"""Seconds for which the other ranks wait for rank 0's run before they report an error."""


def problem(uri: str) -> str:
    """Return the reason why ranks on several nodes cannot log to this tracking URI, or "" if they can.

    MLflow 3 rejects folders ("maintenance mode"), and ranks that share an SQLite file lock each other out.
    MLflow interprets HOST:PORT as an unknown scheme.
    """
    scheme, separator, _ = uri.partition("://")
    if (separator or uri.startswith("databricks")) and not scheme.startswith(("file", "sqlite")):
        return ""
    return (
        "MLFLOW_TRACKING_URI: the URL of an MLflow server is expected, such as http://HOST:5000; "
        f"found {uri!r}. `mlflow server --backend-store-uri sqlite:///FOLDER/mlflow.db` serves a folder to "
        "all ranks"
    )


class Mlflow:
    """An MLflow client. The same thread must call all methods except `close`."""

    name = "MLflow"

    def __init__(self, run: str, rank: int, config: dict[str, Any], identity: str) -> None:
        self._name, self._rank, self._config, self._identity = run, rank, config, identity
        # MLflow's defaults are 120 s and 7 retries per request, but Sender already retries.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        self._client: Any = None
        self._run_id = os.environ.get("MLFLOW_RUN_ID", "")
        self._server_steps: dict[str, set[int]] = {}
        """Maps each metric whose history has been read to the steps that the server already has."""

    def connect(self) -> None:
        """Find the run, or create it on rank 0. Raises MlflowException, and LookupError after a timeout."""
        from mlflow import MlflowClient

        self._client = self._client or MlflowClient()
        deadline = time.monotonic() + CREATED_SECONDS
        while not self._run_id:
            self._run_id = self._existing_run() or (self._create_run() if self._rank == 0 else "")
            if not self._run_id and time.monotonic() > deadline:
                raise LookupError(f"rank 0 has not created a run within {CREATED_SECONDS:.0f} s")
            if not self._run_id:
                time.sleep(0.5)
        if self._rank == 0:
            self._begin()

    def send(self, points: Sequence[Point]) -> tuple[Sequence[Point], str]:
        """Log the points that the server does not have yet.

        When this returns, all points are acknowledged.
        """
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, point.time_ms, point.step)
            for point in points
            for name, value in point.values.items()
            if point.step not in self._steps(name, points)
        ]
        for first in range(0, len(metrics), AT_ONCE):
            try:
                self._client.log_batch(self._run_id, metrics=metrics[first : first + AT_ONCE])
            except Exception:
                # The server may have stored some values. Clear the cache, so that the steps are read again.
                self._server_steps.clear()
                raise
        return [], ""

    def artifacts(self, texts: Mapping[str, str], shared: Path) -> None:
        """Store `texts` (contents keyed by file name) and a table of all validations as the run's artifacts.

        Call this only on rank 0. If the server keeps artifacts in a folder, MLflow's client writes to the
        same path on its own disk, and reports no error. Raises ValueError if that folder is not below
        `shared`, the folder of the output disk.
        """
        uri = str(self._client.get_run(self._run_id).info.artifact_uri)
        folder = urlsplit(uri)
        if folder.scheme in ("", "file") and not Path(unquote(folder.path)).is_relative_to(shared):
            raise ValueError(
                f"the server keeps them in {uri}, a folder that the ranks do not share. Start the "
                "server with --artifacts-destination, and use a new experiment"
            )
        for name, text in {**texts, "validation.csv": self._validations()}.items():
            self._client.log_text(self._run_id, text, name)

    def _validations(self) -> str:
        """Return a CSV table with all attempts' validation losses and perplexities from the server."""
        columns = [
            {one.step: one.value for one in self._client.get_metric_history(self._run_id, f"val/{name}")}
            for name in ("loss", "perplexity")
        ]
        rows = [f"{step},{loss!r},{columns[1].get(step, '')!r}" for step, loss in sorted(columns[0].items())]
        return "\n".join(["step,loss,perplexity", *rows]) + "\n"

    def close(self, ok: bool) -> None:
        """Set the run's status on rank 0. The next attempt sets it to RUNNING again."""
        if self._rank or not self._run_id:
            return
        try:
            self._client.set_terminated(self._run_id, "FINISHED" if ok else "FAILED")
        except Exception:
            if ok:
                raise

    def _steps(self, name: str, points: Sequence[Point]) -> set[int]:
        """Return a metric's steps on the server, starting with the first step in `points`.

        The result is cached.
        """
        if name not in self._server_steps:
            first = min(point.step for point in points)
            history = self._client.get_metric_history(self._run_id, name)
            self._server_steps[name] = {one.step for one in history if one.step >= first}
        return self._server_steps[name]

    def _existing_run(self) -> str:
        experiment = self._experiment(create=False)
        if experiment is None:
            return ""
        tagged = f"tags.`{TAG}` = '{self._identity}'"
        runs = self._client.search_runs([experiment], tagged, max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def _create_run(self) -> str:
        tags = {TAG: self._identity}
        run = self._client.create_run(self._experiment(create=True), tags=tags, run_name=self._name)
        return str(run.info.run_id)

    def _experiment(self, create: bool) -> str | None:
        """Return the id of the experiment that the environment names, or of MLflow's default experiment.

        Returns None if the named experiment does not exist and `create` is false.
        """
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None and create:
            return str(self._client.create_experiment(name))
        return str(experiment.experiment_id) if experiment else None

    def _begin(self) -> None:
        """Set the run's status to RUNNING, and log the options that the server does not have yet.

        Options are logged as MLflow params, which are immutable.
        """
        from mlflow.entities import Param

        run = self._client.get_run(self._run_id)
        if run.info.status != "RUNNING":
            self._client.update_run(self._run_id, status="RUNNING")
        missing = [
            Param(name, str(value)[:LONGEST_PARAM])
            for name, value in self._config.items()
            if name not in run.data.params
        ]
        for first in range(0, len(missing), PARAMS_AT_ONCE):
            self._client.log_batch(self._run_id, params=missing[first : first + PARAMS_AT_ONCE])
