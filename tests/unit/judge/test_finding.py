"""A finding contains data, and one function formats its explanation."""

from hypothesis import given
from hypothesis import strategies as st

from harness.judge.finding import LIMIT, explanation, listed, not_passed, passed

texts = st.text("aBz09é", min_size=1, max_size=8)


def test_an_explanation_is_sentences():
    """Contract: each sentence begins with a capital letter. Sentences are separated by a full stop, and the
    last one has none."""
    text = explanation("run R lacks 2 points", ["a 1", "b 2"], ["rank 1 never gave them.", "", "why?", "so"])
    assert text == "Run R lacks 2 points: a 1; b 2. Rank 1 never gave them. Why? So"


@given(st.lists(texts, max_size=9))
def test_a_list_has_a_limit(details):
    """Contract: the first details are shown unchanged, followed by the number of the others."""
    text = explanation("head", details)
    shown = details[:LIMIT]
    rest = [f"and {len(details) - LIMIT} more"] if len(details) > LIMIT else []
    assert text == "Head" + ": " * bool(details) + "; ".join([*shown, *rest])
    assert listed(details) == text.removeprefix("Head").removeprefix(": ")


@given(texts, st.lists(texts, max_size=5))
def test_no_sentence_is_lost(head, why):
    """Property: the explanation contains every sentence, in order, whatever it begins with."""
    text = explanation(head, why=why)
    assert text.lower() == ". ".join([head, *why]).lower()


def test_what_the_verdict_holds():
    """Contract: ranks are sorted and unique, the cause determines FAIL or UNKNOWN, and the evidence keeps its
    order."""
    check = not_passed(
        "values", "unification.wrong_value", "x", ranks=[2, 0, 2], evidence=["b:1", "a:2"]
    ).check
    assert (check.result, check.ranks, check.evidence) == ("FAIL", [0, 2], ["b:1", "a:2"])
    assert not_passed("logs", "run.log_incomplete", "x").check.result == "UNKNOWN"
    assert passed("values", "x").check.cause is None
