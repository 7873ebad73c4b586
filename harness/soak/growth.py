"""Find leaks, that is, growth during a soak that the number of launches does not explain."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

MIB = 2**20


class Snapshot(BaseModel):
    """Measurements before or after the launches.

    `things` maps each kind of object to object names. `sizes` maps each consumer of memory or disk space to a
    number of bytes.
    """

    things: dict[str, list[str]]
    sizes: dict[str, int]


class Growth(BaseModel):
    """The growth of one measurement. `leak` describes excessive growth, and is empty if there is none."""

    what: str
    before: str
    after: str
    allowed: str
    leak: str = ""


class Allowed(BaseModel):
    """The growth that is expected after the launches, and is therefore not a leak."""

    more: dict[str, tuple[int, str]]
    """Maps a kind of object to the maximum number of such objects after the soak, and the reason why they are
    allowed."""
    bytes: dict[str, tuple[int, float, str]]
    """Maps a name prefix in `sizes` to (bytes, fraction, reason).

    The allowed growth is the number of bytes or the fraction of the initial size, whichever is larger.
    """


def explained(launches: int, parallel: int, namespaces: int) -> Allowed:
    """Return the growth that is expected for the given number of launches."""
    disk = 256 * MIB + launches * 2 * MIB
    return Allowed(
        more={
            "launch namespaces": (
                namespaces + parallel,
                f"the newest {namespaces} are kept, and those of the last {parallel} may remain",
            )
        },
        bytes={
            "memory of node": (384 * MIB, 0.25, "the caches of the API server and etcd fill up"),
            "memory of pod": (48 * MIB, 0.25, "caches fill up with the first launches"),
            "disk of node": (disk, 0, "logs, etcd and the tracker's rows, 2 MiB per launch"),
            "disk of state": (MIB, 0, "the discovery cache"),
        },
    )


def compare(before: Snapshot, after: Snapshot, allowed: Allowed) -> list[Growth]:
    """Return the growth of each measurement, with objects first and sizes after them."""
    growth = []
    for kind, names in after.things.items():
        names_before = before.things.get(kind, [])
        new = sorted(set(names) - set(names_before))
        limit, reason = allowed.more.get(kind, (None, "none"))
        has_leak = len(names) > max(limit, len(names_before)) if limit is not None else bool(new)
        rest = f" and {len(new) - 5} more" if len(new) > 5 else ""
        growth.append(
            Growth(
                what=kind,
                before=str(len(names_before)),
                after=str(len(names)),
                allowed=reason if limit is None else f"at most {limit}: {reason}",
                leak=f"{kind}: {', '.join(new[:5])}{rest}" if has_leak else "",
            )
        )
    return growth + _sizes(before.sizes, after.sizes, allowed)


def _sizes(before: Mapping[str, int], after: Mapping[str, int], allowed: Allowed) -> list[Growth]:
    growth = []
    for name, size in after.items():
        first = before.get(name, 0)
        minimum, share, reason = next(
            (rule for start, rule in allowed.bytes.items() if name.startswith(start)), (0, 0.0, "nothing")
        )
        limit = max(minimum, int(first * share))
        increase = size - first
        growth.append(
            Growth(
                what=name,
                before=mib(first),
                after=mib(size),
                allowed=f"+{mib(limit)}: {reason}",
                leak=f"{name} grew by {mib(increase)}" if increase > limit else "",
            )
        )
    return growth


def mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
