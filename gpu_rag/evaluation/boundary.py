"""Answer or refuse: the outcome class of one question, and the boundary-balanced score of a run.

A row that was not processed (its state is not ok) is neither an answer nor a refusal: it is an `error` here, counts as
wrong in the answer metrics, and never improves a refusal rate.
"""

from gpu_rag.errors import InputError

CLASSES = (
    "correct", "wrong", "correct_refusal", "false_answer", "false_refusal", "answered", "refused", "error",
)  # fmt: skip
OUTCOMES = ("answered", "refused")


def outcome_class(*, state: str, outcome: str | None, answerable: bool | None, lenient: float | None, question_id: str) -> str:
    """Return the class of one question, one of `CLASSES`.

    Args:
        state: Row state of the answer.
        outcome: `answered` or `refused`; anything else only where the state is not ok.
        answerable: Gold label; None gives the classes `answered` and `refused`, which judge nothing.
        lenient: Whether the answer holds a gold answer; None (answerable, but no gold answer is known) judges nothing.
        question_id: Named in the error.

    Raises:
        InputError: If the state is ok and the outcome is neither of the two.
    """
    if state != "ok":
        return "error"
    if outcome not in OUTCOMES:
        raise InputError(f"table answers, id {question_id!r}: state ok with outcome {outcome!r}, expected {OUTCOMES}")
    if answerable is None:
        return outcome
    if not answerable:
        return "false_answer" if outcome == "answered" else "correct_refusal"
    if outcome == "refused":
        return "false_refusal"
    if lenient is None:
        return outcome
    return "correct" if lenient else "wrong"


def boundary_balanced_score(lenient: float | None, correct_refusal: float | None) -> float | None:
    """Return BBS of PAGE-RAG: 2 * lenient * correct_refusal / (lenient + correct_refusal).

    0.0 if both are 0, None if either is undefined, since there are no answerable or no unanswerable questions.
    """
    if lenient is None or correct_refusal is None:
        return None
    total = lenient + correct_refusal
    return 2.0 * lenient * correct_refusal / total if total else 0.0
