"""How a launch on a kept cluster grows: with ranks, with points, with launches side by side.

    python bench/launch_growth.py [--ranks 2,4,8] [--points 1000] [--image 0,512] [--beside 1,2,4] [--write F]

It prints Markdown. `--write docs/performance.md` puts it between the marks of that file, too.

Each row is one launch of the main job with other numbers, in turn on one cluster of two workers. `points` are
those of each rank. `image` is how many MB of random bytes the worker image has besides; no node has it yet.
`harness` is what the harness itself takes: seconds of a processor, programs that it
runs included, and the memory of its largest process. `cores` is the former by the seconds of the launch: the
longer the job, the more of it is watching alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from machine import machine, replace  # noqa: E402

from harness.context import RunContext  # noqa: E402
from harness.evidence.io.reader import Bundle  # noqa: E402
from harness.provision.images.build import build_worker  # noqa: E402
from harness.provision.images.stack import resolve  # noqa: E402
from harness.settings import load  # noqa: E402

NAME = "bench-growth"
MIB = 1 << 20


@dataclass(frozen=True)
class Launched:
    """One launch, as somebody who waits for it sees it."""

    seconds: float
    processor: float
    """Seconds of a processor that the harness took."""
    memory: int
    """Bytes of the harness's largest process."""
    observed: float
    """Seconds from the submission to the end of the job."""
    bundle: int
    """Bytes of the evidence."""


class NotPassed(Exception):
    """A launch had another verdict than PASS. The rows before it are worth keeping."""


def launch(job: dict[str, Any], folder: Path, number: int) -> Launched:
    """Run `harness run` of a job. It must pass."""
    file = folder / f"job-{number}.yaml"
    file.write_text(yaml.safe_dump(job))
    told = {"HARNESS_CLUSTER_NAME": NAME, "KEEP_CLUSTER": "true", "HARNESS_RUNS_DIR": str(folder / "runs")}
    told["HARNESS_CPU_REQUEST"] = "100m"  # 16 of them are to be admitted; their limit stays one processor
    command = [str(Path(sys.executable).with_name("harness")), "run", str(file), "--quiet", "--json"]
    begun = time.monotonic()
    with (folder / f"out-{number}").open("wb+") as out:
        process = subprocess.Popen(
            command, env={**os.environ, **told}, stdout=out, stderr=subprocess.DEVNULL, cwd=folder
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begun
        out.seek(0)
        answer = json.loads(out.read())
    if status:
        raise NotPassed(f"{answer['cause']}: {answer['explanation']}")
    bundle = Path(answer["bundle"])
    manifest = Bundle.open(bundle).manifest
    assert manifest is not None
    (observed,) = (stage.seconds for stage in manifest.stages if stage.name == "observe")
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    return Launched(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, observed, size)


def job_of(ranks: int = 2, points: int = 60, image: str = "") -> dict[str, Any]:
    """Return the main job with so many ranks, of which several fit on a node, and points of each."""
    steps = min(1000, max(20, points // 100))
    document = yaml.safe_load((ROOT / "jobs/multinode.yaml").read_text())
    document["num_nodes"] = ranks
    document["resources"]["memory"] = 1
    document["envs"] = {"E2E_STEPS": str(steps), "E2E_MORE_METRICS": str(points // steps - 3)}
    if image:
        document["resources"]["image_id"] = image
    return document


def padded(base: str, megabytes: int, folder: Path) -> str:
    """Build the worker image with so many MB of random bytes. Return its tag, which is new."""
    tag = f"bench-padded:{megabytes}-{os.getpid()}"
    (folder / "Dockerfile").write_text(f"FROM {base}\nRUN head -c {megabytes}M /dev/urandom >/opt/padding\n")
    subprocess.run(["docker", "build", "-q", "-t", tag, str(folder)], check=True, capture_output=True)
    return tag


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8, 16])
    parser.add_argument("--points", type=numbers, default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--image", type=numbers, default=[0, 512, 1024])
    parser.add_argument("--beside", type=numbers, default=[1, 2, 4])
    parser.add_argument("--write", type=Path, help="a Markdown file with marks of this benchmark")
    asked = parser.parse_args()
    os.environ["HARNESS_WORKERS"] = "2"
    context = RunContext(settings=load(), progress=lambda _text: None)
    worker = build_worker(resolve(context), context, exact=True).tag
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    say(f"{machine()}.\n")
    columns = "seconds", "of these the job", "harness: s of a processor", "cores", "MiB", "bundle MiB"
    say(f"| what | {' | '.join(columns)} |")
    say("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as name:
        folder, number = Path(name), 0

        def row(what: str, *jobs: dict[str, Any]) -> None:
            """Launch these side by side, and show the slowest."""
            nonlocal number
            first, number = number, number + len(jobs)
            try:
                with ThreadPoolExecutor(len(jobs)) as pool:
                    found = list(pool.map(lambda n: launch(jobs[n - first], folder, n), range(first, number)))
            except NotPassed as error:
                say(f"| {what}: {error} | | | | | | |")
                return
            launched = max(found, key=lambda each: each.seconds)
            cores = launched.processor / launched.seconds
            cells = (
                f"{launched.seconds:.1f} | {launched.observed:.1f} | {launched.processor:.1f} | {cores:.2f}"
            )
            sizes = f"{launched.memory / MIB:.0f} | {launched.bundle / MIB:.1f}"
            say(f"| {what} | {cells} | {sizes} |")

        try:
            launch(job_of(), folder, -1)
            for ranks in asked.ranks:
                row(f"{ranks} ranks", job_of(ranks=ranks))
            for points in asked.points:
                row(f"{points} points a rank", job_of(points=points))
            for megabytes in asked.image:
                tag = padded(worker, megabytes, folder)
                row(f"an image that is new, and {megabytes} MB larger", job_of(image=tag))
                subprocess.run(["docker", "rmi", tag], check=False, capture_output=True)
            for count in asked.beside:
                row(f"{count} side by side, the slowest", *[job_of()] * count)
        finally:
            subprocess.run(
                [str(Path(sys.executable).with_name("harness")), "down", "--cluster-name", NAME],
                check=False,
                capture_output=True,
            )
    if asked.write:
        replace(asked.write, "growth", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
