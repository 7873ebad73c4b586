"""Judge whether the client logged every value passed to `run.log`, or omitted it intentionally.

The recorder counts values before and after the client's `log` (workers/recorder/queued_values.py), and the
numbers must add up. If the client omitted a value, the check fails, unless the only value of that key was
None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from harness.core.checks import CheckId
from harness.judge.case import names
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.points.agreement import Agreement
from harness.judge.points.ground_truth import Truth

CHECK: Final[CheckId] = "keys"
NONE = "NoneType"
NOOP = "the mode of the run is noop"
"""Prefix of the reason recorded for a run in noop mode, which does not send anything."""
OFF = "sync_process_enabled is False"
"""Prefix of the reason recorded for a run without an upload process, which does not send anything."""
_UPLOADS_OFF = "remove sync_process_enabled from the settings: without the sync process, nothing is uploaded"
_NO_CPU_FREQUENCY = (
    "the kernel reports no CPU frequency, so the recorder gave 0 MHz to the client of {}: on such a machine,"
    " pluto.init of pluto-ml 0.0.29 raises ValueError without the harness"
)
SHOWN_KEYS = 3
Records = dict[int, Truth | None]
"""Maps each rank to the record from the recorder that wraps its Pluto client, or to None if there is none."""


@dataclass(frozen=True)
class Omission:
    """Values for one key that the client omitted for one reason."""

    rank: int
    key: str
    type: str
    why: str
    count: int
    first: str
    last: str

    @property
    def steps(self) -> str:
        """Return the omission's range of steps as text."""
        return f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"


def recorders(agreement: Agreement) -> Records:
    """Map each rank to the record from the recorder that wraps its client, or to None if there is none."""
    seconds = {own.rank: other for own, other in agreement.pairs}
    return {
        truth.rank: seconds.get(truth.rank) or (truth if truth.outside else None)
        for truth in agreement.truths
    }


def omissions(agreement: Agreement) -> list[Omission]:
    """Return the values omitted by the ranks' clients, except intended omissions."""
    records = recorders(agreement)
    return [omission for omission in _all(records) if not _intended(records, omission)]


def _all(records: Records) -> Iterable[Omission]:
    for rank, truth in records.items():
        for attempt in truth.attempts if truth is not None else ():
            for (key, kind, reason), (count, first, last) in attempt.omissions.items():
                yield Omission(rank, key, kind, reason, count, first, last)


def _intended(records: Records, omission: Omission) -> bool:
    """Return whether the omission is intended: the key's only value was None, or the rank does not upload."""
    truth = records[omission.rank]
    assert truth is not None
    if omission.why.startswith(NOOP):
        return not truth.count and not any(a.account and a.account.logged for a in truth.attempts)
    has_other = any(
        other[0] == omission.key and other[1] != NONE for a in truth.attempts for other in a.omissions
    )
    return omission.type == NONE and not has_other and omission.key not in truth.metrics


def check(agreement: Agreement, apart: bool = False) -> Finding:
    """Run the `keys` check: each rank's value counts add up, and the client omitted no value unintentionally.

    `apart` means that the ranks did not form one world. Some of them may then never have run.
    """
    records = recorders(agreement)
    refs = [truth.path for truth in records.values() if truth is not None]
    if omitted := omissions(agreement):
        ranks = {one.rank for one in omitted}
        return not_passed(
            CHECK,
            "unification.client_rewrote",
            f"Pluto's client did not log {_values(sum(one.count for one in omitted))} of {names(ranks)}",
            details=reasons(omitted),
            ranks=ranks,
            evidence=[truth.path for rank, truth in records.items() if rank in ranks and truth is not None],
            advice=_UPLOADS_OFF if all(one.why.startswith(OFF) for one in omitted) else "",
        )
    unaccounted = {rank: reason for rank, truth in records.items() if (reason := _open(truth))}
    if apart and unaccounted and all(records[rank] is None for rank in unaccounted):
        return unknown(CHECK, "not judged: the ranks did not form one world", ranks=unaccounted)
    if unaccounted:
        return not_passed(
            CHECK,
            "unification.truth_incomplete",
            f"it is not known what happened to every value that {names(unaccounted)} passed to run.log",
            details=[f"rank {rank}: {reason}" for rank, reason in unaccounted.items()],
            ranks=unaccounted,
            evidence=refs,
        )
    accounts = [
        attempt.account
        for truth in records.values()
        if truth is not None
        for attempt in truth.attempts
        if attempt.account is not None
    ]
    return passed(
        CHECK,
        f"{sum(account.handed for account in accounts)} keys × steps",
        refs,
        details=_notes(records),
    )


def reasons(omitted: Iterable[Omission]) -> list[str]:
    """Return one clause per reason, with the affected keys and the number of values."""
    by_reason: dict[str, list[Omission]] = {}
    for one in omitted:
        by_reason.setdefault(one.why, []).append(one)
    return [f"{reason}: {_keys(entries)}" for reason, entries in by_reason.items()]


def _keys(entries: list[Omission]) -> str:
    by_key: dict[str, Omission] = {}
    for entry in entries:
        by_key.setdefault(entry.key, entry)
    examples = [
        f"{e.key!r} ({e.type}) at {e.steps} of rank {e.rank}" for e in list(by_key.values())[:SHOWN_KEYS]
    ]
    remaining = len(by_key) - SHOWN_KEYS
    suffix = f" and {counted(remaining, 'more key')}" if remaining > 0 else ""
    return f"{', '.join(examples)}{suffix} ({_values(sum(e.count for e in entries))})"


def _values(count: int) -> str:
    return counted(count, "value")


def _open(truth: Truth | None) -> str:
    """Return the reason why the rank's value counts do not add up, or "" if they do."""
    if truth is None:
        return "no recorder ran around its client"
    if truth.incomplete:
        return truth.incomplete
    for attempt in truth.attempts:
        account = attempt.account
        is_last = attempt is truth.own[-1] and not truth.scaled_down
        if account is None and attempt.end is None and not is_last and not attempt.is_child:
            # The attempt was killed. Only omissions can be missing, because they are recorded after the call.
            continue
        if account is None:
            return "its recorder did not write its final counts of the values"
        if account.unseen:
            return account.unseen
        explained = sum(count for count, _, _ in attempt.omissions.values())
        if account.handed != account.logged + account.left or account.left != explained:
            return (
                f"run.log received {_values(account.handed)}: {account.logged} logged and {account.left} "
                f"omitted, with a recorded reason for {explained}"
            )
    return ""


def _notes(records: Records) -> list[str]:
    """Return notes for a PASS, on intended omissions and on values that were logged without run.log."""
    none_only = [omission for omission in _all(records) if omission.type == NONE]
    noop = [omission for omission in _all(records) if omission.why.startswith(NOOP)]
    notes = [f"only ever None, so not logged: {_keys(none_only)}"] if none_only else []
    notes += [f"{NOOP}: {_keys(noop)}"] if noop else []
    bypassing = {
        rank: count
        for rank, truth in records.items()
        if truth is not None
        and (count := sum(attempt.account.past for attempt in truth.attempts if attempt.account))
    }
    notes += [f"rank {rank} logged {_values(count)} without run.log" for rank, count in bypassing.items()]
    affected_ranks = [
        rank
        for rank, truth in records.items()
        if truth is not None
        and not all(one.cpu_frequency for attempt in truth.attempts for one in attempt.settings)
    ]
    return notes + ([_NO_CPU_FREQUENCY.format(names(affected_ranks))] if affected_ranks else [])
