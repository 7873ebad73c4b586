"""A secret is in no repr, because pytest prints the arguments of a failed test into its log and JUnit file.

Report in public of the same kind: wisecom-oy/atlas#174.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from harness.provision.controllers.tracker import EmbeddedTracker
from harness.tracker.server.app import Options

ROOT = Path(__file__).parents[3]
SECRET = re.compile(r"(?:\w+_)?(?:key|secret|password|token|credential|passphrase)s?")
RECORDS = {"BaseModel", "BaseSettings", "NamedTuple", "Record"}
NAMES = {
    "Settings.image_pull_secret": "the name of a Secret",
    "Settings.pluto_api_key": "a SecretStr",
    "SecretKey.key": "the name of a key in a Secret",
    "TrackerOptions.secret": "the names of a Secret and its key",
    "Submission.pull_secret": "the name of a Secret",
    "Surroundings.pull_secret": "the name of a Secret",
    "TrainingSpec.secrets": "the names of Secrets",
    "Program.secret": "the name of a Secret",
    "Item.key": "the name of an object in S3",
    "Omission.key": "a metric's name",
    "Outcome.key": "the name of a combination of versions",
    "Owner.token": "a random name of a lock's owner",
    "Loss.tokens": "a number",
    "Bucket.tokens": "a number",
    "Stream.tokens": "a text",
    "Examined.tokens": "a number",
    "BestCheckpoint.tokens": "a number",
}
"""Fields with a name like that of a secret, and what they contain."""


def fields() -> Iterator[str]:
    """Yield Class.field for each field of a record whose name denotes a secret and that its repr shows."""
    for path in sorted((ROOT / "harness").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            decorated = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
            if not decorated and not RECORDS & {ast.unparse(base) for base in node.bases}:
                continue
            for line in node.body:
                if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                    continue
                if SECRET.fullmatch(line.target.id) and "repr=False" not in ast.unparse(line):
                    yield f"{node.name}.{line.target.id}"


def test_every_field_with_secret_is_left_out_of_repr() -> None:
    assert set(fields()) == set(NAMES)


def test_the_key_of_the_tracker_is_in_no_repr() -> None:
    key = "a-key-of-the-tracker"
    assert key not in repr(EmbeddedTracker("http://tracker", key))
    assert key not in repr(Options(db=Path("x"), key=key))
