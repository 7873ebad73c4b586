"""Files and folders that no command can use: job files, manifests, settings, bundles, special files."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
JOB = (ROOT / "jobs/multinode.yaml").read_text()
MANIFESTS = {path.stem: path.read_text() for path in sorted((ROOT / "manifests").glob("*.yaml"))}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MANIFEST = {
    "schema_version": 2,
    "nonce": "n",
    "started_at": "2026-11-21T05:00:00Z",
    "ended_at": "2026-11-21T05:01:00Z",
    "launch": {"launcher": "konduktor", "namespace": "n", "kind": "JobSet", "object_name": "j", "uid": "u"},
}


def jobs() -> dict[str, bytes]:
    """Return files that are no job file and no manifest."""
    chance = random.Random(40)
    found = {
        "empty": b"",
        "junk": chance.randbytes(100_000),
        "nul": JOB.encode().replace(b"torchrun", b"torch\0run", 1),
        "utf-16": JOB.encode("utf-16"),
        "latin-1": JOB.encode() + "# größe\n".encode("latin-1"),
        "bomb": BOMB.encode(),
        "deep": b"[" * 200_000,
        "deep-block": "".join(f"{' ' * depth}a:\n" for depth in range(1000)).encode(),
        "many-values": b"- a\n" * 200_000,
        "large": b"#" * 5_000_000,
        "merge": b"a: &a {x: 1}\n<<: [" + b"*a, " * 5000 + b"]\n",
        "tag": b"a: !!python/object/apply:os.system [id]\n",
        "duplicate": JOB.encode() + b"\nname: other\n",
        "number": b"num_nodes: " + b"9" * 100_000,
        "list": b"- 1\n- 2\n",
    }
    for value in ("1000000000", "99999", "0", "-1", "1.5", "[]", "{}", "true", "'2'", ".inf", "null"):
        found[f"nodes-{value}"] = JOB.replace("num_nodes: 2", f"num_nodes: {value}").encode()
    found["image"] = JOB.replace("image_id: pluto", "image_id: a b pluto", 1).encode()
    found["two"] = f"{JOB}\n---\n{JOB}".encode()
    for cut in (10, 60, 200):
        found[f"cut-{cut}"] = JOB.encode()[:cut]
    for name in ("statefulset", "indexed-job", "torchrun-job"):
        text = MANIFESTS[name]
        for count in ("1000000000", "99999", "[]"):
            changed = text
            for field in ("replicas: 2", "completions: 2", "parallelism: 2", "numNodes: 2"):
                changed = changed.replace(field, f"{field.partition(':')[0]}: {count}")
            assert changed != text, name
            found[f"{name}-{count}"] = changed.encode()
        for field in ("metadata:", "spec:", "kind:", "apiVersion:"):
            head, _, tail = text.rpartition(f"\n{field}")
            found[f"{name}-{field[:-1]}-number"] = f"{head}\n{field} 7\nx:{tail}".encode()
    return found


def settings() -> dict[str, str]:
    """Return [tool.harness] tables that do not fit."""
    return {
        "junk": "\x01\x02",
        "deep": "a = " + "[" * 100_000,
        "dotted": "a." * 50_000 + "b = 1",
        "type": "[tool.harness]\nworkers = 'many'\n",
        "table": "[tool]\nharness = 1\n",
        "name": "[tool.harness]\ncluster_name = '../../x'\n",
        "huge": "[tool.harness]\nwait_seconds = 1e300\n",
        "twice": "[tool.harness]\nworkers = 1\nworkers = 2\n",
    }


def bundles() -> dict[str, Any]:
    """Return manifests of bundles that hold nothing else."""
    expected = {"run_id": "r", "project": "p", "num_nodes": 2, "ranks": 2}
    return {
        "ranks": {**MANIFEST, "expected": {**expected, "ranks": 10**9}},
        "nodes": {**MANIFEST, "expected": {**expected, "num_nodes": 10**9, "ranks": 10**9}},
        "most-ranks": {**MANIFEST, "expected": {**expected, "num_nodes": 10_000, "ranks": 100_000}},
        "list": [],
        "type": {**MANIFEST, "expected": "x"},
    }


def limits() -> dict[str, bytes]:
    """Return files that are no limits of acceptance tests."""
    row = '[[row]]\nmodel = "A"\ncheck = "memory.copy"\nvalue = 1\nunit = ""\nkind = "limit"\nsource = "x"\n'
    return {
        "junk": b"\x01\x02",
        "latin-1": row.encode() + "# größe\n".encode("latin-1"),
        "deep": b"row = " + b"[" * 50_000,
        "dotted": b"a." * 30_000 + b"b = 1",
        "large": row.encode() * 20_000,
        "twice": row.encode() * 2,
        "type": row.replace("value = 1", "value = [1]").encode(),
        "huge": row.replace("value = 1", "value = 1e999").encode(),
    }


def kubeconfigs() -> dict[str, dict[str, str]]:
    """Return entries of a kubeconfig's cluster and user that name files which cannot be read."""
    return {
        f"{name}-{kind}": {name: target}
        for name in ("certificate-authority", "client-certificate", "client-key", "tokenFile")
        for kind, target in {"pipe": "pipe", "device": "/dev/zero", "large": "large"}.items()
    }


def _kubeconfig(entry: dict[str, str]) -> str:
    named = {
        "contexts": {"cluster": "a", "user": "a"},
        "clusters": {"server": "https://127.0.0.1:1"},
        "users": {},
    }
    for name, target in entry.items():
        named["clusters" if name == "certificate-authority" else "users"][name] = target
    lists = {kind: [{"name": "a", kind[:-1]: value}] for kind, value in named.items()}
    return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "a", **lists})


def corpus(folder: Path) -> None:
    """Write each case into a folder of its own."""

    def case(name: str, *command: str) -> Path:
        case_folder = folder / name
        case_folder.mkdir(parents=True)
        (case_folder / "command").write_text(json.dumps(command))
        return case_folder

    for name, data in jobs().items():
        (case(f"job-{name}", "run", "job.yaml") / "job.yaml").write_bytes(data)
    for name, text in settings().items():
        (case(f"settings-{name}", "run", str(ROOT / "jobs/multinode.yaml")) / "pyproject.toml").write_text(
            text
        )
    for name, document in bundles().items():
        bundle = case(f"bundle-{name}", "judge", "bundle") / "bundle"
        bundle.mkdir()
        (bundle / "manifest.json").write_text(json.dumps(document))
    for name, file_name in {
        "manifest": "manifest.json",
        "pods": "objects/pod.jsonl",
        "truth": "truth/0.jsonl",
    }.items():
        for kind in ("pipe", "device", "loop"):
            bundle = case(f"bundle-{name}-{kind}", "judge", "bundle") / "bundle"
            (bundle / file_name).parent.mkdir(parents=True)
            expected = {"run_id": "r", "project": "p", "num_nodes": 2, "ranks": 2}
            (bundle / "manifest.json").write_text(json.dumps({**MANIFEST, "expected": expected}))
            (bundle / file_name).unlink(missing_ok=True)
            if kind == "pipe":
                os.mkfifo(bundle / file_name)
            else:
                (bundle / file_name).symlink_to(
                    "/dev/zero" if kind == "device" else (bundle / file_name).name
                )
    accept = ("accept", "--nodes", "--device", "cpu")
    for name, data in limits().items():
        (case(f"limits-{name}", *accept, "--limits", "limits.toml") / "limits.toml").write_bytes(data)
    os.mkfifo(case("limits-pipe", *accept, "--limits", "pipe") / "pipe")
    case("limits-device", *accept, "--limits", "/dev/zero")
    for name, entry in kubeconfigs().items():
        place = case(f"kubeconfig-{name}", "run", str(ROOT / "jobs/multinode.yaml"), "--kubeconfig", "k")
        (place / "k").write_text(_kubeconfig(entry))
        os.mkfifo(place / "pipe")
        (place / "large").write_bytes(b"x" * (2 << 20))
    for command in ("programs", "faults"):
        os.mkfifo(case(f"ledger-{command}-pipe", command, "--ledger", "pipe") / "pipe")
        case(f"ledger-{command}-device", command, "--ledger", "/dev/zero")
        (case(f"ledger-{command}-junk", command, "--ledger", "l") / "l").write_bytes(b"\xff\x00")
    for name in ("many", "large", "none"):
        place = case(f"scripts-{name}", "run", str(ROOT / "jobs/multinode.yaml"))
        (place / "pyproject.toml").write_text("[tool.harness]\nscripts = 'scripts'\n")
        (place / "scripts").mkdir()
        for number in range(600 if name == "many" else 0):
            (place / "scripts" / str(number)).touch()
        if name == "large":
            with (place / "scripts/a").open("wb") as file:
                file.truncate(20 << 30)
    os.mkfifo(case("special-pipe", "run", "pipe") / "pipe")
    (case("special-loop", "run", "loop") / "loop").symlink_to("loop")
    case("special-device", "run", "/dev/zero")
    case("special-folder", "run", ".")
    case("special-name", "run", str(ROOT / "jobs/multinode.yaml"), "--cluster-name", "Bad_Name")
    (case("special-runs", "run", str(ROOT / "jobs/multinode.yaml"), "--runs-dir", "runs") / "runs").touch()
    (
        case("special-kubeconfig", "run", str(ROOT / "jobs/multinode.yaml"), "--kubeconfig", "k") / "k"
    ).write_text(BOMB)
