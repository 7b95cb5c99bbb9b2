"""Synonym pairs: entities whose names have nearly the same vector.

Shape suffixes: M entities, B entities of one block, D dimension.
"""

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 64 * 2**20  # one block of products; its rows follow from the number of entities


def synonym_pairs(
    vectors_MD: NDArray[np.float32], threshold: float, per_entity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return (first, second, cosine) of the pairs with cosine at least `threshold`, first < second, sorted.

    Each entity proposes its `per_entity` nearest, the smaller row first among equal cosines; a pair is kept if either
    end proposes it. Memory is bounded by one block of products and the pairs kept, never (M, M).

    Args:
        vectors_MD: float32 (M, D), L2-normalised.
        threshold: Smallest cosine of a pair.
        per_entity: Most pairs that one entity proposes.

    Source: public code of HippoRAG 2 (`add_synonymy_edges`: 0.8, 100).
    """
    num_entities = len(vectors_MD)
    rows = max(1, _BLOCK_BYTES // (4 * max(1, num_entities)))
    pairs: list[NDArray[np.int64]] = []
    cosines: list[NDArray[np.float32]] = []
    for start in range(0, num_entities, rows):
        products_BM = vectors_MD[start : start + rows] @ vectors_MD.T
        own = np.arange(len(products_BM))
        products_BM[own, start + own] = -1.0
        source, target = np.nonzero(products_BM >= threshold)
        cosine = products_BM[source, target]
        crowded = np.bincount(source, minlength=len(products_BM))[source] > per_entity
        keep = ~crowded
        keep[_nearest(source, cosine, np.flatnonzero(crowded), per_entity)] = True
        source, target, cosine = source[keep] + start, target[keep], cosine[keep]
        pairs.append(np.minimum(source, target) * num_entities + np.maximum(source, target))
        cosines.append(cosine)
    if not pairs:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    # Both ends compute the cosine, in blocks of different shape: the mean of the two last bits would depend on who
    # proposes it, so the first occurrence, that of the smaller row's block, is taken.
    codes, first = np.unique(np.concatenate(pairs), return_index=True)
    return codes // num_entities, codes % num_entities, np.minimum(np.concatenate(cosines)[first], np.float32(1.0))


def _nearest(
    source: NDArray[np.int64], cosine: NDArray[np.float32], crowded: NDArray[np.int64], per_entity: int
) -> NDArray[np.int64]:
    """Return the crowded pairs among the first `per_entity` of their source by falling cosine, then target."""
    order = crowded[np.lexsort((crowded, -cosine[crowded], source[crowded]))]
    sources = source[order]
    begins = np.flatnonzero(np.r_[True, sources[1:] != sources[:-1]]) if len(sources) else np.empty(0, np.int64)
    place = np.arange(len(sources)) - np.repeat(begins, np.diff(np.r_[begins, len(sources)]))
    return order[place < per_entity]
