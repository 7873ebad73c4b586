"""Past bundles: listed whatever became of them, and removed only when that is certainly right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import bundles
import pytest

from harness.core import disk_use
from harness.core.errors import HarnessError, UsageError
from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.io import runs_folder
from harness.evidence.io.runs_folder import Keep, name_latest, prune
from harness.evidence.schema.bundle import Manifest, Verdict
from harness.judge import judge

PASS = Verdict(verdict="PASS", explanation="all is well")
FAIL = Verdict(verdict="FAIL", cause="rank.crashed", explanation="boom")


def ended(runs: Path, second: int, verdict: Verdict | None = PASS, **changes: str | None) -> Path:
    """A bundle of an hour's second, as a run leaves it; `latest` names it."""
    stamp = f"{second // 60:02}{second % 60:02}"
    path = runs / f"20261121T05{stamp}Z-{second:08x}"
    path.mkdir(parents=True)
    started_at = f"2026-11-21T05:{second // 60:02}:{second % 60:02}Z"
    manifest = Manifest(nonce=f"{second:08x}", started_at=started_at, ended_at="2026-11-21T06:00:00Z")
    writer = BundleWriter(path, manifest.nonce, Redactor())
    writer.manifest(manifest.model_copy(update=changes))
    with writer.log_file("pod", "c") as log:
        log.write("x" * 5000 + "\n")
    if verdict is not None:
        writer.verdict(verdict)
    writer.close()
    name_latest(path)
    return path


def left(runs: Path) -> list[int]:
    """Seconds of the bundles that are there, by their own names."""
    return [int(one.path.name.partition("-")[2], 16) for one in runs_folder.past(runs)]


def test_a_launch_is_told(tmp_path: Path) -> None:
    """Contract: when, how long, which job, what came of it."""
    path = tmp_path / "20261121T045900Z-n0nce7f3a"
    BundleWriter(path, "n", Redactor()).verdict(judge(bundles.healthy().write(path)))
    [one] = runs_folder.past(tmp_path)
    assert (one.state, one.seconds, one.job) == ("judged", 110.0, bundles.JOBSET)
    assert one.verdict is not None
    assert one.verdict.verdict == "PASS"
    assert f"{one.started:%H:%M:%S}" == "04:59:00"
    assert one.own


def test_the_job_has_the_name_of_its_file(tmp_path: Path) -> None:
    ended(tmp_path, 1, job="main")
    assert [one.job for one in runs_folder.past(tmp_path)] == ["main"]


def _cut(path: Path) -> None:
    manifest = Manifest(nonce="0000000a", started_at="2026-11-21T05:00:10Z")
    (path / "manifest.json").write_text(manifest.model_dump_json())
    (path / "verdict.json").unlink()


@pytest.mark.parametrize(
    ("harm", "state"),
    [
        (lambda path: (path / "manifest.json").unlink(), "damaged"),
        (lambda path: (path / "manifest.json").write_text('{"nonce": '), "damaged"),
        (lambda path: (path / "verdict.json").write_bytes(b"\xff\x00"), "damaged"),
        (lambda path: (path / "verdict.json").unlink(), "not judged"),
        (_cut, "cut off"),
        (lambda path: None, "judged"),
    ],
)
def test_a_damaged_bundle_is_listed_and_never_pruned(
    tmp_path: Path, harm: Callable[[Path], None], state: str
) -> None:
    """Contract: nothing that happens to a bundle hides it or the others; and it is never removed for it."""
    for second in (5, 10, 15):
        path = ended(tmp_path, second)
        if second == 10:
            harm(path)
    assert left(tmp_path) == [5, 10, 15]
    assert runs_folder.past(tmp_path)[1].state == state
    prune(tmp_path, Keep.parse("failed"))
    assert left(tmp_path) == ([15] if state == "judged" else [10, 15])


def test_a_bundle_is_running_until_its_writer_is_done(tmp_path: Path) -> None:
    """Contract: also when its verdict stands there already, nobody removes it before."""
    writer = BundleWriter.create(tmp_path, "abcd1234", Redactor())
    [one] = runs_folder.past(tmp_path)
    assert (one.state, one.seconds) == ("running", None)
    writer.update(ended_at="2026-11-21T06:00:00Z")
    writer.verdict(PASS)
    later = ended(tmp_path, 99)
    os.utime(later)
    assert prune(tmp_path, Keep(last=0)) == []
    writer.release()
    assert [each.bundle for each in prune(tmp_path, Keep(last=0))] == [writer.path]


WRITE = "import sys; from pathlib import Path; from harness.evidence import BundleWriter, Redactor\n" + (
    "writer = BundleWriter.create(Path(sys.argv[1]), 'abcd1234', Redactor())\n"
    "print('made', flush=True); sys.stdin.read()\n"
)


def test_the_bundle_of_a_killed_harness_was_cut_off(tmp_path: Path) -> None:
    """Contract: another process's bundle is running while that process lives, and not a moment longer."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "made\n"
        assert [one.state for one in runs_folder.past(tmp_path)] == ["running"]
        other.kill()
    assert [one.state for one in runs_folder.past(tmp_path)] == ["cut off"]


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        ("all", [1, 2, 3, 4, 5]),
        ("failed", [2, 5]),
        ("last:0", [2, 5]),
        ("last:1", [2, 5]),
        ("last:2", [2, 4, 5]),
        ("last:9", [1, 2, 3, 4, 5]),
    ],
)
def test_bundles_that_passed_are_kept_as_asked(tmp_path: Path, keep: str, stay: list[int]) -> None:
    """Contract: those of others always stay, and so does the newest."""
    for second in range(1, 6):
        ended(tmp_path, second, FAIL if second == 2 else PASS)
    sizes = {one.path: disk_use.bytes_used(one.path) for one in runs_folder.past(tmp_path)}
    removed = prune(tmp_path, Keep.parse(keep))
    assert left(tmp_path) == stay
    assert Bundle.open(tmp_path / "latest").path.name.endswith("5")
    assert {each.bundle: each.bytes for each in removed} == {
        path: taken for path, taken in sizes.items() if not path.exists()
    }


@pytest.mark.parametrize("text", ["", "none", "last", "last:", "last:-1", "last:x", "failed ", "last:١"])
def test_another_word_for_keep_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="all, failed or last:N"):
        Keep.parse(text)


def test_nothing_but_own_bundles_is_removed(tmp_path: Path) -> None:
    """Contract: renamed bundles, links and what they lead to, folders and files of others stay."""
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    ended(runs, 1).rename(runs / "the-good-one")
    moved = ended(elsewhere, 2)
    (runs / moved.name).symlink_to(moved)
    holding = ended(runs, 3)
    (holding / "logs" / "out").symlink_to(elsewhere)
    (runs / "soak-20261121T050000Z-ab").mkdir()
    (runs / "20261121T050500Z-notes.txt").write_text("mine")
    ended(runs, 4).rename(runs / "20261121T050004Z-ffffffff")
    ended(runs, 5)
    removed = prune(runs, Keep(last=0))
    assert [each.bundle for each in removed] == [holding]
    assert sorted(path.name for path in runs.iterdir()) == [
        "20261121T050002Z-00000002",
        "20261121T050004Z-ffffffff",
        "20261121T050005Z-00000005",
        "20261121T050500Z-notes.txt",
        "latest",
        "soak-20261121T050000Z-ab",
        "the-good-one",
    ]
    assert (moved / "verdict.json").is_file()


def test_pruning_keeps_spared_and_latest_bundles(tmp_path: Path) -> None:
    """Contract: of two runs at once, neither removes the other's newest nor its own."""
    first, second, third = (ended(tmp_path, second) for second in (1, 2, 3))
    name_latest(first)
    assert [each.bundle for each in prune(tmp_path, Keep(last=0), [second])] == [third]
    assert (tmp_path / "latest").resolve() == first


def test_latest_is_mended_and_is_gone_with_the_last(tmp_path: Path) -> None:
    paths = [ended(tmp_path, second) for second in (1, 2)]
    runs_folder.remove(paths[1])
    assert (tmp_path / "latest").resolve() == paths[0]
    runs_folder.remove(paths[0])
    assert list(tmp_path.iterdir()) == []


def test_removal_that_was_killed_is_finished_by_next(tmp_path: Path) -> None:
    """Contract: what it leaves is no bundle, and it goes; nothing that only has a name like it does."""
    doomed = ended(tmp_path, 1)
    doomed.rename(tmp_path / f".removing-{doomed.name}")
    (tmp_path / ".removing-mine").mkdir()
    ended(tmp_path, 2)
    assert left(tmp_path) == [2]
    prune(tmp_path, Keep(last=0))
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".removing-mine"]


def test_two_that_remove_at_once(tmp_path: Path) -> None:
    """Contract: the second finds nothing, and that is no error."""
    path = ended(tmp_path, 1)
    assert runs_folder.remove(path) > 0
    assert runs_folder.remove(path) == 0


def test_what_may_not_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a bundle of somebody else's, say. Root may remove everything, so the refusal is made."""
    ended(tmp_path, 1)
    ended(tmp_path, 2)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(HarnessError, match="could not be removed: Permission denied"):
        prune(tmp_path, Keep(last=0))


def test_sizes_are_those_of_du(tmp_path: Path) -> None:
    path = ended(tmp_path, 1)
    counted = subprocess.run(["du", "-s", "-B1", path], capture_output=True, text=True, check=True).stdout
    assert disk_use.bytes_used(path) == int(counted.split()[0])
