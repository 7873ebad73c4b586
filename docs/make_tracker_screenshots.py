"""The pictures of tracker.md, of a tracker with made runs on loopback: `make pictures`.

    python -m docs.make_tracker_screenshots    # docs/images/tracker-*.png; needs Chromium (`make browser`)

Run it again when the tracker's pages look different.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/integration"))

from tracker_demo import PROJECT, Demo, fill  # noqa: E402
from tracker_server import KEY, Server  # noqa: E402

from tests.browser import Page  # noqa: E402

IMAGES = ROOT / "docs/images"
MOST_BYTES = 150_000
DRAWN = """[...document.querySelectorAll('details[open] .chart')]
    .filter(c => c.getBoundingClientRect().top < innerHeight).every(c => c.querySelector('svg .curve'))"""


@dataclass(frozen=True)
class Picture:
    name: str
    path: str
    width: int
    height: int
    dark: bool = False
    script: str = ""


def pictures(demo: Demo) -> list[Picture]:
    base = f"/o/harness/projects/{PROJECT}"
    run = f"{base}/r{demo.run}"
    smooth = "const s = document.querySelector('#smooth'); s.value = 0.9; s.dispatchEvent(new Event('input'))"
    return [
        Picture("tracker-curves", run, 1080, 1000),
        Picture("tracker-compare", f"{base}?runs={demo.run},{demo.other}", 1080, 800, True, smooth),
        Picture("tracker-ranks", f"{run}/ranks", 1080, 640),
        Picture("tracker-million", f"{base}/r{demo.large}", 820, 680),
        Picture("tracker-phone", run, 360, 900),
    ]


def main() -> int:
    small = True
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder)).start()
        try:
            for picture in pictures(fill(server)):
                file = IMAGES / f"{picture.name}.png"
                take(server, picture, file)
                size = file.stat().st_size
                small = small and size <= MOST_BYTES
                print(f"{file}: {size // 1000} KB")
        finally:
            server.stop()
    return 0 if small else 1


def take(server: Server, picture: Picture, file: Path) -> None:
    with Page(picture.width, picture.height, picture.dark) as page:
        page.go(server.url + picture.path)
        page.type("#key", KEY)
        page.submit(".door form")
        page.until(DRAWN)
        if picture.script:
            page.ask(f"{{ {picture.script} }}")
        page.picture(file, picture.height)


if __name__ == "__main__":
    sys.exit(main())
