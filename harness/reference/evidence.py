"""Document each file and field in the evidence bundle, from the docstrings in harness/evidence/schema.

MODULES lists the modules in the order of the document.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from harness.evidence.schema import acceptance, bundle, columns, ground_truth, netcheck, tracker
from harness.reference.note import WRITTEN
from harness.report.markdown import code, table

HEAD = f"""# The evidence bundle

{WRITTEN}

Every launch writes a bundle in `runs/`; `runs/latest` is the newest. `harness judge`, `show`, `logs` and
`shell` accept a bundle's folder or a part of its name. Your own programs can read bundles with
[`harness.judge.users`](../how-to/own-judges.md).
"""
MODULES = (bundle, netcheck, acceptance, ground_truth, tracker, columns)
Fields = list[tuple[str, str, str, str]]


def markdown() -> str:
    """Return the text of docs/reference/evidence.md."""
    _, layout, after = (inspect.getdoc(bundle) or "").split("\n\n", 2)
    parts = [HEAD, "```text", inspect.cleandoc(layout), "```", "", after, ""]
    parts += ["In the tables, a field without a default is always present.", ""]
    for node in (node for module in MODULES for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.ClassDef) and (rows := list(_fields(node))):
            parts += [f"## {node.name}", *(_paragraph(ast.get_docstring(node)))]
            parts += table(["field", "type", "default", "meaning"], rows)
    return "\n".join(parts).rstrip() + "\n"


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type, default and docstring of each annotated field in a class."""
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            default = ast.unparse(field.value) if field.value else ""
            yield (
                code(ast.unparse(field.target)),
                code(ast.unparse(field.annotation)),
                code(default),
                _string(after),
            )


def _string(node: ast.stmt | None) -> str:
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return node.value.value
    return ""


def _paragraph(text: str | None) -> list[str]:
    return [text, ""] if text else []
