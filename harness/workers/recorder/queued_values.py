"""Record whether the Pluto client queued each value that was passed to `run.log`, and if not, why.

`leaves` lists the values in a call, a `Queue` records what the client adds to its own queue during the call,
and `Account.close_call` compares the two. The outcome is observed, not predicted. client_rules.py provides
only the wording of the reasons. This module uses only the standard library, and supports Python 3.9 and
later.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Callable  # noqa: UP035 - Python 3.9

from ..ground_truth import client_rules

MAX_DEPTH, MAX_LEAVES = 20, 10_000
"""Maximum nesting depth of the containers in a value, and maximum number of their leaves. Anything beyond
these limits is not examined."""
MAX_ENTRIES = 1000
"""Maximum number of entries for dropped values. Each combination of key and reason has its own entry. Values
beyond the maximum share one entry."""
METRIC = 0
"""The value that marks metrics in the client's queue: RecordType.METRIC in pluto.sync.store."""
NOT_QUEUED = "the client did not queue the value"


class Queued:
    """The data that the client queued during one `log` call: numbers keyed by metric, and other values."""

    __slots__ = ("metrics", "others", "steps")

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.steps: list[Any] = []
        self.others: list[tuple[str, Any]] = []


class Queue:
    """Records what the client adds to a run's queue (pluto.sync.store.SyncStore)."""

    def __init__(
        self,
        store: Any,
        queued_directly: Callable[[Mapping[str, Any], Any, Any], None],
        queued: Callable[[Mapping[str, Any], Any, Any], None] | None = None,
    ) -> None:
        """Wrap the methods of `store`. Raises AttributeError if it is not the queue of a supported client.

        `queued_directly` is called for each record that is queued outside a `log` call, with the record's
        numbers, step and time (ms). `queued` is called with the same arguments after each record has been
        queued.
        """
        self._calls = threading.local()
        enqueue, batch, file = store.enqueue, store.enqueue_batch, store.enqueue_file

        def enqueue_(
            run_id: str, record_type: int, payload: Any, timestamp_ms: int, step: Any = None, **options: Any
        ) -> Any:
            if self._call is None and record_type == METRIC:
                queued_directly(payload, step, timestamp_ms)
            result = enqueue(run_id, record_type, payload, timestamp_ms, step, **options)
            self._record(record_type, payload, step)
            if queued is not None and record_type == METRIC:
                queued(payload, step, timestamp_ms)
            return result

        def batch_(records: Any, *rest: Any, **keywords: Any) -> Any:
            for _, kind, payload, time_ms, step in records:
                if kind == METRIC:
                    queued_directly(payload, step, time_ms)
            result = batch(records, *rest, **keywords)
            for _, kind, payload, time_ms, step in records:
                if queued is not None and kind == METRIC:
                    queued(payload, step, time_ms)
            return result

        def file_(*arguments: Any, **keywords: Any) -> Any:
            result = file(*arguments, **keywords)
            if (call := self._call) is not None:
                call.others.append((keywords.get("log_name", ""), None))
            return result

        store.enqueue, store.enqueue_batch, store.enqueue_file = enqueue_, batch_, file_

    @property
    def _call(self) -> Queued | None:
        return getattr(self._calls, "now", None)

    def begin(self) -> Queued:
        """Start collecting the data that this thread queues. Return the object with the collected data."""
        self._calls.now = queued = Queued()
        return queued

    def stop(self) -> None:
        self._calls.now = None

    def _record(self, record_type: int, payload: Any, step: Any) -> None:
        call = self._call
        if call is None:
            return
        if record_type == METRIC:
            call.metrics.update(payload)
            call.steps.append(step)
        elif isinstance(payload, dict) and "log_name" in payload:
            call.others.append((payload["log_name"], payload.get("data")))


class Leaf:
    """One value passed to `log`, with its key. `number` is None if the value is not a number."""

    __slots__ = ("depth", "kind", "last", "name", "number", "path", "value")

    def __init__(self, name: str, path: str, value: Any, number: Any, *, depth: int = 0, last: bool = True):
        self.name, self.path, self.value, self.number = name, path, value, number
        self.depth, self.last = depth, last
        self.kind = type(value).__name__


def leaves(name: Any, value: Any, read: Callable[[Any], Any]) -> list[Leaf]:
    """Return the leaves of a value: the value itself, or the innermost items if it is a container.

    `read` returns the number that the client reads from a leaf, or None.
    """
    result: list[Leaf] = []
    text = name if isinstance(name, str) else repr(name)[:80]
    if isinstance(value, list):
        for item in value:
            _nested(text, text, item, 1 if isinstance(item, list) else 0, read, result, set())
        numbers = [leaf for leaf in result if leaf.depth == 0 and leaf.number is not None]
        for leaf in numbers[:-1]:
            leaf.last = False
        return result or [Leaf(text, text, value, None)]
    _nested(text, text, value, 0, read, result, set())
    return result


def _nested(
    name: str, path: str, value: Any, depth: int, read: Any, collected: list[Leaf], ancestors: set[int]
) -> None:
    inner = None
    if depth < MAX_DEPTH and len(collected) < MAX_LEAVES and id(value) not in ancestors:
        inner = _inner(value)
    if inner is None:
        collected.append(Leaf(name, path, value, read(value) if depth == 0 else None, depth=depth))
        return
    count = len(collected)
    for key, item in inner:
        _nested(name, f"{path}.{str(key)[:80]}", item, depth + 1, read, collected, ancestors | {id(value)})
        if len(collected) >= MAX_LEAVES:
            break
    if len(collected) == count:
        collected.append(Leaf(name, path, value, None, depth=depth))


def _inner(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Return the entries of a container, or None for a leaf. Iterators are leaves and are not consumed."""
    if isinstance(value, (str, bytes, int, float)) or value is None:
        return None
    kind = type(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((number, item) for number, item in enumerate(value))
    has_items = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    if isinstance(value, Mapping) or (has_items and hasattr(kind, "items") and not hasattr(kind, "item")):
        try:
            return iter(list(value.items()))
        except Exception:
            return None
    return None


class Account:
    """Counts the values that one process passed to the client, by outcome. Not thread-safe."""

    def __init__(self, report_new: Callable[[list[Any]], None]) -> None:
        """`report_new` is called with each new entry, that is, for each new combination of key and reason."""
        self.handed = self.logged = self.past = 0
        self.unseen = ""
        """The reason why the client's queue could not be watched, or "" if it is watched."""
        self._report_new = report_new
        self._dropped: dict[tuple[str, str, str], list[Any]] = {}
        """Maps (key, type, reason) to [key, type, reason, count, first step, last step]."""
        self._queued = False
        """Whether the client has queued at least one value."""

    def same(self, data: Mapping[str, Any], queued: Queued, step: Any) -> bool:
        """Return whether the client queued exactly the call's numbers. If so, count them."""
        if queued.metrics != data or len(queued.steps) != 1 or type(step) is not int or step < 0:
            return False
        if queued.steps[0] != step or step > client_rules.MAX_STEP:
            return False
        self._queued = True
        self.handed += len(data)
        self.logged += len(data)
        return True

    def close_call(
        self,
        passed: list[Leaf],
        queued: Queued | None,
        step: Any,
        unsent_reason: str,
        raised: Exception | None,
    ) -> None:
        """Compare a call's values with those that the client queued, and count the outcomes.

        `unsent_reason` is the reason why this run queues nothing, or "" if it queues points. `raised` is the
        exception that the client raised, or None.
        """
        self._queued |= queued is not None and bool(queued.metrics or queued.others)
        refused_reason = client_rules.refused(step)
        moved_reason = self._moved_reason(queued, step)
        other_entries = list(queued.others) if queued is not None else []
        # Determine the names that the client merges only if needed, because `log` calls are frequent.
        merged: set[str] | None = None
        for leaf in passed:
            self.handed += 1
            reason = ""
            if not self._is_there(leaf, queued, other_entries):
                merged = _merged_names(passed) if merged is None else merged
                reason = self._drop_reason(leaf, unsent_reason, raised, merged)
            elif refused_reason or moved_reason:
                reason = refused_reason or moved_reason
            if reason:
                self._drop(leaf.path, leaf.kind, reason, step)
            else:
                self.logged += 1

    def queued_without_log(self, count: int) -> None:
        """Count numbers that were queued without `run.log`."""
        self.past += count
        self._queued = True

    def frames(self) -> tuple[list[list[Any]], dict[str, Any]]:
        """Return the entries for dropped values, one per key and reason, and the totals."""
        entries = list(self._dropped.values())
        unseen_reason = self.unseen
        not_queued = [e for e in entries if e[2] == NOT_QUEUED]
        if not_queued and not self._queued:
            unseen_reason = unseen_reason or "no value was ever observed in the client's queue"
        totals = {"handed": self.handed, "logged": self.logged, "past": self.past, "unseen": unseen_reason}
        return entries, {**totals, "left": sum(entry[3] for entry in entries)}

    @staticmethod
    def _moved_reason(queued: Queued | None, step: Any) -> str:
        steps = queued.steps if queued is not None else []
        other = [one for one in steps if client_rules.whole(one) != client_rules.whole(step)]
        return f"the client queued it with step {str(other[0])[:40]}" if other else ""

    @staticmethod
    def _is_there(leaf: Leaf, queued: Queued | None, other_entries: list[tuple[str, Any]]) -> bool:
        if queued is None or leaf.depth:
            return False
        for name in (leaf.name, client_rules.sent_name(leaf.name)):
            if leaf.number is not None:
                if leaf.last and name in queued.metrics:
                    return _equal(queued.metrics[name], leaf.number)
                continue
            for entry in other_entries:
                if entry[0] == name and (not isinstance(leaf.value, str) or entry[1] == leaf.value):
                    other_entries.remove(entry)
                    return True
        return False

    @staticmethod
    def _drop_reason(leaf: Leaf, unsent_reason: str, raised: Exception | None, merged: set[str]) -> str:
        if unsent_reason:
            return unsent_reason
        if raised is not None:
            return f"the client raised {type(raised).__name__}: {str(raised)[:160]}"
        if not leaf.last:
            return "of several numbers in a list, the client keeps only the last"
        if leaf.depth:
            return "the client leaves out everything that is nested in a value"
        if leaf.number is not None and not isinstance(leaf.number, bool):
            sent_name = client_rules.sent_name(leaf.name)
            is_merged = sent_name in merged
            return (
                f"the client gives this metric and another one the same name, {sent_name!r}"
                if is_merged
                else NOT_QUEUED
            )
        return client_rules.sent(leaf.value).why or NOT_QUEUED

    def _drop(self, key: str, kind: str, reason: str, step: Any) -> None:
        identity = (key[:400], kind, reason[:300])
        entry = self._dropped.get(identity)
        if entry is None and len(self._dropped) >= MAX_ENTRIES:
            identity = ("…", "", "all further keys and reasons")
            entry = self._dropped.get(identity)
        at = str(step)[:40]
        if entry is not None:
            entry[3], entry[5] = entry[3] + 1, at
            return
        entry = self._dropped[identity] = [*identity, 1, at, at]
        if reason != NOT_QUEUED or self._queued:
            self._report_new(entry)


def _merged_names(passed: list[Leaf]) -> set[str]:
    """Return the metric names that the client sends for more than one of a call's numbers."""
    numbers = (leaf for leaf in passed if leaf.number is not None and leaf.last and not leaf.depth)
    counts = Counter(client_rules.sent_name(leaf.name) for leaf in numbers)
    return {name for name, count in counts.items() if count > 1}


def _equal(queued: Any, number: Any) -> bool:
    """Return whether the queued value equals the number.

    Returns False for a bool, which is dropped at upload.
    """
    if isinstance(queued, bool) or not isinstance(queued, (int, float)):
        return False
    return queued is number or queued == number or (queued != queued and number != number)  # noqa: PLR0124
