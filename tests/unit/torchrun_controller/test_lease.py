"""One controller leads, whatever the Lease contains and whatever happens to its renewal."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torchrun_api import Api, Client

from harness.torchrun_controller.__main__ import keep_leadership
from harness.torchrun_controller.runtime import lease as leases
from harness.torchrun_controller.runtime.lease import LEASE_SECONDS, Lease

Object = dict[str, Any]


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def lease_of(api: Api, identity: str, clock: Clock) -> Lease:
    return Lease(Client(api), "torchrun-system", "torchrun-controller", identity, clock)  # type: ignore[arg-type]


def stored(**spec: Any) -> Object:
    """Return a Lease. Without a spec, it is as `kubectl create` or a restored backup can leave it."""
    metadata = {"name": "torchrun-controller", "namespace": "torchrun-system"}
    return {"kind": "Lease", "metadata": metadata, **({"spec": spec} if spec else {})}


@pytest.mark.parametrize("found", [None, stored(), {**stored(), "spec": None}, stored(leaseTransitions=3)])
def test_a_lease_without_holder_is_taken(found: Object | None) -> None:
    """kubernetes/kubernetes#87800: a leader election ended with an error because its object had no content.

    Contract: a Lease that is missing, empty or without a holder is acquired, renewed and released.
    """
    api, clock = Api(), Clock()
    if found is not None:
        api.put(found)
    lease = lease_of(api, "one", clock)
    assert lease.try_acquire()
    assert lease.try_acquire()
    assert not lease_of(api, "two", clock).try_acquire()
    lease.release()
    assert lease_of(api, "two", clock).try_acquire()


def test_an_empty_lease_is_not_released() -> None:
    """Contract: a release writes nothing if somebody has emptied the Lease."""
    api = Api()
    api.put(stored())
    lease_of(api, "one", Clock()).release()
    assert api.writes == 0


def test_the_holder_s_clock_does_not_matter() -> None:
    """Contract: a Lease expires LEASE_SECONDS after its last change was observed."""
    api, clock = Api(), Clock()
    api.put(stored(holderIdentity="one", renewTime="2001-01-01T00:00:00.000000Z", leaseDurationSeconds=15))
    standby = lease_of(api, "two", clock)
    assert not standby.try_acquire()
    clock.seconds += LEASE_SECONDS - 1
    assert not standby.try_acquire()
    clock.seconds += 1
    assert standby.try_acquire()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_the_renewal_ends_the_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """kuberhealthy/kuberhealthy#1533: after its election had ended, a controller stayed ready.

    Contract: a controller never goes on without renewals. It stops, and its pod starts again.
    """
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.01)
    lease, stop, lost = lease_of(Api(), "one", Clock()), threading.Event(), threading.Event()
    monkeypatch.setattr(lease, "_acquire", lambda: dict[str, Any]()["spec"])
    thread = threading.Thread(target=keep_leadership, args=(lease, stop, lost))
    thread.start()
    thread.join(10)
    assert stop.is_set()
    assert lost.is_set()


def test_a_stopped_controller_has_not_lost_its_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: after a signal, the Lease is released, and the exit code does not say that it was lost."""
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.01)
    api, stop, lost = Api(), threading.Event(), threading.Event()
    lease = lease_of(api, "one", Clock())
    assert lease.try_acquire()
    stop.set()
    keep_leadership(lease, stop, lost)
    assert not lost.is_set()
    assert api.objects["Lease", "torchrun-controller"]["spec"]["holderIdentity"] == ""
