"""Small files that are written in one step, and read by another process."""

from __future__ import annotations

import json
import os
from typing import Any


def read_json(path: str) -> dict[str, Any]:
    """Return what the file says; empty when it is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: str, document: dict[str, Any]) -> None:
    write_text(path, json.dumps(document))


def write_text(path: str, text: str) -> None:
    made = f"{path}.{os.urandom(6).hex()}"
    with open(made, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(made, path)
