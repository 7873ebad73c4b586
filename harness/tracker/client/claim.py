"""Claim a run id for a launch before the launch starts, so that two launches never share a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import httpx

from harness.core.errors import HarnessError
from harness.tracker.client.retry import ask

SECONDS = 15.0
RELEASE_SECONDS = 3.0


def claim(
    client: httpx.Client,
    *,
    project: str,
    external_id: str,
    launch: str,
    shared: bool,
    gone_reason: Callable[[], str | None] = lambda: None,
) -> None:
    """Claim a run id in the embedded tracker for the launch whose nonce is `launch`.

    Raises HarnessError (cause launch.run_id_taken) if another launch has claimed the id or a run with this id
    exists, unless `shared` is set. Raises HarnessError (cause tracker.not_ready) if the tracker is an earlier
    version, which does not accept keys for a single launch. If the tracker does not respond, raises the same
    errors as `ask`.
    """
    params = {"externalId": external_id, "projectName": project}
    if not ask(client, "api/audit/runs", params, SECONDS, gone_reason).get("sealedKeys"):
        raise HarnessError(
            "the cluster's tracker is an older version that does not accept keys for a single launch",
            hint="install this version: `harness up`, or `harness preflight --install` on your own cluster",
            cause="tracker.not_ready",
        )
    body = {"projectName": project, "externalId": external_id, "launch": launch, "shared": shared}
    response = ask(client, "api/audit/claims", {}, SECONDS, gone_reason, body=body)
    if response["granted"]:
        return
    claims, run = response["claims"], response["run"]
    parts = [f"launch {one['launch']} claimed it at {one['at']}" for one in claims[:3]]
    parts += [f"its run {run['displayId']} was created at {run['createdAt']}"] if run else []
    raise HarnessError(
        f"the run id {external_id} in project {project} is already in use: {', '.join(parts)}",
        hint="choose a run id that has not been used on this cluster, or unset PLUTO_RUN_ID. "
        "HARNESS_SHARE_RUN_ID=true launches anyway, and the verdict lists writes by other launches",
        cause="launch.run_id_taken",
    )


def release(client: httpx.Client, launch: str) -> None:
    """Release the launch's claim if the launch wrote nothing to the run, so that the id can be used again.

    If the tracker does not respond, the claim is kept.
    """
    with contextlib.suppress(httpx.HTTPError):
        client.post("api/audit/claims/release", json={"launch": launch}, timeout=RELEASE_SECONDS)
