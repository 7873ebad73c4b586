"""run_id.py: what the client would read as a resume id is refused, exactly when the client reads it so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pluto.sets import Settings, _classify_run_id

from harness.core.errors import UsageError
from harness.tracker.shared.run_id import check_run_id, classify_run_id, make_run_id

LIKELY = st.from_regex(r"[A-Z0-9]{0,5}-?[0-9]{0,3}\n?", fullmatch=True) | st.text(max_size=8)


def of_client(text: str) -> str:
    settings = Settings()
    settings._resume_run_id = settings._resume_display_id = settings._external_id = None
    try:
        _classify_run_id(settings, text)
    except ValueError:  # a digit that int() does not read: the client means a number, and fails
        return "resume-numeric"
    if settings._resume_run_id is not None:
        return "resume-numeric"
    return "resume-display" if settings._resume_display_id is not None else "external"


@given(LIKELY)
def test_classifies_as_the_client_does(text: str) -> None:
    assert classify_run_id(text) == of_client(text)


@pytest.mark.parametrize("text", ["123", "JOB-77", "2024-1", "A-1", "²", "", "  ", "x" * 256, "a\nb"])
def test_ids_that_no_job_could_share_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        check_run_id(text)


@pytest.mark.parametrize("text", ["job-77", "ABCDE-1", "multinode", "x" * 255, "JOB-77a", "läuft-1"])
def test_names_pass_unchanged(text: str) -> None:
    assert check_run_id(text) == text


def test_a_made_id_holds_the_nonce() -> None:
    assert "k3v9" in make_run_id("k3v9")
