"""What a process says of the code that it runs, tried with real Python processes and real packages."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import marshal
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.workers.ground_truth import code_digest

MAIN = """
import json, sys
import parts.one
from ground_truth import code_digest
{between}
print(json.dumps(code_digest.facts(last={last})))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as the harness fills it, with a folder inside."""
    folder = tmp_path / "workspace"
    (folder / "parts").mkdir(parents=True)
    (folder / "ground_truth").mkdir()
    shutil.copy(code_digest.__file__, folder / "ground_truth")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "one.py").write_text('TEXT = "one"\n')
    (folder / "parts" / "note.txt").write_text("a note")
    return folder


def ran(place: Path, between: str = "", last: bool = False, path: str = "") -> list[tuple[str, str, str]]:
    """Return the facts of a program of the place that imports parts.one and then does `between`."""
    main = place / "main.py"
    main.write_text(MAIN.format(between=between, last=last))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(main)], env=environment, capture_output=True, text=True, check=True
    )
    return [(what, name, value) for what, name, value in json.loads(done.stdout)]


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def named(facts: list[tuple[str, str, str]], what: str) -> dict[str, str]:
    return {name: value for kind, name, value in facts if kind == what}


def test_every_file_is_told_and_which_of_them_ran(place: Path) -> None:
    """Contract: all files of the folder and of folders in it, whether they run or not, with their digests."""
    facts = ran(place)
    assert named(facts, "file") == {
        str(path): sha(path) for path in place.rglob("*.*") if path.suffix != ".pyc"
    }
    assert named(facts, "ran") == {
        str(place / name): sha(place / name)
        for name in ("main.py", "ground_truth/code_digest.py", "parts/__init__.py", "parts/one.py")
    }
    assert named(facts, "whole") == {"": ""}
    assert not named(facts, "touched") | named(facts, "stale")
    stack = named(facts, "stack")
    assert stack["python"] == sys.version.split()[0]
    assert stack["pluto"] == importlib.metadata.version("pluto-ml")


def test_at_the_end_only_what_ran_is_told(place: Path) -> None:
    facts = ran(place, last=True)
    assert str(place / "parts" / "note.txt") not in named(facts, "file")
    assert set(named(facts, "ran")) == set(named(facts, "file"))
    assert not named(facts, "whole")


ONE = "open(parts.one.__file__, 'w').write"


@pytest.mark.parametrize("change", [f"{ONE}('TEXT = 2')", f"{ONE}('TEXT = 2'); {ONE}('TEXT = \"one\"\\n')"])
def test_a_file_that_is_written_to_while_it_runs(place: Path, change: str) -> None:
    """Contract: it is told as it was, as it is, and that it was touched, also when it is as before."""
    before = sha(place / "parts" / "one.py")
    facts = ran(place, change, last=True)
    one = str(place / "parts" / "one.py")
    assert named(facts, "touched") == {one: ""}
    assert named(facts, "file")[one] == before
    assert named(facts, "ran")[one] == sha(place / "parts" / "one.py")


def test_a_file_that_came_later_and_ran(place: Path) -> None:
    new = place / "late.py"
    facts = ran(place, f"open({str(new)!r}, 'w').write('X = 1'); import late")
    assert str(new) not in named(facts, "file")
    assert named(facts, "ran")[str(new)] == sha(new)


def test_bytecode_of_another_source(place: Path) -> None:
    """Contract: Python takes bytecode whose source has the same time and size, so what ran is not there."""
    one = place / "parts" / "one.py"
    stat = one.stat()
    one.write_text('TEXT = "two"\n')
    os.utime(one, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    subprocess.run([sys.executable, "-m", "py_compile", str(one)], check=True)
    one.write_text('TEXT = "one"\n')
    os.utime(one, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    facts = ran(place, "assert parts.one.TEXT == 'two'")
    assert named(facts, "stale") == {str(one): ""}
    assert named(facts, "file")[str(one)] == sha(one)


def test_bytecode_that_python_made_itself_is_not_stale(place: Path) -> None:
    """Contract: no false alarm, over real modules of many kinds: those of the standard library."""
    wrong = [
        name
        for name, module in list(sys.modules.items())
        if (spec := getattr(module, "__spec__", None)) is not None
        and spec.cached
        and name.partition(".")[0] in sys.stdlib_module_names
        and code_digest._stale(spec.origin, spec.cached)
    ]
    assert wrong == []
    assert ran(place)
    assert not named(ran(place), "stale")  # the second time from the bytecode of the first


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
@pytest.mark.parametrize("changed", [False, True])
def test_old_bytecode_beside_a_new_source(
    tmp_path: Path, mode: py_compile.PycInvalidationMode, changed: bool
) -> None:
    """Contract: an alarm only where Python takes it: a source is mounted over that of an image whose
    bytecode cannot be written anew.
    """
    source, cached = tmp_path / "a.py", tmp_path / "a.pyc"
    source.write_text("X = 1")
    py_compile.compile(str(source), str(cached), doraise=True, invalidation_mode=mode)
    if changed:
        source.write_text("X = 234")
    unchecked = mode is py_compile.PycInvalidationMode.UNCHECKED_HASH
    assert code_digest._stale(str(source), str(cached)) is (changed and unchecked)


def test_damaged_bytecode_is_no_alarm(tmp_path: Path) -> None:
    """Contract: Python does not run it either."""
    source, cached = tmp_path / "a.py", tmp_path / "a.pyc"
    source.write_text("X = 1")
    cached.write_bytes(b"\0" * 16 + marshal.dumps(7)[:1])
    assert not code_digest._stale(str(source), str(cached))


def test_too_many_files_are_not_said_to_be_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("")
    monkeypatch.setattr(code_digest, "MOST_FILES", 3)
    facts = list(code_digest.Files((str(tmp_path),)).facts())
    assert len(facts) == 3
    assert ["whole", "", ""] not in facts


# -- Pluto's client ----------------------------------------------------------------------------------------
@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A copy of the installed client, to be changed."""
    installed = importlib.metadata.distribution("pluto-ml")
    folder = tmp_path / "site"
    for file in installed.files or []:
        if file.hash is not None and not str(file).startswith("..") and file.locate().is_file():  # type: ignore[attr-defined]
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), folder / file)
    record = next(file for file in installed.files or [] if file.name == "RECORD")
    kept = [line for line in record.read_text().splitlines() if not line.startswith("..")]
    (folder / record).write_text("\n".join(kept))
    return folder


def test_the_client_as_it_was_installed(place: Path, client: Path) -> None:
    facts = ran(place, "import pluto", path=str(client))
    assert not named(facts, "client")
    assert len(named(facts, "stack")["pluto_files"]) == 64


def test_a_patched_client(place: Path, client: Path) -> None:
    """Contract: a changed and a removed module are named, and the digest is another one."""
    before = named(ran(place, path=str(client)), "stack")["pluto_files"]
    with (client / "pluto" / "op.py").open("a") as file:
        file.write("# patched\n")
    (client / "pluto" / "sweep.py").unlink()
    facts = ran(place, path=str(client))
    assert set(named(facts, "client")) == {str(client / "pluto" / name) for name in ("op.py", "sweep.py")}
    assert named(facts, "stack")["pluto_files"] != before


def test_a_client_from_elsewhere(place: Path, client: Path) -> None:
    """Contract: what is imported counts, and not what is installed.

    The client's own .pth file may have imported the installed client at startup.
    """
    again = "for name in [one for one in sys.modules if one.split('.')[0] == 'pluto']: del sys.modules[name]"
    other = place / "pluto"
    other.mkdir()
    (other / "__init__.py").write_text("")
    facts = ran(place, f"{again}\nimport pluto", path=str(client))
    assert named(facts, "client") == {str(other / "__init__.py"): ""}
