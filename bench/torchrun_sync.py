"""Seconds of a workspace's way into pods: the first 100 MB, and then three small files, edited.

Those bytes are random, so that they do not shrink. `code_compression` is the ratio of size to sent bytes for
real code, the harness's judge; `kept_compression` is that of the archive in Secrets, which 64 pods share.

Without options the pods are processes of this machine, so that the figures are of the sync itself: reading,
hashing, framing, writing, switching. With --kubeconfig they are the running pods of a job, by exec.

    python bench/torchrun_sync.py [--pods 2] [--megabytes 100] [--repeat 5]       prints one JSON document
    python bench/torchrun_sync.py --kubeconfig F --namespace N --selector job-name=J
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration")]

from sync_processes import pod  # noqa: E402

from harness.core.kubernetes import Kube  # noqa: E402
from harness.torchrun_sync.channel import Open  # noqa: E402
from harness.torchrun_sync.job_sync import Fleet  # noqa: E402
from harness.torchrun_sync.packing import pack  # noqa: E402
from harness.torchrun_sync.pods import target  # noqa: E402
from harness.torchrun_sync.tree import Walker  # noqa: E402

FILES = 200
"""Files of the workspace: all of the same size, with contents that are new each time."""


def fill(top: Path, megabytes: int) -> None:
    for index in range(FILES):
        folder = top / f"package{index % 20}"
        folder.mkdir(exist_ok=True, parents=True)
        (folder / f"module{index}.bin").write_bytes(os.urandom(megabytes * 1_000_000 // FILES))


def edit(top: Path) -> None:
    for index in range(3):
        (top / f"edited{index}.py").write_text(f"print({time.time_ns()})\n")


def measured(pods: dict[str, Open], megabytes: int, repeat: int) -> dict[str, object]:
    """Sync a folder whose content no pod has, then edits of three files."""
    first: list[float] = []
    second: list[float] = []
    sent: set[int] = set()
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder, Fleet(pods) as fleet:
            top = Path(folder)
            fill(top, megabytes)
            edit(top)
            walker = Walker(top)
            began = time.perf_counter()
            fleet.sync(walker)
            first.append(time.perf_counter() - began)
            time.sleep(2.1)  # younger files are read again, in case they are written in the same tick
            fleet.sync(walker)
            edit(top)
            began = time.perf_counter()
            done = fleet.sync(walker)
            second.append(time.perf_counter() - began)
            sent.add(done.files)
    if sent != {3 * len(pods)}:
        raise SystemExit(f"expected three files for each pod the second time, sent {sent}")
    return {
        "pods": len(pods),
        "megabytes": megabytes,
        "repeat": repeat,
        "first_seconds": _spread(first),
        "three_small_files_seconds": _spread(second),
    }


def compression(open_pod: Open) -> dict[str, float]:
    """Return the ratios of the size of real code to what a sync sends, and to what the cluster keeps."""
    walker = Walker(ROOT / "harness" / "judge")
    tree = walker.scan()
    with Fleet({"pod": open_pod}) as fleet:
        sent = fleet.sync(walker).sent
    kept = pack(tree, 1, tree.size)
    contents = sum(entry["size"] for entry in tree.by_digest().values())
    return {
        "code_megabytes": round(contents / 1e6, 2),
        "code_compression": round(contents / sent, 2),
        "kept_compression": round(contents / len(kept or b""), 2),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 3), "worst": round(max(values), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pods", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--selector", default="")
    asked = parser.parse_args()
    if asked.kubeconfig:
        kube = Kube(asked.kubeconfig)
        found = [target(each) for each in kube.objects("v1", "Pod", asked.namespace, asked.selector)]
        pods = {each.pod: each.open(kube, asked.namespace) for each in found if each}
        if not pods:
            print(f"no running pod of {asked.selector} in {asked.namespace}", file=sys.stderr)
            return 64
        print(json.dumps(measured(pods, asked.megabytes, asked.repeat), indent=2))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        made = {f"pod-{index}": pod(Path(folder) / f"pod{index}") for index in range(asked.pods)}
        opened = {name: each.open for name, each in made.items()}
        made["code"] = pod(Path(folder) / "code")
        ratios = compression(made["code"].open)
        print(json.dumps({**measured(opened, asked.megabytes, asked.repeat), **ratios}, indent=2))
        for each in made.values():
            each.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
