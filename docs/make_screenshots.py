"""The pictures of README.md, of recorded bundles: `make pictures`.

    python -m docs.make_screenshots        # docs/images/*; needs Chromium (`make browser`)

Run it again when the report or the terminal's summary look different.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console

from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.faults.recorded_bundles import extract
from harness.judge import judge
from harness.report.html import page
from harness.report.terminal import verdict as terminal
from tests.browser import Page

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
SHOWN = Path("runs/latest")
MOST_BYTES = 800_000


@dataclass(frozen=True)
class Picture:
    name: str
    bundle: str
    width: int
    height: int
    dark: bool = False
    open_at: str = "main"
    """Selector of what is at the top."""


PICTURES = (
    Picture("report-light", "client-drop-point", 1080, 1180),
    Picture("report-dark", "rank-hang-at-step", 1080, 1180, dark=True),
    Picture("report-logs", "rank-hang-at-step", 1080, 760, open_at="#logs"),
    Picture("report-phone", "client-drop-point", 390, 1180),
    Picture("training", "training-rank-killed", 1080, 700, open_at="#training"),
    Picture("acceptance", "acceptance-node-slow", 1080, 840),
)
SVG = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""rich's, without fonts that it would fetch from somewhere."""
TERMINAL = ("verdict", "client-drop-point", 100)


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for picture in PICTURES:
            take(picture, Path(folder))
        name, bundle, columns = TERMINAL
        (IMAGES / f"{name}.svg").write_text(summary(bundle, columns, Path(folder)))
    size = sum(path.stat().st_size for path in IMAGES.iterdir() if not path.name.startswith("tracker-"))
    print(f"{IMAGES}: {size // 1000} KB")
    return 0 if size <= MOST_BYTES else 1


def judged(name: str, folder: Path) -> tuple[Bundle, Verdict]:
    """A recorded bundle and its verdict, with the place that it has on a reader's machine."""
    bundle = Bundle.open(extract(ROOT / f"tests/recorded/{name}.tar.xz", folder / name))
    verdict = judge(bundle)
    commands = [line.replace(str(bundle.path), str(SHOWN)) for line in verdict.next]
    return bundle, verdict.model_copy(update={"next": commands})


def take(picture: Picture, folder: Path) -> None:
    with Page(picture.width, picture.height, picture.dark) as browser:
        browser.open(page.write(*judged(picture.bundle, folder)))
        if picture.open_at == "#logs":
            browser.type("#search", "step 6")
        browser.picture(IMAGES / f"{picture.name}.png", picture.height, picture.open_at)


def summary(name: str, columns: int, folder: Path) -> str:
    """The terminal's words as SVG."""
    bundle, verdict = judged(name, folder)
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    stages = bundle.manifest.stages if bundle.manifest else []
    terminal.render(verdict, stages, SHOWN, console)
    return console.export_svg(title="harness judge runs/latest", unique_id="verdict", code_format=SVG)


if __name__ == "__main__":
    sys.exit(main())
