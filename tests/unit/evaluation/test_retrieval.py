"""recall@k of one ranking against hand-computed values."""

import pytest

from gpu_rag.evaluation.retrieval import distinct, max_recall_at_k, recall_at_k


@pytest.mark.parametrize(("k", "expected"), [(1, 0.25), (2, 0.25), (3, 0.5), (4, 0.5), (5, 0.75), (10, 0.75), (20, 0.75)])
def test_recall_equals_hand_computed_values_also_for_rankings_shorter_than_k(k: int, expected: float) -> None:
    ranking = ["g1", "x", "g2", "y", "g3", "z"]
    assert recall_at_k(ranking, {"g1", "g2", "g3", "g4"}, k) == expected


def test_recall_of_an_empty_ranking_is_zero() -> None:
    assert recall_at_k([], {"g"}, 5) == 0.0


@pytest.mark.parametrize(("k", "expected"), [(1, 0.25), (2, 0.5), (4, 1.0), (5, 1.0)])
def test_bound_is_what_a_perfect_ranking_reaches(k: int, expected: float) -> None:
    gold = ["g1", "g2", "g3", "g4"]
    assert max_recall_at_k(gold, k) == recall_at_k(gold, gold, k) == expected


def test_a_document_counts_at_its_first_rank_only() -> None:
    assert distinct(["a", "b", "a", "c", "b"]) == ["a", "b", "c"]
