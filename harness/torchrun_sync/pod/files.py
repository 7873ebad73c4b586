"""Read and write small files through which processes communicate. Files are written atomically."""

from __future__ import annotations

import json
import os
from typing import Any


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file does not exist or contains another type of JSON
    value."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        return {}
    return document if isinstance(document, dict) else {}


def write_json(path: str, document: dict[str, Any]) -> None:
    write_text(path, json.dumps(document))


def write_text(path: str, text: str) -> None:
    temporary = f"{path}.{os.urandom(6).hex()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
