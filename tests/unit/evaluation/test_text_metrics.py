"""EM, F1 and containment of one answer, against values computed by hand and against the official SQuAD rules."""

import re
import string
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_rag.evaluation.text_metrics import contains, exact_match, f1, squad_tokens, unicode_exact_match, unicode_f1
from gpu_rag.spans import is_blank

_WORDS = st.lists(
    st.sampled_from(["the", "a", "Cat", "cat,", "sat", "2001", "Z\u00fcrich", "\u6771\u4eac", "-"]), max_size=6
).map(" ".join)


@pytest.mark.parametrize(
    ("answer", "gold", "expected_em", "expected_f1"),
    [
        ("The Cat!", "cat", 1.0, 1.0),
        ("the 63 days", "63 days", 1.0, 1.0),
        ("63", "63 days", 0.0, 2 / 3),  # precision 1/1, recall 1/2
        ("G. Stanley Hall", "Stanley Hall", 0.0, 0.8),  # precision 2/3, recall 2/2
        ("a cat sat on the mat", "the cat ate the mat", 0.0, 4 / 7),  # cat sat on mat | cat ate mat
        ("New York New York", "New York", 0.0, 2 / 3),  # repeated tokens count as often as they are in both
        ("York New", "New York", 0.0, 1.0),
        ("blue", "red", 0.0, 0.0),
        ("", "red", 0.0, 0.0),
        ("U.S.", "US", 1.0, 1.0),
        ("well-known", "wellknown", 1.0, 1.0),  # the official form removes punctuation, it does not split there
    ],
)
def test_em_and_f1_equal_hand_computed_values(answer: str, gold: str, expected_em: float, expected_f1: float) -> None:
    assert exact_match(answer, gold) == expected_em
    assert f1(answer, gold) == pytest.approx(expected_f1, abs=1e-12)


@given(_WORDS, _WORDS)
def test_em_and_f1_equal_the_official_squad_rules_wherever_the_gold_normalises_to_something(answer: str, gold: str) -> None:
    def official(text: str) -> str:
        kept = "".join(char for char in text.lower() if char not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())

    if not official(gold):
        return
    given_tokens, gold_tokens = official(answer).split(), official(gold).split()
    num_same = sum((Counter(given_tokens) & Counter(gold_tokens)).values())
    expected = 0.0
    if num_same:
        precision, recall = num_same / len(given_tokens), num_same / len(gold_tokens)
        expected = 2 * precision * recall / (precision + recall)
    assert exact_match(answer, gold) == float(official(answer) == official(gold))
    assert f1(answer, gold) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [exact_match, f1, unicode_exact_match, unicode_f1, contains])
@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("A", "A", 1.0), ("a", "A", 1.0), ("B", "A", 0.0), ("", "A", 0.0), ("cat", "A", 0.0), ("a cat", "A", 0.0),
        ("The", "The", 1.0), ("A", "The", 0.0), (".", ".", 1.0), ("", ".", 0.0), ("x", ".", 0.0), ("", "", 1.0),
        ("x", "", 0.0),
    ],
)  # fmt: skip
def test_a_gold_of_articles_or_punctuation_alone_is_matched_by_itself_only(
    metric: Callable[[str, str], float], answer: str, gold: str, expected: float
) -> None:
    assert metric(answer, gold) == expected


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("\u00abParis\u00bb", "paris"), ("STRASSE", "stra\u00dfe"), ("Cafe\u0301", "caf\u00e9"),
        ("\uff21\uff22\uff23", "abc"), ("\u6771\u4eac\u3002", "\u6771\u4eac"), ("1914\u20131918", "1914-1918"),
        ("the  Beatles", "Beatles"), ("\u2019Tis", "tis"),
    ],
)  # fmt: skip
def test_strict_sees_through_case_script_forms_and_typography(answer: str, gold: str) -> None:
    assert unicode_exact_match(answer, gold) == 1.0
    assert unicode_f1(answer, gold) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("in Stuttgart", "art", 0.0),  # no part of a word
        ("in the city of New York, USA", "New York", 1.0),
        ("York is new", "New York", 0.0),  # order counts
        ("New South York", "New York", 0.0),  # in a row
        ("the end of the war", "end of war", 1.0),  # articles are in neither
        ("Paris", "Paris, France", 0.0),  # the gold in the answer, not the answer in the gold
        ("\u6771\u4eac\u3067\u3059", "\u6771\u4eac", 1.0),  # scripts without spaces: characters
        ("\u4eac\u6771", "\u6771\u4eac", 0.0),
    ],
)
def test_containment_is_of_whole_words_in_a_row(answer: str, gold: str, expected: float) -> None:
    assert contains(answer, gold) == expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_metrics_stay_in_bounds_and_in_order_on_any_text(answer: str, gold: str) -> None:
    for em, score in ((exact_match, f1), (unicode_exact_match, unicode_f1)):
        assert em(answer, gold) <= score(answer, gold) <= 1.0
    assert unicode_exact_match(answer, gold) <= contains(answer, gold)
    if not is_blank(gold):
        assert exact_match(gold, gold) == f1(gold, gold) == contains(gold, gold) == 1.0


def test_squad_form_is_empty_for_articles_and_punctuation() -> None:
    assert squad_tokens("The, a -- an!") == ()
