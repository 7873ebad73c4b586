"""How long an edit of Pluto's client takes to its verdict, compared with a launch of the client in the lock.

    python bench/client_edit.py [--rounds 5] [--checkout PATH] [--cluster NAME] [--write docs/performance.md]

It prints Markdown. All launches use one kept cluster. Each round runs both arms, and a ratio is that of one
round:

  kept   `harness run`
  edit   `harness run --replace pluto-ml=CHECKOUT`, after a line was added to a module of the checkout. Its
         wheel is built by its own build backend, resolved with the lock, installed, and added to the nodes
         as a layer

The checkout is copied first. By default, it is the sdist of the version in the lock.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from launch import Bench  # noqa: E402
from machine import machine, replace  # noqa: E402

from harness.context import RunContext  # noqa: E402
from harness.evidence.io.reader import Bundle  # noqa: E402
from harness.provision.images.stack import resolve  # noqa: E402
from harness.provision.kind.cluster import KindCluster  # noqa: E402
from harness.settings import load  # noqa: E402
from harness.versions.candidates import locked  # noqa: E402

GOAL = 1.3
OWN_CLUSTER = "bench-client"
EDITED = "pluto/__init__.py"


def sdist(folder: Path) -> Path:
    """Download and unpack the sdist of the client in the lock, and return its folder."""
    wanted = f"pluto-ml=={locked('pluto-ml').version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def edit(checkout: Path) -> None:
    """Add a line to a module of the client, which makes it another one than those of earlier benchmarks."""
    module = checkout / EDITED
    module.write_text(f"{module.read_text()}\n# edit {time.time_ns()}\n")


def take_turns(bench: Bench, checkout: Path, rounds: int, cluster: str) -> None:
    """Run both arms once a round, after one launch of each that fills the caches."""
    kept = {"HARNESS_CLUSTER_NAME": cluster, "KEEP_CLUSTER": "true"}
    edited = {**kept, "HARNESS_REPLACE": f'{{"pluto-ml": "{checkout}"}}'}

    def edit_and_run(arm: str) -> None:
        edit(checkout)
        bench.run(arm, **edited)

    bench.run("warm", **kept)
    edit_and_run("warm")
    for _ in range(rounds):
        bench.take("kept", lambda: bench.run("kept", **kept))
        bench.take("edit", lambda: edit_and_run("edit"))


def digests(bundles: list[Path]) -> set[str]:
    """Return the digests of the clients that were launched."""
    manifests = [Bundle.open(bundle).manifest for bundle in bundles]
    return {one.digest for manifest in manifests if manifest for one in manifest.replaced}


def markdown(bench: Bench) -> str:
    """Return the table."""
    kept, edited = bench.seconds["kept"], bench.seconds["edit"]
    ratios = [after / before for before, after in zip(kept, edited, strict=False)]
    lines = [f"{machine()}. Medians of {len(ratios)} rounds.", ""]
    lines += ["| arm | s | least – most | ratio | processor s |", "| --- | ---: | ---: | ---: | ---: |"]
    for arm, values in (("kept", kept), ("edit", edited)):
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})" if arm == "edit" else ""
        processor = median(used.processor for used in bench.used[arm])
        spread = f"{min(values):.1f} – {max(values):.1f}"
        lines.append(f"| {arm} | {median(values):.1f} | {spread} | {ratio} | {processor:.0f} |")
    lines += ["", f"The goal of the ratio is {GOAL}. Stages of the last launch of each arm, in seconds:", ""]
    stages = {arm: stage_seconds(bench.bundles[arm][-1]) for arm in ("kept", "edit")}
    lines += ["| stage | kept | edit |", "| --- | ---: | ---: |"]
    for name in dict.fromkeys([*stages["edit"], *stages["kept"]]):
        values = [f"{stages[arm][name]:.1f}" if name in stages[arm] else "" for arm in ("kept", "edit")]
        lines.append(f"| {name} | {' | '.join(values)} |")
    return "\n".join(lines)


def stage_seconds(bundle: Path) -> dict[str, float]:
    """Return the duration of each stage of a launch."""
    manifest = Bundle.open(bundle).manifest
    return {stage.name: stage.seconds for stage in manifest.stages} if manifest else {}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checkout", type=Path, help="a checkout of Pluto's client, which is copied")
    parser.add_argument("--cluster", help="an existing kept cluster, which remains (default: a new one)")
    parser.add_argument("--write", type=Path, help="a Markdown file with marks of this benchmark")
    asked = parser.parse_args()
    cluster = asked.cluster or OWN_CLUSTER
    os.environ["HARNESS_CLUSTER_NAME"] = cluster
    settings = load()
    stack = resolve(RunContext(settings=settings, progress=lambda _text: None))
    with tempfile.TemporaryDirectory(prefix="bench-client-") as name:
        folder = Path(name)
        checkout = folder / "checkout"
        shutil.copytree(asked.checkout or sdist(folder), checkout)
        bench = Bench(settings, stack, folder)
        try:
            take_turns(bench, checkout, asked.rounds, cluster)
            assert len(digests(bench.bundles["edit"])) == asked.rounds, "an edit was not launched"
        finally:  # what was measured before a failure must not be lost
            text = markdown(bench) if "edit" in bench.seconds else ""
            print(text)
            if asked.cluster is None:
                KindCluster(settings).down(lambda _text: None)
        if asked.write:
            replace(asked.write, "client edit", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
