"""The same work must give the same bits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.workers.acceptance.devices import Device
from harness.workers.acceptance.equality import checks


def gpus(count: int, name: str = "NVIDIA H100") -> list[Device]:
    return [Device("cuda", index, f"GPU-{name}-{index}", name) for index in range(count)]


def verdicts(digests: dict[Device, list[str]]) -> list[str]:
    return [check.verdict for check in checks("compute.equal", digests, "compute.unequal")]


@given(st.integers(1, 8))
def test_all_alike_pass(count: int) -> None:
    assert verdicts({one: ["a"] * 3 for one in gpus(count)}) == ["PASS"] * count


@given(st.integers(3, 8), st.data())
def test_one_that_differs_is_named_and_no_other(count: int, data: st.DataObject) -> None:
    """Contract: of three or more, the one against the majority fails; the others pass."""
    bad = data.draw(st.integers(0, count - 1))
    always = data.draw(st.booleans(), label="wrong each time, or once")
    wrong = ["b"] * 3 if always else ["a", "b", "a"]
    seen = verdicts({one: wrong if one.index == bad else ["a"] * 3 for one in gpus(count)})
    assert seen == ["FAIL" if index == bad else "PASS" for index in range(count)]


def test_two_that_differ_both_fail() -> None:
    one, other = gpus(2)
    assert verdicts({one: ["a", "a"], other: ["b", "b"]}) == ["FAIL", "FAIL"]


def test_other_models_may_round_otherwise() -> None:
    (h100,), (b200,) = gpus(1), gpus(1, "NVIDIA B200")
    assert verdicts({h100: ["a", "a"], b200: ["b", "b"]}) == ["PASS", "PASS"]


def test_no_result_is_unknown() -> None:
    assert verdicts({gpus(1)[0]: []}) == ["UNKNOWN"]
