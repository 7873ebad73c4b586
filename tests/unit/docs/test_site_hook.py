"""Pages for GitHub as pages of the site: links out of docs/, lists, and code that looks like either."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from docs import site_hook

REPOSITORY = "https://github.com/owner/name"


@pytest.fixture(autouse=True)
def repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_hook, "REPOSITORY", "owner/name")
    monkeypatch.setattr(site_hook, "SERVER", "https://github.com")


def page(markdown: str, name: str = "how-to/page.md") -> str:
    return site_hook.on_page_markdown(markdown, page=SimpleNamespace(file=SimpleNamespace(src_uri=name)))


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](../../README.md#b)", f"[a]({REPOSITORY}/blob/main/README.md#b)"),
        ('[a](../../README.md "b")', f'[a]({REPOSITORY}/blob/main/README.md "b")'),
        ("[`a` b](../../manifests/)", f"[`a` b]({REPOSITORY}/blob/main/manifests)"),
        ("[the `a[0]`](../../README.md)", f"[the `a[0]`]({REPOSITORY}/blob/main/README.md)"),
        ("![a](../../harness/a.png)", f"![a]({REPOSITORY}/raw/main/harness/a.png)"),
        ("[a](../use.md)", "[a](../use.md)"),
        ("![a](../images/a.png)", "![a](../images/a.png)"),
        ("[a](https://example.com/a) [b](mailto:a@b) [c](#d)",) * 2,
    ],
)
def test_a_link_out_of_docs_leads_to_the_repository(link: str, expected: str) -> None:
    assert page(f"See {link}.") == f"See {expected}."


@pytest.mark.parametrize(
    "code",
    [
        "`[a](../../README.md)`",
        "``[a](../../README.md) ` b``",
        "```markdown\n[a](../../README.md)\n- a\n  - b\n```",
        "~~~\n[a](../../README.md)\n- a\n~~~",
        "````\n```\n[a](../../README.md)\n```\n- a\n````",
    ],
)
def test_code_is_not_changed(code: str) -> None:
    assert page(f"{code}\n") == f"{code}\n"


def test_a_link_whose_repository_is_unknown_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_hook, "REPOSITORY", "")
    assert page("See [a](../../README.md) and ![b](../../b.png).") == "See a and b."


@pytest.mark.parametrize(
    ("github", "site"),
    [
        ("text\n- a\n- b", "text\n\n- a\n- b"),
        ("- a\n  - b\n    - c\n- d", "- a\n    - b\n        - c\n- d"),
        ("- a\n    - b\n    - c", "- a\n    - b\n    - c"),
        ("1. a\n   - b\n     more b\n   more a\n2. c", "1. a\n    - b\n        more b\n    more a\n2. c"),
        ("10. a\n    more a\n\n    b", "10. a\n    more a\n\n    b"),
        ("+ a\n  + b", "+ a\n    + b"),
        ("- a\n  ```bash\n  b\n    c\n  ```\n- d", "- a\n    ```bash\n    b\n      c\n    ```\n- d"),
        ("- a\n\n      code\n\ntext\n  more", "- a\n\n        code\n\ntext\n  more"),
        ("- a\nmore a\n- b\n\ntext\n- c", "- a\nmore a\n- b\n\ntext\n\n- c"),
    ],
)
def test_lists_follow_blank_line_and_indent_four_spaces(github: str, site: str) -> None:
    assert page(github) == site
