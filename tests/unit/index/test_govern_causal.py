"""Stage 06, causal protection: cue, direction, negation, hedge; each with a near case that it leaves alone."""

from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag.index import causal

Run = Callable[..., Any]


def reason(text: str, subject: str, predicate: str, object_: str, type_: str | None = None) -> str:
    places = [text.casefold().find(name.casefold()) for name in (subject, object_)]
    ends = [place + len(name) for place, name in zip(places, (subject, object_), strict=True)]
    return causal.check(text, (min(places), max(ends)), subject, predicate, object_, type_).reason


@pytest.mark.parametrize(
    "predicate", ["caused", "leads to", "resulted in", "died because of", "triggers", "was caused by", "gave rise to"]
)
def test_a_predicate_that_says_why_is_causal(predicate: str) -> None:
    assert causal.is_causal(None, predicate)
    assert causal.is_causal("causal", "and so")


@pytest.mark.parametrize("predicate", ["causeway of", "leads", "followed", "was born in", "married"])
def test_a_predicate_that_says_no_why_is_not(predicate: str) -> None:
    assert not causal.is_causal(None, predicate)
    assert not causal.is_causal("temporal", predicate)


@pytest.mark.parametrize(
    ("text", "subject", "predicate", "object_"),
    [
        ("The storm caused the flood.", "storm", "caused", "flood"),
        ("The flood was caused by the storm.", "storm", "caused", "flood"),
        ("The flood was caused by the storm.", "flood", "was caused by", "storm"),
        ("Because of the storm, the flood came.", "storm", "caused", "flood"),
        ("The flood came because of the storm.", "flood", "because of", "storm"),
        ("The storm, which was long, led in the end to a flood.", "storm", "led to", "flood"),
        ("The storm broke. The flood resulted from the storm.", "storm", "caused", "flood"),
        ("Not only did it rain; the storm caused the flood.", "storm", "caused", "flood"),
    ],
)
def test_what_the_text_says_in_this_direction_is_accepted(text: str, subject: str, predicate: str, object_: str) -> None:
    assert reason(text, subject, predicate, object_) == ""


@pytest.mark.parametrize(
    ("text", "subject", "predicate", "object_", "expected"),
    [
        ("The storm came after the flood.", "storm", "caused", "flood", "causal_without_cue"),
        ("The storm caused the flood.", "flood", "caused", "storm", "causal_direction"),
        ("The flood was caused by the storm.", "storm", "was caused by", "flood", "causal_direction"),
        ("Because of the storm, the flood came.", "flood", "led to", "storm", "causal_direction"),
        ("The storm did not cause the flood.", "storm", "caused", "flood", "causal_negated"),
        ("The storm never led to a flood.", "storm", "led to", "flood", "causal_negated"),
        ("The storm caused the flood.", "storm", "did not cause", "flood", "causal_negated"),
        ("The storm may cause the flood.", "storm", "causes", "flood", "causal_hedged"),
        ("The storm is thought to have led to the flood.", "storm", "led to", "flood", "causal_hedged"),
    ],
)
def test_what_the_text_does_not_say_is_caught(text: str, subject: str, predicate: str, object_: str, expected: str) -> None:
    assert reason(text, subject, predicate, object_) == expected


def test_a_denied_cause_may_be_stated_as_denied() -> None:
    assert reason("The storm did not cause the flood.", "storm", "did not cause", "flood") == ""


def test_a_negation_in_another_clause_does_not_count() -> None:
    assert reason("It did not rain; the storm caused the flood.", "storm", "caused", "flood") == ""


def test_of_a_causal_type_the_subject_is_the_cause_and_because_only_joins_the_two() -> None:
    text = "Orla left because the mill burned down."
    assert reason(text, "the mill burned down", "because", "Orla left", "causal") == ""
    assert reason(text, "Orla left", "because", "the mill burned down", "causal") == "causal_direction"
    assert reason(text, "Orla left", "because", "the mill burned down") == ""


@pytest.mark.parametrize(
    "text",
    [
        "Der Sturm kam, und dann kam die Flut \u00fcber das Land.",
        "\u0428\u0442\u043e\u0440\u043c \u043f\u0440\u0438\u0448\u0451\u043b, \u0438 Sturm Flut",
    ],
)
def test_without_a_list_of_cues_for_the_language_a_person_looks_at_it(text: str) -> None:
    assert reason(text, "Sturm", "caused", "Flut") == "causal_language"


def test_the_span_of_an_accepted_cause_holds_its_cue_and_stays_in_its_sentence(corpus: Run, govern: Run) -> None:
    text = "It rained. Because of the storm, the flood came. It was cold."
    triples = [["storm", "caused", "flood"], ["flood", "caused", "storm"]]
    rows = {
        row["subject_id"]: row
        for row in govern(corpus({"d": ("", text)}, {"d": ([], triples)}), "recorded")["relations"].to_pylist()
    }
    accepted = [row for row in rows.values() if row["decision"] == "accept"]
    assert [text[row["start"] : row["end"]] for row in accepted] == ["Because of the storm, the flood"]
    assert [row["reasons"] for row in rows.values() if row["decision"] == "reject"] == [["causal_direction"]]
