"""How long people wait for a verdict, beside the floor: what kind and the job take alone. All in one run.

    python bench/launch.py [--rounds 5] [--workers 2] [--documented 1] [--json F] [--write F]

It prints Markdown. `--write docs/performance.md` puts it between the marks of that file, too.

`harness images build` comes first: caches are warm. Each round runs every arm once, and a ratio is one of a
round: machines slow down and recover within minutes. The kept cluster is paused where there is to be none.

  without a cluster   bare      `kind create cluster` as kind has it, with the same nodes, and its deletion
                      tuned     the same with the kind.yaml of the harness
                      cold      `harness run`: cluster, controllers, job, verdict, deletion
                      fresh     the same with `--fresh`: kind creates the cluster, no template is used
                      up        `harness up`
                      documented  kind, `kind load`, kubectl and polls of 10 s, one step after the other
  on a kept cluster   pause     `harness pause`, before the arms without a cluster
                      resumed   `harness run` of the paused cluster, which starts it
                      job       `konduktor launch` of the same job, until its JobSet is Completed, by a watch
                      kept      `harness run`
                      edit      the same after an edit of the worker script
                      failing   the same with a rank that raises at step 5, and how long after the API server
                          showed the failed container, and the failed JobSet, the verdict came
                      four jobs `konduktor launch` of four such jobs at once, until all are Completed
                      beside    four `harness run` at once
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import documented_flow  # noqa: E402
from launch_table import markdown  # noqa: E402
from machine import CALM, Used, quiet, replace, watched  # noqa: E402

from harness.context import RunContext  # noqa: E402
from harness.core.kubernetes import Object, condition  # noqa: E402
from harness.evidence.io.reader import Bundle  # noqa: E402
from harness.launch.konduktor.kubeconfig import for_launch  # noqa: E402
from harness.launch.konduktor.launch_process import Konduktor  # noqa: E402
from harness.launch.konduktor.submit import JOBSET_API  # noqa: E402
from harness.provision.images.stack import Stack, resolve  # noqa: E402
from harness.provision.kind.cluster import KindCluster  # noqa: E402
from harness.provision.kind.configuration import configuration  # noqa: E402
from harness.provision.konduktor import konduktor_bin  # noqa: E402
from harness.settings import Settings, load  # noqa: E402

WORKER = ROOT / "harness/workers/multinode.py"
RAISES = ("        at_most(1.5 * STALL_SECONDS)\n", "        assert step < 5 or rank == 0\n")
"""Where in the worker the fault of `failing` comes."""
BESIDE = 4
KEPT = {"HARNESS_CLUSTER_NAME": "bench-kept", "KEEP_CLUSTER": "true"}


@dataclass
class Bench:
    """Seconds by arm, and what the arms share."""

    settings: Settings
    stack: Stack
    folder: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, list[Used]] = field(default_factory=dict)
    bundles: dict[str, list[Path]] = field(default_factory=dict)

    def take(self, arm: str, what: Callable[[], object]) -> None:
        """Run once on a calm machine, and note how long it took, and what of the machine."""
        quiet(CALM)
        with watched() as used:
            what()
        self.seconds.setdefault(arm, []).append(used.seconds)
        self.used.setdefault(arm, []).append(used)
        print(f"{arm}: {used.seconds:.1f} s", file=sys.stderr, flush=True)

    def run(self, arm: str, code: int = 0, **told: str) -> None:
        """Run `harness run`. Its verdict must be the expected one."""
        told["HARNESS_RUNS_DIR"] = str(self.folder / "runs")
        command = [
            Path(sys.executable).with_name("harness"),
            "run",
            ROOT / "jobs/multinode.yaml",
            "--quiet",
            "--json",
        ]
        # A user's Python keeps what it compiled: here, `warm` does.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | told
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=self.folder
        )
        if done.returncode != code:
            raise SystemExit(f"{arm}: exit code {code} was expected, seen {done.returncode}\n{done.stdout}")
        self.bundles.setdefault(arm, []).append(Path(json.loads(done.stdout)["bundle"]))


def take_turns(bench: Bench, rounds: int, documented: int, several: bool) -> None:
    """Run every arm once a round. The documented flow runs in some of the rounds only."""
    kept = KindCluster(bench.settings.model_copy(update={"cluster_name": KEPT["HARNESS_CLUSTER_NAME"]}))
    (bench.folder / "edited").mkdir()
    raising = bench.folder / "raising"
    raising.mkdir()
    text = WORKER.read_text()
    assert RAISES[0] in text, "the worker has changed: say anew where a rank raises"
    (raising / WORKER.name).write_text(text.replace(RAISES[0], RAISES[0] + RAISES[1]))

    def silent(_text: str) -> None:
        return

    try:
        bench.run("warm", **KEPT)
        for number in range(rounds):
            bench.take("pause", lambda: kept.pause(silent))
            without_cluster(bench, number < documented)
            on_kept_cluster(bench, kept, number, several)
    finally:
        kept.down(silent)


def without_cluster(bench: Bench, documented: bool) -> None:
    """The nodes alone, the harness from nothing, and the documented flow."""
    settings, folder = bench.settings, bench.folder
    ours = configuration(settings, bench.stack.node_image, (), folder, folder)
    (folder / "bare.yaml").write_text(documented_flow.kinds_own(settings, bench.stack))
    (folder / "tuned.yaml").write_text(yaml.safe_dump(ours))
    named = ["--name", "bench-bare", "--kubeconfig", folder / "bare-kubeconfig"]

    def kind(*words: object) -> Callable[[], object]:
        command = ["kind", words[0], "cluster", *named, *words[1:]]
        return lambda: subprocess.run(list(map(str, command)), check=True, capture_output=True)

    for arm in ("bare", "tuned"):
        bench.take(f"{arm} create", kind("create", "--config", folder / f"{arm}.yaml", "--wait", "180s"))
        bench.take(f"{arm} delete", kind("delete"))
    alone = {"HARNESS_CLUSTER_NAME": "bench-cold"}
    bench.take("cold", lambda: bench.run("cold", **alone))
    bench.take("fresh", lambda: bench.run("fresh", HARNESS_FRESH="true", **alone))
    bench.take("up", lambda: harness("up", "--quiet", **alone))
    harness("down", "--quiet", **alone)
    if documented:
        bench.take("documented", lambda: documented_flow.run(settings, bench.stack, folder))


def harness(*words: str, **told: str) -> None:
    """Run a command of the harness. Raises CalledProcessError."""
    command = [Path(sys.executable).with_name("harness"), *words]
    subprocess.run(command, env={**os.environ, **told}, check=True, capture_output=True)


def on_kept_cluster(bench: Bench, kept: KindCluster, number: int, several: bool) -> None:
    """The job alone, and what the harness makes of it; `several` at once, too."""
    edited, raising = bench.folder / "edited", bench.folder / "raising"
    (edited / WORKER.name).write_text(f"{WORKER.read_text()}\n# edit {number}\n")
    bench.take("resumed", lambda: bench.run("resumed", **KEPT))
    bench.take("kept", lambda: bench.run("kept", **KEPT))
    sent = bench.bundles["kept"][-1]  # of its namespace, which later launches remove
    bench.take("job", lambda: job_alone(kept, sent))
    bench.take("edit", lambda: bench.run("edit", HARNESS_SCRIPTS=str(edited), **KEPT))
    bench.take("failing", lambda: bench.run("failing", 1, HARNESS_SCRIPTS=str(raising), **KEPT))
    if not several:
        return
    small = {**KEPT, "HARNESS_CPU_REQUEST": "200m"}  # four of them at once are to be admitted
    bench.take("one small", lambda: bench.run("one small", **small))
    few = bench.bundles["one small"][-1]
    bench.take("four jobs", lambda: job_alone(kept, few, BESIDE))
    with ThreadPoolExecutor(BESIDE) as pool:
        bench.take(
            "beside",
            lambda: list(pool.map(lambda _: bench.run("beside", **small), range(BESIDE))),
        )


def job_alone(kind: KindCluster, bundle: Path, count: int = 1) -> None:
    """Submit what a launch submitted once more, as it is, or more often. Wait until all are Completed."""
    manifest = Bundle.open(bundle).manifest
    assert manifest is not None
    assert manifest.launch is not None
    kube, namespace = kind.kube(), manifest.launch.namespace
    program = konduktor_bin(RunContext(settings=kind.settings, progress=lambda _text: None))
    with tempfile.TemporaryDirectory() as state, Konduktor(Path(state), None) as konduktor:
        shutil.copyfile(bundle / "launch/konduktor-config.yaml", konduktor.config)
        shutil.copyfile(bundle / "launch/job.yaml", konduktor.job)
        konduktor.kubeconfig.write_text(yaml.safe_dump(for_launch(kube, namespace)))
        before = {each["metadata"]["name"] for each in kube.objects(JOBSET_API, "JobSet", namespace)}
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda _: konduktor.launch(program), range(count)))

        def completed(found: dict[str, Object]) -> str | None:
            new = [each for name, each in found.items() if name not in before]
            done = [each for each in new if condition(each, "Completed").get("status") == "True"]
            return None if len(done) == count else f"{len(done)} of {count} Completed"

        kube.wait("the job alone", JOBSET_API, "JobSet", completed, seconds=300, namespace=namespace)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="0: one node")
    parser.add_argument(
        "--documented",
        type=int,
        default=1,
        help="rounds with the documented flow, which takes minutes. One node has no room for its two pods",
    )
    parser.add_argument("--several", action=argparse.BooleanOptionalAction, default=True, help="four at once")
    parser.add_argument("--json", type=Path, help="write seconds by arm there")
    parser.add_argument("--write", type=Path, help="a Markdown file with marks of this benchmark")
    asked = parser.parse_args()
    os.environ["HARNESS_WORKERS"] = str(asked.workers)
    settings = load()
    stack = resolve(RunContext(settings=settings, progress=lambda _text: None))
    with tempfile.TemporaryDirectory(prefix="bench-launch-") as folder:
        bench = Bench(settings, stack, Path(folder))
        try:
            take_turns(bench, asked.rounds, asked.documented if asked.workers else 0, asked.several)
        finally:  # what was measured before a failure must not be lost
            text = markdown(bench.settings.workers, bench.seconds, bench.used, bench.bundles)
            print(text)
            if asked.json:
                asked.json.write_text(json.dumps(bench.seconds, indent=1))
        if asked.write:
            replace(asked.write, f"launch {asked.workers}", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
