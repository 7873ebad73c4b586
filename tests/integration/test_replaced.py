"""`--replace` with a package index on loopback: resolving, building and installing packages."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_index import serving, wheel

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.replacements import parse
from harness.provision.replaced_wheels import Change, change, install, version_texts
from harness.settings import load

BACKEND = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open("left_behind", "w"):
        pass  # as setuptools leaves build/ and *.egg-info
    name = "client-2.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as packed:
        packed.write("client.py")
        info = "client-2.0.dist-info"
        packed.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: client\\nVersion: 2.0\\n")
        packed.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        packed.writestr(info + "/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "client"
version = "2.0"
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of an index with three versions of a client, and two versions of a library that it
    depends on."""
    root = tmp_path_factory.mktemp("index")
    for version, needs in {"1.0": "", "1.1": "library>=1", "1.2": "library>=2"}.items():
        wheel(root / "client", "client", version, needs)
    for version in ("1.0", "2.0"):
        wheel(root / "library", "library", version)
    with serving(root, {}) as url:
        yield url


@pytest.fixture
def lock(tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a lock file with version 1.0 of the client and of the library."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    path = tmp_path / "lock.txt"
    path.write_text("client==1.0 \\\n    --hash=sha256:0\nlibrary==1.0 \\\n    --hash=sha256:0\n")
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a Git work tree with version 2.0 of the client, whose build writes to its own folder."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name, text in {
        "pyproject.toml": PROJECT,
        "backend.py": BACKEND,
        "client.py": "VERSION = '2.0'\n",
    }.items():
        (folder / name).write_text(text)
    committed(folder)
    return folder


def committed(folder: Path) -> None:
    """Turn a folder into a Git repository, with an additional commit that has the tag v2."""
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--message=one"],
        ["tag", "--force", "v2"],
    ):
        subprocess.run([*git, *words], check=True, capture_output=True)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout


def changed(lock: Path, *texts: str) -> Change:
    """Return the replacements for texts such as "client=1.1"."""
    context = RunContext(settings=load(cache_dir=lock.parent / "cache"), progress=print)
    wanted = [parse(*text.split("=", 1)) for text in texts]
    return change(wanted, lock, ["--python-version", "3.13"], context)


def test_build_of_checkout_does_not_see_keys_of_user(
    lock: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: a checkout may be another author's branch, and its build runs in CI, where the workflow's
    keys are available."""
    keys = ("PLUTO_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "KUBECONFIG")
    for name in keys:
        monkeypatch.setenv(name, "value-of-a-key")
    check = "import os\nassert 'value-of-a-key' not in os.environ.values(), 'the build sees a key'\n"
    (checkout / "backend.py").write_text(check + BACKEND)
    assert changed(lock, f"client={checkout}").replaced


@pytest.mark.parametrize(
    ("spec", "version", "others"),
    [("client=1.1", "1.1", ()), ("client=<1.2,>1.0", "1.1", ()), ("client=1.0", "1.0", ())],
)
def test_a_version_replaces_the_locked_one(
    lock: Path, spec: str, version: str, others: tuple[str, ...]
) -> None:
    """Contract: the other locked packages do not change, and the evidence contains both versions and the
    request."""
    found = changed(lock, spec)
    (one,) = found.replaced
    assert (one.version, one.locked, one.spec) == (version, "1.0", spec.split("=", 1)[1])
    assert found.changed == ("client", *others)
    assert "library" not in found.pins
    assert version_texts(found.replaced)["replaced client"].startswith(
        f"{version} instead of 1.0, from the package"
    )


def test_lock_conflict_is_one_sentence_until_both_are_replaced(lock: Path) -> None:
    with pytest.raises(UsageError, match=r"dependencies could not be resolved: .*library>=2") as error:
        changed(lock, "client=latest")
    assert "also replace the conflicting package" in error.value.hint
    found = changed(lock, "client=latest", "library=latest")
    assert {one.name: one.version for one in found.replaced} == {"client": "1.2", "library": "2.0"}


@pytest.mark.parametrize("spec", ["client=9.9", "client=>5", "absent=1.0"])
def test_a_version_that_does_not_exist_is_named(lock: Path, spec: str) -> None:
    with pytest.raises(UsageError, match=spec.split("=", maxsplit=1)[0]):
        changed(lock, spec)


def test_checkout_is_built_as_it_is_and_not_changed(lock: Path, checkout: Path, tmp_path: Path) -> None:
    """Contract: uncommitted edits are included, the same content has the same digest, and the build writes
    nothing to the user's folder.
    """
    clean = changed(lock, f"client={checkout}")
    (checkout / "client.py").write_text("VERSION = 'edited'\n")
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    edited, again = changed(lock, f"client={checkout}"), changed(lock, f"client={checkout}")
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before
    assert clean.key != edited.key == again.key
    install(
        edited, ["--python", sys.executable, "--python-version", "3.13", "--target", str(tmp_path / "there")]
    )
    assert (tmp_path / "there" / "client.py").read_text() == "VERSION = 'edited'\n"
    tagged = changed(lock, f"client=git+file://{checkout}@v2")
    assert tagged.key == clean.key
    assert tagged.replaced[0].version == "2.0"


def test_unusable_checkout_is_refused_in_one_sentence(lock: Path, checkout: Path) -> None:
    with pytest.raises(UsageError, match=r"library: .* contains the package client"):
        changed(lock, f"library={checkout}")
    with pytest.raises(UsageError, match="no branch, tag or commit v3"):
        changed(lock, f"client=git+file://{checkout}@v3")
    (checkout / "backend.py").write_text("raise RuntimeError('the backend is broken')")
    with pytest.raises(UsageError, match=r"cannot be built: .*the backend is broken"):
        changed(lock, f"client={checkout}")


def test_a_ref_that_a_shallow_clone_lacks_is_explained(lock: Path, checkout: Path, tmp_path: Path) -> None:
    """Contract: the hint explains how to fetch the ref. If the folder is not a repository, the error states
    this."""
    first = git(checkout, "rev-parse", "HEAD").strip()
    (checkout / "more").touch()
    committed(checkout)
    clone = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{checkout}", str(clone))
    with pytest.raises(
        UsageError, match=f"--replace client: .* has no branch, tag or commit {first}"
    ) as error:
        changed(lock, f"client=git+file://{clone}@{first}")
    assert "git fetch --unshallow" in error.value.hint
    shutil.rmtree(clone / ".git")
    with pytest.raises(UsageError, match="is not a Git repository"):
        changed(lock, f"client=git+file://{clone}@{first}")


def test_package_in_subfolder_is_built_with_surrounding_files(
    lock: Path, checkout: Path, tmp_path: Path
) -> None:
    """Contract: this also works with `pip`'s syntax for a subfolder. Virtual environments in the repository
    are not copied."""
    root = tmp_path / "repository"
    package = root / "python"
    shutil.copytree(checkout, package, ignore=shutil.ignore_patterns(".git"))
    backend = BACKEND.replace('("client.py")', '("client.py"); packed.write("../SHARED", "client_shared.py")')
    (package / "backend.py").write_text(backend)
    (root / "SHARED").write_text("ONE = 1\n")
    committed(root)
    (root / ".venv").mkdir()
    (root / ".venv" / "socket").touch()
    found = changed(lock, f"client={package}")
    for spec in (f"{package}@HEAD", f"{root}@v2#subdirectory=python"):
        assert changed(lock, f"client=git+file://{spec}").key == found.key
    with pytest.raises(UsageError, match="v2 has no folder absent"):
        changed(lock, f"client=git+file://{root}@v2#subdirectory=absent")


def test_failed_build_shows_its_exception_with_users_path(lock: Path, checkout: Path) -> None:
    """Contract: the error contains the exception instead of the last lines of a long message, and the user's
    path instead of that of the copy."""
    advice = "\\n\\n".join(f"Advice {number}." for number in range(9))
    (checkout / "backend.py").write_text(
        f"import os\nraise LookupError('no version in ' + os.getcwd() + ' was found.\\n{advice}')\n"
    )
    with pytest.raises(UsageError, match=rf"LookupError: no version in {checkout} was found\. Advice 0"):
        changed(lock, f"client={checkout}")


def test_version_from_tags_of_shallow_clone_is_reported(
    lock: Path, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: a workflow's checkout has one commit and no tags, so build backends make up a version."""
    backend = checkout / "backend.py"
    backend.write_text(
        backend.read_text().replace("client-2.0", "client-0.1+g1").replace(": 2.0", ": 0.1+g1")
    )
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("2.0", "0.1+g1"))
    committed(checkout)
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{checkout}", str(shallow)], check=True)
    for folder, reported in ((checkout, False), (shallow, True)):
        changed(lock, f"client={folder}")
        assert ("0.1+g1: this version may be wrong" in capsys.readouterr().out) == reported


def test_a_wheel_of_another_platform_is_refused(lock: Path, tmp_path: Path) -> None:
    """Contract: a wheel is identified by its contents, and a wheel for another platform is an error."""
    found = changed(lock, f"client={wheel(tmp_path, 'client', '3.0')}")
    assert found.replaced[0].version == "3.0"
    assert len(found.replaced[0].digest) == len(hashlib.sha256().hexdigest())
    foreign = wheel(tmp_path, "client", "3.0", tag="cp313-cp313-win_amd64")
    with pytest.raises(UsageError, match="client"):
        install(
            changed(lock, f"client={foreign}"),
            [
                "--python",
                sys.executable,
                "--python-version",
                "3.13",
                "--python-platform",
                "linux",
                "--target",
                str(tmp_path / "there"),
            ],
        )


def test_an_index_that_is_not_reached_is_named(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9"):
        changed(lock, "client=1.1")
