"""`python -m harness.reference docs/reference` writes it; `make reference` does."""

import sys
from pathlib import Path

from harness.reference import DOCUMENTS

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, markdown in DOCUMENTS.items():
    (folder / name).write_text(markdown())
