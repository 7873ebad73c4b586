"""What healthy hardware gives, and how a figure is judged by it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.acceptance.limits import MARGIN, Limits, Row, judged

GIB = 1 << 30
LARGE = {"payload": 16 * GIB}
LIMITS = Limits.load()
ROWS = list(LIMITS.rows.values())
HEALTHY = [
    # What was measured on healthy machines, by somebody else than the row's source where there is one.
    ("NVIDIA H100 80GB HBM3", "compute.gemm.bf16", 794, "TFLOP/s", {}),
    ("NVIDIA H200", "compute.gemm.bf16", 794, "TFLOP/s", {}),
    ("NVIDIA B200", "compute.gemm.fp8", 3433, "TFLOP/s", {}),
    ("NVIDIA A100-SXM4-80GB", "compute.gemm.bf16", 271, "TFLOP/s", {}),
    ("NVIDIA A100-SXM4-80GB", "memory.copy", 1560, "GB/s", {}),
    ("NVIDIA H100 80GB HBM3", "memory.copy", 2540, "GB/s", {}),
    ("NVIDIA H200", "memory.copy", 4245, "GB/s", {}),
    ("NVIDIA H200", "memory.triad", 4357, "GB/s", {}),
    ("NVIDIA B200", "memory.copy", 5430, "GB/s", {}),
    ("NVIDIA H200", "copy.h2d", 55.4, "GB/s", {}),
    ("NVIDIA H200", "copy.peer", 396.4, "GB/s", {}),
    ("NVIDIA H200", "ddp.all_reduce.busbw", 480, "GB/s", {"ranks": 8, **LARGE}),
    ("NVIDIA H100 80GB HBM3", "ddp.all_reduce.busbw", 487.9, "GB/s", {"ranks": 16, "nodes": 2, **LARGE}),
    ("NVIDIA B200", "ddp.all_reduce.busbw", 723, "GB/s", {"ranks": 8, "payload": GIB}),
    ("NVIDIA B200", "ddp.all_reduce.busbw", 380, "GB/s", {"ranks": 32, "nodes": 4, "payload": 8 * GIB}),
]  # fmt: skip


def row(**changed: object) -> Row:
    given = {"model": "m", "check": "c", "value": 100.0, "unit": "GB/s", "kind": "limit", "source": "s"}
    return Row(**{**given, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("one", ROWS, ids=lambda one: f"{one.model}-{one.check}-{one.ranks}-{one.payload}")
def test_every_row_has_a_source_and_can_fail(one: Row) -> None:
    """Contract: nobody's limit is made up, and there is a figure that each of them fails."""
    assert len(one.source) > 8
    bad = one.limit + 1 if one.relation in ("<=", "==") else one.limit * 0.99
    check = judged(one.check, "ENV", bad, one.unit, one, "gpu.ecc", "x")
    assert (check.verdict, check.cause, check.limit_source) == ("FAIL", "gpu.ecc", one.source)


@pytest.mark.parametrize(("model", "check", "figure", "unit", "where"), HEALTHY)
def test_a_healthy_machine_passes(
    model: str, check: str, figure: float, unit: str, where: dict[str, int]
) -> None:
    """Contract: what was measured on healthy hardware passes, half of it fails, and no figure is UNKNOWN."""
    found = LIMITS.row(model=model, check=check, **where)
    assert found is not None
    verdicts = [
        judged(check, "COMPUTE", seen, unit, found, "compute.slow", "x").verdict
        for seen in (figure, 0.49 * figure, 0.0, None, math.nan, math.inf)
    ]
    assert verdicts == ["PASS", "FAIL", "FAIL", "UNKNOWN", "UNKNOWN", "UNKNOWN"]


@pytest.mark.parametrize("where", [{"ranks": 8, "payload": GIB // 2}, {"ranks": 3, "payload": 16 * GIB}])
def test_no_row_is_unknown_and_shows_the_figure(where: dict[str, int]) -> None:
    """Contract: below the payload of a row, or with other ranks, nobody knows."""
    found = LIMITS.row(model="NVIDIA B200", check="ddp.all_reduce.busbw", **where)
    check = judged("ddp.all_reduce.busbw", "DDP", 12.0, "GB/s", found, "collective.slow", "12 GB/s")
    assert (check.verdict, check.measured, check.cause) == ("UNKNOWN", 12.0, None)


@pytest.mark.parametrize("model", ["NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA H100 PCIe", "cpu2"])
def test_a_model_that_resembles_another_has_no_row(model: str) -> None:
    assert LIMITS.row(model=model, check="compute.gemm.bf16") is None


def test_another_unit_is_unknown() -> None:
    assert judged("c", "ENV", 100.0, "Gb/s", row(), "copy.slow", "x").verdict == "UNKNOWN"


@given(st.floats(0, 1e6), st.floats(0.001, 1e6))
def test_less_is_never_better(measured: float, less: float) -> None:
    """Contract: where more is better, a lower figure has no better verdict; within the margin it warns."""
    order = ["FAIL", "WARN", "PASS"]
    one = row()
    seen, lower = (
        judged("c", "ENV", figure, "GB/s", one, "copy.slow", "x").verdict
        for figure in (measured, max(0.0, measured - less))
    )
    assert order.index(lower) <= order.index(seen)
    assert (seen == "WARN") == (100 <= measured < 100 * (1 + MARGIN))


@given(
    st.lists(
        st.builds(
            row,
            model=st.sampled_from(["*", "NVIDIA *", "NVIDIA H100*", "NVIDIA H100 80GB HBM3", "cpu"]),
            ranks=st.sampled_from([None, 4, 8]),
            nodes=st.sampled_from([None, 1, 2]),
            payload=st.sampled_from([0, GIB, 16 * GIB]),
            algorithm=st.sampled_from([None, "Ring"]),
        )
    ),
    st.sampled_from([4, 8]),
    st.sampled_from([0, GIB, 8 * GIB]),
)
def test_only_a_row_that_holds_is_given(rows: list[Row], ranks: int, payload: int) -> None:
    """Contract: the row holds for the figure, and no other that holds says more about where it does."""
    limits = Limits(rows)
    asked = ("NVIDIA H100 80GB HBM3", "c", ranks, 1, payload, None)
    found = limits.row(model=asked[0], check="c", ranks=ranks, nodes=1, payload=payload)
    fitting = [one for one in limits.rows.values() if one.fits(*asked)]
    assert (found is None) == (not fitting)
    if found:
        assert found in fitting
        assert max(fitting, key=Row.specific).specific() == found.specific()


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """Contract: a row with the same key replaces the shipped one; the others stay."""
    own = tmp_path / "own.toml"
    own.write_text(
        '[[row]]\nmodel = "NVIDIA H200"\ncheck = "copy.peer"\nvalue = 390\nunit = "GB/s"\nkind = "limit"\n'
        'source = "bundle 2026-11-23, 64 nodes"\n'
    )
    limits = Limits.load(own)
    changed = limits.row(model="NVIDIA H200", check="copy.peer")
    assert changed is not None
    assert (changed.limit, len(limits.rows)) == (390, len(LIMITS.rows))


WHOLE = {"model": '"m"', "check": '"c"', "value": "1", "unit": '"u"', "kind": '"limit"', "source": '"s"'}


def written(**changed: str) -> str:
    return "[[row]]\n" + "".join(f"{key} = {value}\n" for key, value in {**WHOLE, **changed}.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "row"),
        ("row = 3", "row"),
        ("[[row]]\n= 3", "not valid TOML"),
        ('[[row]]\nmodel = "m"', "row 1"),
        (written(source='" "'), "source is empty"),
        (written(value='"1"'), "value"),
        (written(value="nan"), "value"),
        (written(value="true"), "value"),
        (written(kind='"guess"'), "kind"),
        (written(note='"n"'), "note"),
        (written(relation='">"'), "relation"),
        (written(share="1.5"), "share"),
        (written() + written(), "two rows"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    """Contract: it is refused with the row and what is wrong with it, and never half read."""
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(ValueError, match=words):
        Limits.load(own)
