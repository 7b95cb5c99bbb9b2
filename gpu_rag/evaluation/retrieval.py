"""One ranking against its gold supports: recall@k over distinct document ids, and the highest recall@k there is.

Several chunks of one document, or a document listed twice, count once, at their first rank; how many rows came after a
first one is reported. With more gold supports than k, recall@k cannot reach 1: `max_recall_at_k` says how far it can.
"""

from collections.abc import Collection, Sequence

RECALL_DEPTHS = (1, 2, 5, 10, 20)


def distinct(doc_ids: Sequence[str]) -> list[str]:
    """Return the document ids in rank order, each at its first occurrence only."""
    return list(dict.fromkeys(doc_ids))


def recall_at_k(ranking: Sequence[str], gold: Collection[str], k: int) -> float:
    """Return the share of gold documents among the first k of the ranking, in [0, 1].

    Args:
        ranking: Distinct document ids, best first; may be shorter than k, or empty.
        gold: Distinct document ids, at least one.
        k: Cut-off, at least 1.
    """
    return len(set(ranking[:k]) & set(gold)) / len(gold)


def max_recall_at_k(gold: Collection[str], k: int) -> float:
    """Return the recall@k of a perfect ranking: min(k, number of gold documents) / number of gold documents."""
    return min(k, len(gold)) / len(gold)
