"""The picture of a launch while it runs, of a real one on a real cluster: `make recording`.

    python -m docs.make_recording        # docs/images/live.svg; on a kept cluster it takes half a minute

Run it again when the live view looks different.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path

import yaml
from rich.console import Console

from docs.make_screenshots import IMAGES, ROOT, SVG
from tests.terminal import Terminal

COLUMNS, LINES = 110, 34
SECONDS = 900
STEP = 12
"""At this step of both ranks the picture is taken."""
RANK = re.compile(r"^[01] +\S+ +Running +(\d+) ", re.MULTILINE)


def main() -> int:
    terminal, seen = Terminal(COLUMNS, LINES), None
    with tempfile.TemporaryDirectory() as folder:
        job = yaml.safe_load((ROOT / "jobs/multinode.yaml").read_text())
        job.setdefault("envs", {})["E2E_STEP_SECONDS"] = "0.5"
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        harness = Path(sys.executable).with_name("harness")
        command = [str(harness), "run", str(file), "--runs-dir", f"{folder}/runs"]
        for screen in terminal.run(command, ROOT, os.environ, SECONDS):
            if seen is None and [int(step) >= STEP for step in RANK.findall(screen)] == [True, True]:
                seen = terminal.text()
    if seen is None or terminal.code != 0:
        print("\n".join(terminal.screen.display), file=sys.stderr)
        return 1
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(seen, soft_wrap=True)
    target = IMAGES / "live.svg"
    target.write_text(
        console.export_svg(title="harness run jobs/multinode.yaml", unique_id="live", code_format=SVG)
    )
    print(f"{target}: {target.stat().st_size // 1000} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
