"""Synonym pairs: entities whose names have nearly the same vector.

Exact, and no more than a block of products at once. What cannot reach the threshold is seen in a quarter of the dimensions: the
vectors are turned so that these hold most of every vector, and the length of what is left of two of them bounds the rest of
their product (Cauchy-Schwarz). Cosines are computed pair by pair, so that they depend on the two vectors alone.

Shape suffixes: M entities, B entities of one block, D dimension, K = D / 4 + 1.
"""

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 32 * 2**20  # one block of products; its rows follow from the number of entities
_SLICE_BYTES = 8 * 2**20  # vectors of pairs that are multiplied at once
_SLACK = 1e-4  # more than the rounding of any product here
_FEW = 2000  # entities for which the bounds cost more than they save
_DENSE = 16  # where more than one pair of so many may be alike, their products are cheaper than their vectors


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
    bounds_MK = vectors_MD if num_entities <= _FEW else _bounds(vectors_MD)
    pairs: list[NDArray[np.int64]] = []
    cosines: list[NDArray[np.float32]] = []
    for start in range(0, num_entities, rows):
        block = slice(start, start + rows)
        source, target = _candidates(bounds_MK[block] @ bounds_MK.T, start, threshold, num_entities)
        if len(source) * _DENSE > num_entities * rows:
            source, target = _candidates(vectors_MD[block] @ vectors_MD.T, start, threshold, per_entity)
        cosine = _cosines(vectors_MD, source + start, target)
        alike = cosine >= threshold
        source, target, cosine = source[alike], target[alike], cosine[alike]
        crowded = np.bincount(source, minlength=rows)[source] > per_entity
        keep = ~crowded
        keep[_nearest(source, cosine, np.flatnonzero(crowded), per_entity)] = True
        source, target, cosine = source[keep] + start, target[keep], cosine[keep]
        pairs.append(np.minimum(source, target) * num_entities + np.maximum(source, target))
        cosines.append(cosine)
    if not pairs:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    codes, first = np.unique(np.concatenate(pairs), return_index=True)
    return codes // num_entities, codes % num_entities, np.minimum(np.concatenate(cosines)[first], np.float32(1.0))


def _bounds(vectors_MD: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 (M, K) with products no smaller than those of the vectors: main dimensions, and the length of the rest."""
    num_entities, dim = vectors_MD.shape
    moments_DD = np.zeros((dim, dim))
    rows = max(1, _BLOCK_BYTES // (8 * max(1, dim)))
    for start in range(0, num_entities, rows):
        block_BD = vectors_MD[start : start + rows].astype(np.float64)
        moments_DD += block_BD.T @ block_BD
    turned_DD = np.linalg.eigh(moments_DD)[1][:, ::-1].astype(np.float32)
    num_main = max(1, dim // 4)
    bounds_MK = np.empty((num_entities, num_main + 1), np.float32)
    for start in range(0, num_entities, rows):
        main_BD = vectors_MD[start : start + rows] @ turned_DD
        bounds_MK[start : start + rows, :num_main] = main_BD[:, :num_main]
        bounds_MK[start : start + rows, num_main] = np.linalg.norm(main_BD[:, num_main:], axis=1)
    return bounds_MK


def _candidates(
    products_BM: NDArray[np.float32], start: int, threshold: float, per_entity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (row in the block, entity) of the pairs that may have the cosine and be among the nearest `per_entity`, sorted."""
    num_rows, num_entities = products_BM.shape
    own = np.arange(num_rows)
    products_BM[own, start + own] = -1.0
    least_B1 = np.full((num_rows, 1), threshold - _SLACK, np.float32)
    if per_entity < num_entities:
        last = num_entities - per_entity
        least_B1 = np.maximum(least_B1, np.partition(products_BM, last, axis=1)[:, last : last + 1] - np.float32(_SLACK))
    flat = np.flatnonzero(products_BM >= least_B1)
    return flat // num_entities, flat % num_entities


def _cosines(vectors_MD: NDArray[np.float32], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the product of each pair of vectors, whatever pairs are asked for with it."""
    products = np.empty(len(first), np.float32)
    size = max(1, _SLICE_BYTES // (4 * max(1, vectors_MD.shape[1])))
    for start in range(0, len(first), size):
        part = slice(start, start + size)
        products[part] = np.einsum("pd,pd->p", vectors_MD[first[part]], vectors_MD[second[part]])
    return products


def _nearest(
    source: NDArray[np.int64], cosine: NDArray[np.float32], crowded: NDArray[np.int64], per_entity: int
) -> NDArray[np.int64]:
    """Return the crowded pairs among the first `per_entity` of their source by falling cosine, then target."""
    order = crowded[np.lexsort((crowded, -cosine[crowded], source[crowded]))]
    sources = source[order]
    begins = np.flatnonzero(np.r_[True, sources[1:] != sources[:-1]]) if len(sources) else np.empty(0, np.int64)
    place = np.arange(len(sources)) - np.repeat(begins, np.diff(np.r_[begins, len(sources)]))
    return order[place < per_entity]
