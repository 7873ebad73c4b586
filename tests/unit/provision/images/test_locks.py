"""Whatever is downloaded is known by its hash or digest, or the reason why not is written down."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.provision.images import locked_packages
from harness.provision.images.build import LOCKS
from harness.provision.images.versions import LOCK
from harness.provision.konduktor import LOCK as KONDUKTOR

ROOT = Path(__file__).parents[4]
FILES = sorted([*LOCKS.glob("*.txt"), *(ROOT / "locks").glob("*.txt")])
REQUIREMENT = re.compile(r"[a-z0-9-]+==\S+( ; [^\\]+)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+")
TAGS_ALONE = {
    "registry.k8s.io/kueue/kueue:v0.19.2",
    "docker.io/victoriametrics/victoria-logs:v1.52.1",
    "docker.io/victoriametrics/vlagent:v1.52.1",
    "quay.io/coreos/etcd:v3.5.35",
}
"""References without a digest: no repository that can be read here has it, and no registry is reached.
`.ci/digests.py` reads them."""
HASHED = ("--require-hashes", "--no-index")
EXEMPT = {
    "--editable .": "this checkout",
    "pip download --quiet --no-deps --only-binary=:all: --index-url": "install_torch.sh compares the hash",
}


def test_every_lock_is_written_by_make_lock() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nlock:")[2]
    made = {path.relative_to(ROOT) for path in FILES}
    assert {path for path in made if f"-o {path}" not in recipe} == set()


@pytest.mark.parametrize("lock", FILES, ids=lambda path: path.stem)
def test_every_requirement_of_lock_has_version_and_hashes(lock: Path) -> None:
    left = REQUIREMENT.sub("", lock.read_text())
    assert [line for line in left.splitlines() if line and not line.startswith("#")] == []


@pytest.mark.parametrize("lock", FILES, ids=lambda path: path.stem)
def test_only_named_packages_are_built_from_source(lock: Path) -> None:
    """Contract: the build of an sdist runs its code with build requirements that no installer hashes, so the
    images build those of SOURCES alone, and with sdist.txt.
    """
    single = {
        found[0].partition("==")[0] for found in re.finditer(r"\S+==\S+ \\\n.+[^\\]\n", lock.read_text())
    }
    assert single - {"certifi", "colossalai"} <= set(locked_packages.SOURCES), (
        "one file alone may be an sdist"
    )
    if lock == KONDUKTOR:
        assert not single


def references(table: dict[str, object]) -> Iterator[str]:
    for value in table.values():
        if isinstance(value, dict):
            yield from references(value)
        elif isinstance(value, str) and "/" in value and ":" in value and "://" not in value:
            yield value


def test_every_image_has_a_digest_or_is_listed() -> None:
    found = set(references(tomllib.loads(LOCK.read_text())))
    assert len(found) > 5
    assert {each for each in found if not re.search(r"@sha256:[0-9a-f]{64}$", each)} == TAGS_ALONE


def commands() -> list[tuple[str, str]]:
    """Return each command that installs Python packages in what the project runs, with its file."""
    paths = [
        ROOT / "Makefile",
        ROOT / "action.yml",
        *(ROOT / ".github").rglob("*.yml"),
        *(ROOT / ".ci").iterdir(),
    ]
    paths += [
        path for path in (ROOT / "harness/provision").rglob("*") if path.suffix in {".sh", ".Dockerfile"}
    ]
    found = []
    for path in paths:
        text = path.read_text().replace("\\\n", " ")
        lines = [
            re.sub(r"\s+", " ", line).strip()
            for line in text.splitlines()
            if not line.lstrip().startswith("#")
        ]
        found += [
            (path.name, line)
            for line in lines
            if re.search(r"\bpip\b.* (install|sync|wheel|download) |uv tool", line)
        ]
    return found


def test_no_command_installs_what_has_no_hash() -> None:
    found = commands()
    assert len(found) >= 6
    exempt = tuple(EXEMPT)
    unknown = [each for each in found if not any(word in each[1] for word in (*HASHED, *exempt))]
    assert unknown == []
