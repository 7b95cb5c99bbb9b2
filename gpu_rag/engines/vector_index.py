"""Exact inner-product search over the rows of one matrix.

Queries run in tiles of one fixed, padded shape: a row of a matrix product differs in its last bits between a product of
1 row and one of 256, so only equal shapes give a query the same score alone and in any batch.
"""

import functools
from typing import Any

import numpy as np

from gpu_rag.engines.require import require
from gpu_rag.errors import EngineError

QUERY_TILE = 32
_TIE_MARGIN = 16  # hits asked for beyond k, to see whether rank k is tied with the next


class VectorIndex:
    """N vectors of one dimension; queries are compared with every one of them."""

    def __init__(self, vectors: np.ndarray) -> None:
        """Index float32 (N, D).

        Raises:
            EngineError: Naming the first row that is not finite.
        """
        self._vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        _check_finite(self._vectors, "indexed vector")

    def __len__(self) -> int:
        """Return N."""
        return len(self._vectors)

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """Return all inner products, float32 (B, N), of queries float32 (B, D).

        Raises:
            EngineError: If a query is not finite; its scores would rank nothing.
        """
        _check_finite(queries, "query")
        scores = np.empty((len(queries), len(self)), dtype=np.float32)
        for first, tile in _tiles(queries):
            rows = scores[first : first + QUERY_TILE]
            rows[:] = (tile @ self._vectors.T)[: len(rows)]
        return scores

    def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each query the rows int64 and scores float32 of its min(k, N) best, by score, then by lower row.

        Raises:
            EngineError: If a query is not finite.
        """
        _check_finite(queries, "query")
        k = min(k, len(self))
        if k == 0:
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        hits = []
        for first, tile in _tiles(queries):
            hits += self._search_tile(tile, min(QUERY_TILE, len(queries) - first), k)
        return hits

    def _search_tile(self, tile: np.ndarray, num_queries: int, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Search one tile, wider and wider until no real query's rank k is tied with a row left out."""
        width = min(k + _TIE_MARGIN, len(self))
        while True:
            scores, rows = self._faiss.search(tile, width)
            if width == len(self) or (scores[:num_queries, k - 1] > scores[:num_queries, -1]).all():
                break
            width = min(4 * width, len(self))
        orders = [np.lexsort((rows[query], -scores[query]))[:k] for query in range(num_queries)]
        return [(rows[query, order], scores[query, order]) for query, order in enumerate(orders)]

    @functools.cached_property
    def _faiss(self) -> Any:
        index = require("faiss", extra="cpu").IndexFlatIP(self._vectors.shape[1])
        index.add(self._vectors)
        return index


def _tiles(queries: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return (first query, float32 (QUERY_TILE, D)) tiles, the last one padded with zeros."""
    tiles = []
    for first in range(0, len(queries), QUERY_TILE):
        tile = np.zeros((QUERY_TILE, queries.shape[1]), dtype=np.float32)
        part = queries[first : first + QUERY_TILE]
        tile[: len(part)] = part
        tiles.append((first, tile))
    return tiles


def _check_finite(vectors: np.ndarray, what: str) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        raise EngineError(f"{what} {bad[0]} is not finite; it cannot be ranked")
