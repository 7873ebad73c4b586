"""Frames in logs become ground truth: each once, in order, with every gap shown."""

from hypothesis import given
from hypothesis import strategies as st

from harness.evidence import extract
from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.schema.ground_truth import (
    TruthCode,
    TruthEnd,
    TruthGap,
    TruthMetrics,
    TruthRow,
    TruthStart,
)
from harness.workers.ground_truth import truth_frames

NONCE = "n0nce"
ROWS = [["loss", step, step / 3, 1000 + step] for step in range(6)]


def frames(rank: int = 0) -> list[str]:
    payloads = [
        *({"k": "rows", "r": rank, "q": q, "n": 2 * q, "rows": ROWS[2 * q : 2 * q + 2]} for q in range(3)),
        {"k": "block", "r": rank, "q": 3, "metric": "m", "first": 1, "last": 9, "count": 9, "sha256": "00"},
        {"k": "metrics", "r": rank, "q": 4, "metrics": [["loss", 6, "01"], ["m", 9, "00"]]},
        {"k": "end", "r": rank, "q": 5, "count": 15, "sha256": "ff"},
    ]
    return [truth_frames.encode(NONCE, payload) for payload in payloads]


WHOLE = extract(frames(), NONCE)[0]


@given(st.data())
def test_order_and_repetition_do_not_matter(data):
    """Contract: logs that are read again, or of several containers mixed, give the same truth."""
    lines = frames(0) + frames(1)
    again = data.draw(st.lists(st.sampled_from(lines), max_size=10))
    shuffled = data.draw(st.permutations(lines + again))
    found = extract(["noise", *shuffled], NONCE)
    assert found == {0: WHOLE, 1: WHOLE}


def test_the_whole_truth():
    """Contract: rows, blocks, digests of metrics and the end come out as they were written."""
    assert [line.step for line in WHOLE if isinstance(line, TruthRow)] == [0, 1, 2, 3, 4, 5]
    assert WHOLE[-2] == TruthMetrics(metrics=[("loss", 6, "01"), ("m", 9, "00")])
    assert WHOLE[-1] == TruthEnd(count=15, sha256="ff")
    assert not any(isinstance(line, TruthGap) for line in WHOLE)


@given(st.sets(st.integers(0, 4), min_size=1))
def test_a_missing_frame_is_a_gap(missing):
    """Contract: every frame that is not there before the last shows as a gap, the first one too."""
    lines = [line for seq, line in enumerate(frames()) if seq not in missing]
    gaps = [line for line in extract(lines, NONCE)[0] if isinstance(line, TruthGap)]
    assert {seq for gap in gaps for seq in range(gap.after_seq + 1, gap.next_seq)} == missing


def test_two_different_frames_of_one_number_are_a_gap():
    """Contract: a rank that started again and told another story is not believed in silence."""
    other = truth_frames.encode(NONCE, {"k": "rows", "r": 0, "q": 1, "n": 2, "rows": [["loss", 2, 9.0, 1]]})
    lines = extract([*frames(), other], NONCE)[0]
    assert TruthGap(after_seq=1, next_seq=1) in lines


def test_authentic_frame_that_makes_no_sense_is_gap():
    """Contract: nothing in a log raises."""
    odd = [
        truth_frames.encode(NONCE, payload)  # type: ignore[arg-type]
        for payload in ({"k": "rows", "r": 0, "q": 3, "rows": 7}, {"k": "?", "r": 0, "q": 3}, {}, ["x"])
    ]
    lines = extract([*frames()[:3], *odd, *frames()[4:]], NONCE)[0]
    assert TruthGap(after_seq=2, next_seq=4) in lines


def test_code_of_rank_is_kept_in_its_order():
    """Contract: frames of kind code become TruthCode lines of their attempt, and malformed ones a gap."""
    facts = [["file", "/workspace/a.py", "ab"], ["whole", "", ""]]
    head = {"k": "code", "r": 0, "a": "1-a"}
    lines = [
        truth_frames.encode(NONCE, {"k": "start", "r": 0, "a": "1-a", "q": 0, "t": 5}),
        truth_frames.encode(NONCE, {**head, "q": 1, "facts": facts}),
        truth_frames.encode(NONCE, {**head, "q": 2, "facts": [["file", 7]]}),
        truth_frames.encode(NONCE, {"k": "end", "r": 0, "a": "1-a", "q": 3, "count": 0, "sha256": ""}),
    ]
    kinds = [line.kind for line in extract(lines, NONCE)[0]]
    assert kinds == ["start", "code", "gap", "end"]
    assert extract(lines, NONCE)[0][1] == TruthCode(facts=[tuple(fact) for fact in facts])


def frame(kind: str, seq: int, attempt: str, outside: bool, **more: object) -> str:
    payload = {"k": kind, "r": 0, "a": attempt, "q": seq, **({"s": "outside"} if outside else {}), **more}
    return truth_frames.encode(NONCE, payload)


OWN = [frame("start", 0, "own", False, t=5), frame("rows", 1, "own", False, n=0, rows=ROWS[:2])]
AROUND = [
    frame("start", 0, "around", True, t=4),
    frame("fault", 1, "around", True, text="why"),
    frame("rows", 2, "around", True, n=0, rows=ROWS[:3]),
]


def collected(lines: list[str]) -> TruthCollector:
    collector = TruthCollector(NONCE)
    for line in lines:
        collector.feed(line, "pod")
    return collector


@given(st.permutations(OWN + AROUND))
def test_a_worker_s_own_record_comes_first(lines):
    """Contract: two recorders of one rank are never mixed, and are no two lives of it."""
    both = collected(lines)
    assert both.result() == collected(OWN).result()
    assert both.outside() == collected(AROUND).result()
    assert [line.kind for line in both.outside()[0]] == ["start", "fault", "row", "row", "row"]


def test_a_fault_of_a_child_is_no_gap():
    """A child of the rank knows no number of the sequence."""
    lines = collected([*AROUND, frame("fault", -77, "around", True, text="child")]).result()[0]
    assert [line.kind for line in lines] == ["start", "fault", "fault", "row", "row", "row"]
    assert not any(isinstance(line, TruthGap) for line in lines)


def test_a_record_from_outside_alone_is_the_rank_s():
    """Also where its first frame was lost."""
    alone = collected(AROUND[1:])
    assert alone.outside() == {}
    start = alone.result()[0][0]
    assert isinstance(start, TruthStart)
    assert (start.outside, start.attempt) == (True, "around")
