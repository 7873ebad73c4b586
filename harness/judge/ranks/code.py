"""Judge whether the ranks ran the code that was sent: files, image, torch and the Pluto client.

The manifest lists the code that was sent. Each attempt of a rank reports the code that it runs
(workers/ground_truth/code_digest.py), and each pod's status contains its image id. If the manifest does not
list any code, the check passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from harness.core.checks import CheckId
from harness.evidence.kubernetes.objects import items
from harness.evidence.schema.bundle import SentCode
from harness.judge.case import Case, names
from harness.judge.catalogue import RUNNING, START
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.points.ground_truth import Attempt, Truth

CHECK: Final[CheckId] = "code"
_SAME = ("image", "python", "packages", "torch", "torch_loaded", "pluto", "pluto_files")
"""Properties of the code that must be the same on all ranks, most general first."""
_NAMES = {"pluto": "pluto-ml", "pluto_files": "files of pluto-ml", "torch_loaded": "loaded torch"}

_WORKSPACE, _FETCHES = "workspace", "SHARED"
"""The init container that fetches a TorchrunJob's code, and a variable that this container has only if the
code comes from git or S3 (torchrun_controller/objects/workspace.py)."""


@dataclass
class Ran:
    """The code reported by one attempt of a rank."""

    rank: int
    files: dict[str, set[str]] = field(default_factory=dict)
    """Maps the path of each file to its SHA-256 values at process startup."""
    ran: dict[str, set[str]] = field(default_factory=dict)
    """Maps the path of each file that the process imported to the SHA-256 values that the file had later."""
    touched: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    client: set[str] = field(default_factory=set)
    stack: dict[str, str] = field(default_factory=dict)
    became: dict[str, str] = field(default_factory=dict)
    """The new values of entries in `stack` that changed later."""
    whole: bool = False
    """Whether `files` is complete."""
    error: str = ""
    refs: list[str] = field(default_factory=list)


@dataclass
class _Difference:
    """A difference in the code of one or more ranks. `late` is True if the code changed after startup."""

    late: bool = False
    ranks: set[int] = field(default_factory=set)
    refs: dict[str, None] = field(default_factory=dict)


def check(case: Case, truths: list[Truth], second_truths: Iterable[Truth] = ()) -> Finding:
    """Run the `code` check: the ranks ran the code that the manifest lists as sent.

    `second_truths` contains the records from a second recorder in the same processes. Both recorders must
    report the code that was sent.
    """
    sent_code = case.manifest.code
    if (finding := _fetched(case)) is not None:
        return finding
    if sent_code is None:
        return passed(CHECK, "the harness that wrote this bundle did not record which code it sent")
    all_truths = [*truths, *second_truths]
    reports = [read(truth, attempt) for truth in all_truths for attempt in truth.attempts if attempt.code]
    differences: dict[str, _Difference] = {}
    for report in reports:
        for text, while_running in [*_of_files(sent_code, report), *_of_stack(sent_code, report)]:
            one = differences.setdefault(text, _Difference(while_running))
            one.ranks.add(report.rank)
            one.refs.update(dict.fromkeys(report.refs))
    for text, ranks, refs in _of_pods(case, sent_code):
        differences[text] = _Difference(False, set(ranks), dict.fromkeys(refs))
    if not differences:  # Differences from the sent code explain all differences between ranks.
        differences = {
            text: _Difference(False, set(ranks), dict.fromkeys(refs))
            for text, ranks, refs in _between(reports)
        }
    if differences:
        return _mismatch(differences)
    return _silent(sent_code, truths, reports) or passed(
        CHECK, _code_summary(sent_code, reports), sorted(_refs(reports))
    )


def read(truth: Truth, attempt: Attempt) -> Ran:
    """Return the code that an attempt reported when it started and when it ended."""
    ran = Ran(truth.rank)
    for number, line in attempt.code:
        ran.refs.append(f"{truth.path}:{number}")
        for kind, name, value in line.facts:
            if kind == "file":
                ran.files.setdefault(name, set()).add(value)
            elif kind == "ran":
                ran.ran.setdefault(name, set()).add(value)
            elif kind == "stack":
                ran.stack[name] = ran.stack.get(name) or value
                if value and value != ran.stack[name]:
                    ran.became[name] = value
            elif kind in ("touched", "stale", "client"):
                getattr(ran, kind).add(name)
            elif kind == "whole":
                ran.whole = not attempt.gaps
            elif kind == "error":
                ran.error = f"{name}: {value}"
    return ran


def _of_files(sent_code: SentCode, report: Ran) -> Iterator[tuple[str, bool]]:
    """Yield (description, is_late) for each difference between an attempt's files and the sent files.

    `is_late` means that the difference arose after startup.
    """
    for path, digest in sent_code.files.items():
        at_startup, now = report.files.get(path, set()), report.ran.get(path, set())
        if other := at_startup - {digest}:
            circumstance = "ran with" if now else "was present with"
            yield f"{path} was sent with {_short(digest)}, but {circumstance} {_short(min(other))}", False
        elif other := now - {digest}:
            change = f"changed to {_short(min(other))}" if min(other) else "was removed or made unreadable"
            yield f"{path} was sent with {_short(digest)}, but {change} while the rank ran", True
        elif report.whole and not at_startup and not now:
            yield f"{path} was sent with {_short(digest)}, but did not exist", False
        elif path in report.touched:
            yield f"{path} was written to or replaced while the rank ran, and then restored", True
    for path, digests in report.ran.items():
        if path not in sent_code.files and path.startswith(tuple(f"{folder}/" for folder in sent_code.whole)):
            yield f"{path} was not sent, but the rank ran a version with digest {_short(min(digests))}", False
    for path in report.touched - sent_code.files.keys():
        yield f"{path} was written to or replaced while the rank ran", True
    for path in report.stale:
        yield f"{path} ran from bytecode that does not match its source", False


def _of_stack(sent_code: SentCode, report: Ran) -> Iterator[tuple[str, bool]]:
    """Yield (description, is_late) for each difference in an attempt's image, torch or client.

    `is_late` means that the difference arose after startup.
    """
    for name, value in report.became.items():
        old_value = _short(report.stack[name])
        yield (
            f"{_NAMES.get(name, name)} changed while the rank ran, from {old_value} to {_short(value)}",
            True,
        )
    if not sent_code.ours:
        return
    for path in sorted(report.client - sent_code.files.keys()):
        yield f"pluto-ml was changed after its installation: {path}", False
    for name, expected in {"image": sent_code.image, **sent_code.versions}.items():
        if expected and (actual := report.stack.get(name, expected)) != expected:
            yield f"{_NAMES.get(name, name)} was sent as {expected}, but is {actual or 'missing'}", False


def _fetched(case: Case) -> Finding | None:
    """Return a finding if the pods of a TorchrunJob fetched different commits or S3 objects, or None.

    Each new pod fetches its code again, so the pods of a later attempt may get a later commit of a branch.
    Code that a user uploads and syncs is not compared, because a sync is meant to change it.
    """
    versions: dict[str, tuple[set[int], str]] = {}
    branches: set[str] = set()
    for index, pods in case.pod_attempts.items():
        for state in (state for pod in pods for state in pod.history):
            variables = {
                str(variable.get("name")): str(variable.get("value") or "")
                for container in items(state.object, "spec", "initContainers")
                if container.get("name") == _WORKSPACE
                for variable in items(container, "env")
            }
            if _FETCHES not in variables:
                continue
            branches.update(filter(None, [variables.get("REF")]))
            for status in items(state.object, "status", "initContainerStatuses"):
                end = (status.get("state") or {}).get("terminated") or {}
                version = str(end.get("message") or "").strip()
                if status.get("name") == _WORKSPACE and end.get("exitCode") == 0 and version:
                    ranks, _ = versions.setdefault(version, (set(), state.ref))
                    ranks.update(case.ranks_of(index))
    if len(versions) < 2:
        return None
    parts = [f"{names(ranks)}: {version[:12]}" for version, (ranks, _) in versions.items()]
    source = f" of {', '.join(sorted(branches))}" if branches else ""
    text = f"the pods fetched different versions of the code{source} ({', '.join(parts)})"
    return not_passed(
        CHECK,
        "launch.code_mismatch",
        f"{text}; use a commit, which does not move" if branches else text,
        ranks=set().union(*(ranks for ranks, _ in versions.values())),
        evidence=[ref for _, ref in versions.values()],
        phase=START,
    )


def _of_pods(case: Case, sent_code: SentCode) -> Iterator[tuple[str, list[int], list[str]]]:
    """Yield each image of a pod that differs from the sent image.

    If the sent image's id is unknown, yield the differences between the pods' images instead.
    """
    ids: dict[str, tuple[set[int], list[str]]] = {}
    for index, pods in case.pod_attempts.items():
        for pod in pods:
            for state in pod.history:
                for status in items(state.object, "status", "containerStatuses"):
                    id_ = str(status.get("imageID") or "")
                    if status.get("name") == case.launch.container and id_:
                        ranks, refs = ids.setdefault(id_, (set(), []))
                        ranks.update(case.ranks_of(index))
                        refs.append(state.ref)
    # A pulled image's id is a registry digest, so it cannot be compared with the id of a loaded image.
    loaded = {id_: reports for id_, reports in ids.items() if "@" not in id_}
    for id_, (ranks, refs) in loaded.items():
        if sent_code.image_id and id_ != sent_code.image_id:
            text = f"image {sent_code.image} was sent as {_short(sent_code.image_id)}, "
            text += f"but the pods got {_short(id_)}"
            yield text, sorted(ranks), refs[:1]
    if not sent_code.image_id:
        for group in (loaded, {id_: reports for id_, reports in ids.items() if id_ not in loaded}):
            if len(group) > 1:
                parts = [f"{names(ranks)} got {_short(id_)}" for id_, (ranks, _) in group.items()]
                all_ranks = sorted({rank for ranks, _ in group.values() for rank in ranks})
                yield (
                    f"the pods got different images under {sent_code.image}: {', '.join(parts)}",
                    all_ranks,
                    [refs[0] for _, refs in group.values()],
                )


def _between(reports: list[Ran]) -> Iterator[tuple[str, list[int], list[str]]]:
    """Yield the first property in _SAME that differs between ranks.

    This difference explains those in the later properties, which are therefore not compared.
    """
    for name in _SAME:
        by_value: dict[str, set[int]] = {}
        for report in reports:
            if report.stack.get(name):
                by_value.setdefault(report.stack[name], set()).add(report.rank)
        if len(by_value) > 1:
            parts = [f"{names(ranks)}: {_short(value)}" for value, ranks in sorted(by_value.items())]
            ranks = sorted(set().union(*by_value.values()))
            yield f"the ranks differ in {_NAMES.get(name, name)} ({', '.join(parts)})", ranks, _refs(reports)
            return


def _mismatch(differences: dict[str, _Difference]) -> Finding:
    return not_passed(
        CHECK,
        "launch.code_mismatch",
        "the ranks did not run the code that was sent",
        details=[f"{names(one.ranks)}: {text}" if one.ranks else text for text, one in differences.items()],
        ranks={rank for one in differences.values() for rank in one.ranks},
        evidence=["manifest.json", *dict.fromkeys(ref for one in differences.values() for ref in one.refs)],
        phase=RUNNING if all(one.late for one in differences.values()) else START,
    )


def _silent(sent_code: SentCode, truths: list[Truth], reports: list[Ran]) -> Finding | None:
    """Return a finding if an attempt's code is unknown, or None if all attempts reported their code."""
    errors = {
        report.rank: report.error or "it listed no file"
        for report in reports
        if report.error or not report.ran
    }
    if errors:
        text = f"{names(errors)} could not report which code ran: {next(iter(errors.values()))}"
        return not_passed(CHECK, "run.evidence_missing", text, ranks=errors, evidence=_refs(reports))
    unreported = [t for t in truths if not t.attempts or any(not attempt.code for attempt in t.attempts)]
    ranks = [truth.rank for truth in unreported]
    if any(truth.incomplete for truth in unreported):
        return unknown(CHECK, f"the ground truth of {names(ranks)} is incomplete", ranks=ranks)
    if unreported and sent_code.files:
        text = f"{names(ranks)} did not report which code ran, so it may not be the code that was sent"
        return not_passed(
            CHECK, "run.evidence_missing", text, ranks=ranks, evidence=[truth.path for truth in unreported]
        )
    return None


def _code_summary(sent_code: SentCode, reports: list[Ran]) -> str:
    """Return a one-line description of the code that ran."""
    changed = [
        f"{path.removeprefix('/workspace/')}@{_short(sent_code.files[path])}" for path in sent_code.mounted
    ]
    over = f", mounted over it {', '.join(changed[:8])}" if changed else ""
    over += f" and {len(changed) - 8} more" if len(changed) > 8 else ""
    stack = {name: value for report in reports for name, value in report.stack.items() if value}
    versions = [f"{_NAMES.get(n, n)} {stack[n]}" for n in ("torch", "pluto", "python") if n in stack]
    count = len({path for report in reports for path in report.ran} & sent_code.files.keys())
    files = (
        f"{count} of {counted(len(sent_code.files), 'sent file')} ran unchanged" if sent_code.files else ""
    )
    parts = [files or "no files were sent", f"image {sent_code.image}{over}", *versions]
    return ", ".join(parts if reports else [*parts, "no rank reported its code"])


def _refs(reports: Iterable[Ran]) -> list[str]:
    return [report.refs[0] for report in reports]


def _short(digest: str) -> str:
    """Return a shortened digest. Other text is returned unchanged."""
    bare = digest.rpartition("sha256:")[2]
    return bare[:12] if len(bare) == 64 else digest or "nothing readable"
