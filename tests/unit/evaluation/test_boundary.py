"""Outcome classes and the boundary-balanced score."""

import pytest

from gpu_rag.errors import InputError
from gpu_rag.evaluation.boundary import boundary_balanced_score, outcome_class


@pytest.mark.parametrize(
    ("answerable", "outcome", "lenient", "expected"),
    [
        (True, "answered", 1.0, "correct"),
        (True, "answered", 0.0, "wrong"),
        (True, "answered", None, "answered"),
        (True, "refused", 0.0, "false_refusal"),
        (False, "answered", None, "false_answer"),
        (False, "refused", None, "correct_refusal"),
        (None, "answered", None, "answered"),
        (None, "refused", None, "refused"),
    ],
)
def test_class_follows_from_label_and_outcome(
    answerable: bool | None, outcome: str, lenient: float | None, expected: str
) -> None:
    got = outcome_class(state="ok", outcome=outcome, answerable=answerable, lenient=lenient, question_id="q")
    assert got == expected


@pytest.mark.parametrize("answerable", [True, False, None])
def test_a_row_that_is_not_ok_is_an_error_and_never_a_refusal(answerable: bool | None) -> None:
    assert outcome_class(state="error", outcome=None, answerable=answerable, lenient=0.0, question_id="q") == "error"


def test_an_ok_row_without_outcome_is_refused_by_id() -> None:
    with pytest.raises(InputError, match=r"'q7'.*None"):
        outcome_class(state="ok", outcome=None, answerable=True, lenient=0.0, question_id="q7")


@pytest.mark.parametrize(
    ("lenient", "refusal", "expected"),
    [
        (0.901, 1.0, 2 * 0.901 / 1.901),
        (0.5, 0.5, 0.5),
        (0.0, 0.0, 0.0),
        (1.0, 0.0, 0.0),
        (None, 1.0, None),
        (0.3, None, None),
    ],
)
def test_bbs_is_the_harmonic_mean_zero_if_both_are_and_undefined_without_a_group(
    lenient: float | None, refusal: float | None, expected: float | None
) -> None:
    assert boundary_balanced_score(lenient, refusal) == (expected if expected is None else pytest.approx(expected))
