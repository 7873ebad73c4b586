"""Whether a webhook that failed is about to serve again, over several looks."""

from __future__ import annotations

from typing import cast

import pytest
from urllib3.exceptions import HTTPError

from harness.core.causes import CauseId
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube
from harness.provision.controllers import readiness

KUBE = cast(Kube, None)
NOT_SERVING = HarnessError("failed calling webhook", cause="controllers.webhook_not_serving")


def looks(monkeypatch: pytest.MonkeyPatch, *seen: Exception | None) -> None:
    """Have `standing` see these one after the other, the last one for ever."""
    left = list(seen)

    def standing(kube: Kube) -> None:
        found = left.pop(0) if len(left) > 1 else left[0]
        if found is not None:
            raise found

    monkeypatch.setattr(readiness, "standing", standing)


def test_restart_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a controller whose endpoint goes and comes again is transient, whichever is seen first."""
    gone = HarnessError("Service has no endpoint", cause="controllers.webhook_not_serving")
    looks(monkeypatch, gone, HTTPError("connection refused"), gone, None)
    assert readiness.is_transient(KUBE, NOT_SERVING)
    looks(monkeypatch, None)
    assert readiness.is_transient(KUBE, gone)


@pytest.mark.parametrize("cause", ["controllers.kueue_not_ready", "controllers.crd_missing"])
def test_what_does_not_come_back_is_told_at_once(monkeypatch: pytest.MonkeyPatch, cause: CauseId) -> None:
    """Contract: a controller that is scaled to nothing, or whose API is gone, is not waited for."""
    looks(monkeypatch, HarnessError("it is gone", cause=cause))
    assert not readiness.is_transient(KUBE, NOT_SERVING, seconds=3600)
    looks(monkeypatch, None)
    assert not readiness.is_transient(KUBE, HarnessError("it is gone", cause=cause))


def test_service_that_finds_nothing_is_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: what stays without an endpoint is not transient."""
    looks(monkeypatch, NOT_SERVING)
    assert not readiness.is_transient(KUBE, NOT_SERVING, seconds=0)
