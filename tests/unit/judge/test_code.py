"""The code that ran must be the code that was sent: every file, image and package, on every rank and in every
attempt."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import bundles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_jobs import NIGHTLY, slow

from harness.evidence import Bundle
from harness.evidence.schema.bundle import SentCode, Verdict
from harness.evidence.schema.ground_truth import TruthCode
from harness.faults.fault_file import catalogue
from harness.faults.recorded_bundles import extract
from harness.judge import judge

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
FILES = {"/workspace/multinode.py": A, "/workspace/parts/steps.py": B}
IMAGE_ID = f"sha256:{C}"
SENT = SentCode(
    files=FILES,
    mounted=["/workspace/parts/steps.py"],
    whole=["/workspace"],
    image="worker:1",
    ours=True,
    image_id=IMAGE_ID,
    versions={"pluto": "0.0.29"},
)
STACK = {
    "image": "worker:1",
    "python": "3.13.5",
    "packages": A,
    "torch": "2.9.1",
    "torch_loaded": "2.9.1+cpu",
    "pluto": "0.0.29",
    "pluto_files": B,
}
Facts = list[tuple[str, str, str]]


def code_facts(last: bool = False) -> Facts:
    """Return the code facts that a rank of SENT reports at its start or at its end."""
    files = [("file", path, digest) for path, digest in FILES.items()]
    whole = [] if last else [("whole", "", "")]
    ran = [("ran", path, digest) for path, digest in FILES.items()]
    stack = [("stack", name, value) for name, value in STACK.items() if not (last and name == "packages")]
    return [*files, *whole, *ran, *stack]


def job(sent: SentCode = SENT, **facts: Facts) -> bundles.Job:
    """Return a healthy job. `facts` replaces the facts that rank 1 reports at its start (`first`) or its end
    (`last`)."""
    made = bundles.healthy()
    made.manifest = made.manifest.model_copy(update={"code": sent})
    for rank, lines in made.truth.items():
        mine = facts if rank == 1 else {}
        lines.insert(0, TruthCode(facts=mine.get("first", code_facts())))
        lines.insert(-1, TruthCode(facts=mine.get("last", code_facts(last=True))))
    for kind, seen in made.objects:
        if kind == "pod":
            for status in seen.object["status"].get("containerStatuses", []):
                status["imageID"] = IMAGE_ID
    return made


def replaced(facts: Facts, what: str, name: str, value: str) -> Facts:
    return [(w, n, value if (w, n) == (what, name) else v) for w, n, v in facts]


def check(verdict: Verdict) -> Any:
    return next(check for check in verdict.checks if check.name == "code")


def test_what_ran_is_what_was_sent(tmp_path: Path) -> None:
    """Contract: the verdict is PASS, and one line describes the code: changed files, image and versions."""
    verdict = judge(job().write(tmp_path))
    assert verdict.verdict == "PASS"
    assert check(verdict).explanation == (
        "2 of 2 sent files ran unchanged, image worker:1, mounted over it "
        "parts/steps.py@bbbbbbbbbbbb, "
        "torch 2.9.1, pluto-ml 0.0.29, python 3.13.5"
    )


def test_a_bundle_without_what_was_sent_is_not_judged(tmp_path: Path) -> None:
    """Contract: the verdict and the checks of an older bundle do not change."""
    verdict = judge(bundles.healthy().write(tmp_path))
    assert verdict.verdict == "PASS"
    explanations = {check.name: check.explanation for check in verdict.checks}
    assert "did not record which code it sent" in explanations["code"]


SCRIPT = "/workspace/multinode.py"
CASES: dict[str, tuple[dict[str, Facts], str]] = {
    "another file ran": (
        {"first": replaced(code_facts(), "file", SCRIPT, B)},
        "rank 1: /workspace/multinode.py was sent with aaaaaaaaaaaa, but ran with bbbbbbbbbbbb",
    ),
    "it was edited while it ran": (
        {"last": [*replaced(code_facts(last=True), "ran", SCRIPT, B), ("touched", SCRIPT, "")]},
        "was sent with aaaaaaaaaaaa, but changed to bbbbbbbbbbbb while the rank ran",
    ),
    "it was edited, and put back": (
        {"last": [*code_facts(last=True), ("touched", SCRIPT, "")]},
        "written to or replaced while the rank ran, and then restored",
    ),
    "a file of the user's own was edited while it ran": (
        {"last": [*code_facts(last=True), ("touched", "/app/train.py", "")]},
        "rank 1: /app/train.py was written to or replaced while the rank ran",
    ),
    "its bytecode is of another source": (
        {"first": [*code_facts(), ("stale", SCRIPT, "")]},
        "multinode.py ran from bytecode that does not match its source",
    ),
    "it did not arrive": (
        {
            "first": [fact for fact in code_facts() if not fact[1].endswith("steps.py")],
            "last": [fact for fact in code_facts(last=True) if not fact[1].endswith("steps.py")],
        },
        "/workspace/parts/steps.py was sent with bbbbbbbbbbbb, but did not exist",
    ),
    "a file that was not sent ran": (
        {"last": [*code_facts(last=True), ("ran", "/workspace/more.py", C)]},
        "/workspace/more.py was not sent, but the rank ran a version with digest cccccccccccc",
    ),
    "another image under the tag": (
        {"first": replaced(code_facts(), "stack", "image", "worker:2")},
        "image was sent as worker:1, but is worker:2",
    ),
    "another version of the client": (
        {"first": replaced(code_facts(), "stack", "pluto", "0.0.28")},
        "pluto-ml was sent as 0.0.29, but is 0.0.28",
    ),
    "a patched client": (
        {"last": [*code_facts(last=True), ("client", "/site/pluto/op.py", "")]},
        "rank 1: pluto-ml was changed after its installation: /site/pluto/op.py",
    ),
    "the client changed": (
        {"last": replaced(code_facts(last=True), "stack", "pluto_files", C)},
        "files of pluto-ml changed while the rank ran, from bbbbbbbbbbbb to cccccccccccc",
    ),
    "another torch": (
        {
            "first": replaced(code_facts(), "stack", "torch", "2.8.0"),
            "last": replaced(code_facts(last=True), "stack", "torch", "2.8.0"),
        },
        r"the ranks differ in torch \(rank 1: 2.8.0, rank 0: 2.9.1\)",
    ),
    "other packages": (
        {"first": replaced(code_facts(), "stack", "packages", C)},
        r"the ranks differ in packages \(rank 0: aaaaaaaaaaaa, rank 1: cccccccccccc\)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_difference_is_a_mismatch_that_names_it(name: str, tmp_path: Path) -> None:
    """Contract: any difference in one rank's code is a FAIL that names the rank and the difference."""
    facts, text = CASES[name]
    verdict = judge(job(**facts).write(tmp_path))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "launch.code_mismatch")
    assert 1 in verdict.ranks
    assert re.search(text, verdict.explanation), verdict.explanation
    assert any(ref.startswith("truth/1.jsonl:") for ref in verdict.evidence)


def test_a_pod_that_got_another_image(tmp_path: Path) -> None:
    """Contract: the image id in the pod's status counts, and not the id that the image reports."""
    made = job()
    for kind, seen in made.objects:
        if kind == "pod" and seen.object["metadata"]["name"] == made.pod_name(1):
            for status in seen.object["status"].get("containerStatuses", []):
                status["imageID"] = f"sha256:{A}"
    verdict = judge(made.write(tmp_path))
    assert (verdict.cause, verdict.ranks) == ("launch.code_mismatch", [1])
    assert "worker:1 was sent as cccccccccccc, but the pods got aaaaaaaaaaaa" in verdict.explanation


@pytest.mark.parametrize("ids", [(f"sha256:{A}", f"sha256:{B}"), (f"r/w@sha256:{A}", f"r/w@sha256:{B}")])
def test_pods_of_one_launch_with_different_images(ids: tuple[str, str], tmp_path: Path) -> None:
    """Contract: if the id of the sent image is not known, the pods must still have the same image."""
    made = job(SENT.model_copy(update={"image_id": None, "ours": False}))
    for kind, seen in made.objects:
        for status in seen.object["status"].get("containerStatuses", []) if kind == "pod" else []:
            status["imageID"] = ids[seen.object["metadata"]["name"] == made.pod_name(1)]
    verdict = judge(made.write(tmp_path))
    assert (verdict.cause, verdict.ranks) == ("launch.code_mismatch", [0, 1])
    assert "the pods got different images under worker:1" in verdict.explanation


def fetched(pod: dict[str, Any], commit: str, source: str = "git") -> None:
    """Add the init container that fetches the code in a TorchrunJob's pod, and the commit that it fetched."""
    env = {"git": [{"name": "SHARED"}, {"name": "REF", "value": "main"}], "s3": [{"name": "SHARED"}]}
    init = {"name": "workspace", "env": env.get(source, [])}
    pod["spec"]["initContainers"] = [init]
    ended = {"terminated": {"exitCode": 0, "message": f"{commit}\n"}}
    pod["status"]["initContainerStatuses"] = [{"name": "workspace", "state": ended}]


@pytest.mark.parametrize("source", ["git", "s3"])
@pytest.mark.parametrize("sent", [SENT, None])
def test_branch_that_moved_between_attempts(sent: SentCode | None, source: str, tmp_path: Path) -> None:
    """Contract: each new pod fetches the branch again. If the pods fetched two commits, the verdict is not
    PASS."""
    made = job()
    made.manifest = made.manifest.model_copy(update={"code": sent})
    for kind, seen in made.objects:
        if kind == "pod":
            again = seen.object["metadata"]["name"] == made.pod_name(1)
            fetched(seen.object, "a" * 40 if again else "b" * 40, source)
    verdict = judge(made.write(tmp_path))
    assert (verdict.cause, verdict.ranks) == ("launch.code_mismatch", [0, 1])
    assert f"(rank 0: {'b' * 12}, rank 1: {'a' * 12})" in check(verdict).explanation
    assert ("main" in check(verdict).explanation) == (source == "git")


@pytest.mark.parametrize(("source", "commits"), [("git", "aa"), ("zip", "ab")])
def test_same_commit_and_code_that_user_synced_pass(source: str, commits: str, tmp_path: Path) -> None:
    """Contract: code that the user synced is not a mismatch."""
    made = job()
    for kind, seen in made.objects:
        if kind == "pod":
            again = seen.object["metadata"]["name"] == made.pod_name(1)
            fetched(seen.object, commits[again] * 40, source)
    assert judge(made.write(tmp_path)).verdict == "PASS"


def test_image_that_one_node_had_and_other_pulled(tmp_path: Path) -> None:
    """Contract: a registry digest and a local image id cannot be compared, so they are not a mismatch."""
    made = job(SENT.model_copy(update={"image_id": None, "ours": False}))
    for kind, seen in made.objects:
        for status in seen.object["status"].get("containerStatuses", []) if kind == "pod" else []:
            if seen.object["metadata"]["name"] == made.pod_name(1):
                status["imageID"] = f"r/w@sha256:{A}"
    assert judge(made.write(tmp_path)).verdict == "PASS"


def test_a_rank_that_does_not_report_its_code(tmp_path: Path) -> None:
    """Contract: if a rank's code is not known, the verdict is UNKNOWN."""
    made = job()
    made.truth[1] = [line for line in made.truth[1] if not isinstance(line, TruthCode)]
    verdict = judge(made.write(tmp_path))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "run.evidence_missing", [1])
    assert "Rank 1 did not report which code ran" in verdict.explanation


@pytest.mark.parametrize("facts", [[("error", "PermissionError", "no")], []])
def test_a_rank_that_could_not_look(facts: Facts, tmp_path: Path) -> None:
    """Contract: the verdict states only that the code is not known."""
    verdict = judge(job(first=facts, last=[]).write(tmp_path))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "run.evidence_missing", [1])


def test_an_image_and_worker_of_the_users_own(tmp_path: Path) -> None:
    """Contract: if no code was sent, a recorder that reports no code is not held against the run."""
    made = job(SentCode(image="mine:1"))
    for rank, lines in made.truth.items():
        made.truth[rank] = [line for line in lines if not isinstance(line, TruthCode)]
    verdict = judge(made.write(tmp_path))
    assert verdict.verdict == "PASS"
    assert check(verdict).explanation == "No files were sent, image mine:1, no rank reported its code"


def test_files_of_the_users_own_image_are_no_mismatch(tmp_path: Path) -> None:
    """Contract: additional files are a mismatch only in a folder that the harness alone has filled."""
    more = [*code_facts(last=True), ("ran", "/workspace/more.py", C), ("client", "/site/pluto/op.py", "")]
    sent = SENT.model_copy(update={"whole": [], "ours": False})
    assert judge(job(sent, last=more).write(tmp_path)).verdict == "PASS"


def test_a_report_that_was_cut_proves_no_missing_file(tmp_path: Path) -> None:
    """Contract: a file counts as missing only if the rank reported all of its files."""
    few = [fact for fact in code_facts() if fact[0] != "whole" and not fact[1].endswith("steps.py")]
    last = [fact for fact in code_facts(last=True) if not fact[1].endswith("steps.py")]
    assert judge(job(first=few, last=last).write(tmp_path)).verdict == "PASS"


# -- properties --------------------------------------------------------------------------------------------
PASSES = sorted(
    name
    for name, fault in catalogue().items()
    if fault.expect is not None
    and fault.expect.verdict == "PASS"
    and fault.job.manifest != "netcheck.yaml"  # Its pods log nothing.
    and Path(f"tests/recorded/{name}.tar.xz").is_file()
)
ROOT = tempfile.TemporaryDirectory(prefix="code-")


@cache
def upgraded(name: str) -> Path:
    """Return a recorded bundle with a PASS, with code facts added, as if the harness had recorded them."""
    bundle = extract(Path(f"tests/recorded/{name}.tar.xz"), Path(ROOT.name) / name)
    manifest = json.loads((bundle / "manifest.json").read_text())
    pods = (bundle / "objects/pod.jsonl").read_text()
    ids = set(re.findall(r'"imageID":"(sha256:\w+)"', pods))
    sent = SENT.model_copy(update={"image_id": ids.pop() if len(ids) == 1 else None})
    manifest["code"] = sent.model_dump()
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    first, last = (TruthCode(facts=code_facts(late)).model_dump_json() for late in (False, True))
    for path in (bundle / "truth").glob("*.jsonl"):
        lines: list[str] = []
        for line in path.read_text().splitlines():
            kind = json.loads(line)["kind"]
            if kind == "code":  # what the recorded rank told itself
                continue
            if not lines and kind != "start":
                lines.append(first)
            lines += [line, first] if kind == "start" else [last, line] if kind == "end" else [line]
        path.write_text("\n".join(lines) + "\n")
    return bundle


@contextmanager
def copied(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(upgraded(name), Path(folder) / "bundle"))


@pytest.mark.parametrize("name", PASSES)
def test_a_recorded_pass_with_its_code_is_a_pass(name: str) -> None:
    """Contract: the bundles to which the next property is applied are PASS."""
    verdict = judge(Bundle.open(upgraded(name)))
    assert verdict.verdict == "PASS"
    assert check(verdict).result == "PASS"


@given(st.data())
@settings(slow, max_examples=300 if NIGHTLY else 15)
def test_any_changed_digest_makes_no_pass(data: st.DataObject) -> None:
    """Property: if any digest or version, sent or reported by a rank, is changed in a healthy bundle, the
    cause is launch.code_mismatch.
    """
    name = data.draw(st.sampled_from(PASSES))
    with copied(name) as bundle:
        path = data.draw(st.sampled_from([*sorted(bundle.glob("truth/*.jsonl")), bundle / "manifest.json"]))
        # Every digest and version of `told` and SENT, wherever it is in the file.
        values = "|".join(map(re.escape, sorted({A, B, C, *STACK.values()}, key=len, reverse=True)))
        text = path.read_text()
        code = re.compile(rf'(?<=")({values})(?=")')
        places = [
            match
            for match in code.finditer(text)
            if path.name != "manifest.json" or match.start() > text.index('"code":')
        ]
        match = data.draw(st.sampled_from(places))
        old = match[0]
        at = data.draw(st.integers(0, len(old) - 1))
        new = data.draw(st.sampled_from("0123456789abcdef").filter(lambda digit: digit != old[at]))
        path.write_text(text[: match.start() + at] + new + text[match.start() + at + 1 :])
        verdict = judge(Bundle.open(bundle))
        assert (verdict.verdict, verdict.cause) == ("FAIL", "launch.code_mismatch"), (path.name, old, at, new)
