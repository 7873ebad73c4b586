"""What the recorder around Pluto's client costs of a training step.

The real client logs to a real tracker on loopback, with the recorder and without it in turn, call by call. A
step is as long as `--step-ms` says. The recorder is to cost less than 1 % of it. `÷ log()` is the ratio to
the client's own call, which means the same on another machine. "reporting" writes a line and sends the
digests of complete blocks with every call, instead of once a minute.

    python bench/recorder.py [--step-ms 100] [--calls 600]     prints one JSON document
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration")]

from tracker_server import Server  # noqa: E402

from harness.launch.mounts import recorder  # noqa: E402

RANK = """
import json, sys, time, statistics, pluto
calls, metrics, pause, mode = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
stride = 1
if mode == "reporting":
    from _harness_recorder.recorder import digest_recording, client_calls
    digest_recording.LINE_SECONDS, stride = 0.0, 100
run = pluto.init(name="bench")
recorded = type(run).log
plain = recorded.__wrapped__
store = vars(run._sync_manager.store)
watched = {name: store[name] for name in ("enqueue", "enqueue_batch", "enqueue_file")}
seconds = {True: [], False: []}
for step in range(2 * calls):
    with_recorder = step % 2 == 0
    data = {f"metric/{number}": step / (number + 1) for number in range(metrics)}
    log = recorded if with_recorder else plain
    for name in watched:  # the queue too is the client's own without the recorder
        store.pop(name, None)
    store.update(watched if with_recorder else {})
    begun = time.perf_counter()
    log(run, data, step=step * stride)
    if step >= 40:
        seconds[with_recorder].append(time.perf_counter() - begun)
    time.sleep(pause)
run.finish()
if mode == "reporting":
    assert client_calls._recording.lines.reports.acknowledged[0], "nothing was reported"
print(json.dumps([statistics.median(seconds[True]), statistics.median(seconds[False])]))
"""


def measured(
    server: Server, folder: Path, calls: int, metrics: int, pause: float, mode: str
) -> tuple[float, float]:
    """Return the median seconds of one call with the recorder and without it."""
    log = folder / "log"
    log.touch()
    given = {"PYTHONPATH": str(folder / "recorder"), "HARNESS_NONCE": "0123abcd", "HARNESS_LOG": str(log)}
    given["HARNESS_RECORDER_MODE"] = "admitted" if mode else ""
    home = folder / f"home{metrics}{mode}"
    done = subprocess.run(
        [sys.executable, "-c", RANK, str(calls), str(metrics), str(pause), mode],
        env=server.pluto_environment(home, RANK="0", PLUTO_RUN_ID=f"bench-{metrics}{mode}", **given),
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    with_, without = json.loads(done.stdout.splitlines()[-1])
    return with_, without


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=100)
    parser.add_argument("--calls", type=int, default=600, help="with the recorder, and as many without it")
    parser.add_argument("--pause", type=float, default=0.004, help="seconds between two calls")
    arguments = parser.parse_args()
    found: dict[str, object] = {"step_ms": arguments.step_ms, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, source in recorder.MOUNTED.sources.items():
            (folder / "recorder" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "recorder" / path).write_text(source.read_text())
        server = Server(folder).start()
        try:
            for mode, metrics in (
                ("", 3),
                ("", 10),
                ("", 30),
                ("admitted", 10),
                ("admitted", 30),
                ("reporting", 10),
            ):
                with_, without = measured(server, folder, arguments.calls, metrics, arguments.pause, mode)
                added = with_ - without
                found[f"{metrics} metrics{f', {mode}' if mode else ''}"] = {
                    "log_us": round(1e6 * without),
                    "recorder_us": round(1e6 * added),
                    "÷ log()": round(added / without, 3),
                    "% of a step": round(100 * added * 1000 / arguments.step_ms, 3),
                }
        finally:
            server.stop()
    print(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    main()
