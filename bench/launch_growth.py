"""How a launch on a kept cluster grows: with ranks, with points, with launches side by side.

    python bench/launch_growth.py [--ranks 2,4,8] [--steps 20,333] [--beside 1,2,4]   prints Markdown

Each row is one launch of the main job with other numbers, in turn on one cluster of two workers. A step is
three points of a rank. `harness` is what the harness itself takes: seconds of a processor, programs that it
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
sys.path.insert(0, str(ROOT))

from harness.evidence.reader import Bundle  # noqa: E402

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
        raise SystemExit(f"PASS was expected, seen {answer['cause']}: {answer['explanation']}")
    bundle = Path(answer["bundle"])
    manifest = Bundle.open(bundle).manifest
    assert manifest is not None
    (observed,) = (stage.seconds for stage in manifest.stages if stage.name == "observe")
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    return Launched(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, observed, size)


def job_of(ranks: int = 2, steps: int = 20) -> dict[str, Any]:
    """Return the main job with so many ranks, of which several fit on a node, and steps."""
    document = yaml.safe_load((ROOT / "jobs/multinode.yaml").read_text())
    document["num_nodes"] = ranks
    document["resources"]["memory"] = 1
    document["envs"] = {"E2E_STEPS": str(steps)}
    return document


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8, 16])
    parser.add_argument("--steps", type=numbers, default=[20, 333, 3333, 33333])
    parser.add_argument("--beside", type=numbers, default=[1, 2, 4])
    asked = parser.parse_args()
    os.environ["HARNESS_WORKERS"] = "2"
    columns = "seconds", "of these the job", "harness: s of a processor", "cores", "MiB", "bundle MiB"
    print(f"| what | {' | '.join(columns)} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as name:
        folder, number = Path(name), 0

        def row(what: str, launched: Launched) -> None:
            cores = launched.processor / launched.seconds
            cells = (
                f"{launched.seconds:.1f} | {launched.observed:.1f} | {launched.processor:.1f} | {cores:.2f}"
            )
            sizes = f"{launched.memory / MIB:.0f} | {launched.bundle / MIB:.1f}"
            print(f"| {what} | {cells} | {sizes} |", flush=True)

        try:
            launch(job_of(), folder, number)
            for ranks in asked.ranks:
                number += 1
                row(f"{ranks} ranks", launch(job_of(ranks=ranks), folder, number))
            for steps in asked.steps:
                number += 1
                row(f"{3 * steps} points a rank", launch(job_of(steps=steps), folder, number))
            for count in asked.beside:
                number += count
                with ThreadPoolExecutor(count) as pool:
                    found = list(
                        pool.map(lambda n: launch(job_of(), folder, n), range(number, number + count))
                    )
                slowest = max(found, key=lambda each: each.seconds)
                row(f"{count} side by side, the slowest", slowest)
                number += count
        finally:
            subprocess.run(
                [str(Path(sys.executable).with_name("harness")), "down", "--cluster-name", NAME],
                check=False,
                capture_output=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
