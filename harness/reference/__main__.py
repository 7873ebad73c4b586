"""Write the documents: `python -m harness.reference docs/reference`, or `make reference`."""

import sys
from pathlib import Path

from harness.reference import DOCUMENTS

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, markdown in DOCUMENTS.items():
    (folder / name).write_text(markdown())
