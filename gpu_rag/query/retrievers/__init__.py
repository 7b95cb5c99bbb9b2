"""Retrievers: each ranks the chunks for a whole batch of query texts; what a query gets does not depend on its batch.

Arithmetic on a query's scores runs on its own row, since vector instructions may treat the same number differently at
another place of a longer array.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Queries:
    """B query texts and their embeddings, float32 (B, D)."""

    texts: list[str]
    vectors: np.ndarray


@dataclass(frozen=True, eq=False)
class Ranking:
    """One query's best chunks.

    Attributes:
        rows: int64 (k,), chunk rows by score, equal scores by chunk id.
        scores: float32 (k,).
        flags: What was out of the ordinary, such as `fallback_dense`.
    """

    rows: np.ndarray
    scores: np.ndarray
    flags: tuple[str, ...] = ()


def top_rows(scores: np.ndarray, depth: int, *, positive: bool = False, flags: tuple[str, ...] = ()) -> Ranking:
    """Return the `depth` best of scores (C,), by score, then by row; only scores above 0 if `positive`."""
    rows = np.flatnonzero(scores > 0) if positive else np.arange(len(scores))
    if len(rows) > depth:
        bound = np.partition(scores[rows], len(rows) - depth)[len(rows) - depth]
        rows = rows[scores[rows] >= bound]
    rows = rows[np.argsort(-scores[rows], kind="stable")][:depth]
    return Ranking(rows.astype(np.int64), scores[rows].astype(np.float32), flags)


def min_max(scores: np.ndarray) -> np.ndarray:
    """Return scores (n,) moved to [0, 1]; equal scores become 1 if they are above 0 (as HippoRAG 2 does), else 0."""
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.full_like(scores, high > 0)
