"""Neighbourhoods of many queries on a CSR graph, touching only what they reach. Imports numba; import it at use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def neighbourhoods(indptr: Any, indices: Any, seed_indptr: Any, seed_nodes: Any, hops: int, limit: int) -> Any:
    """Return offsets int64 (B + 1,), nodes int32 ascending in a query, hop of each int32, and bool (B,) where limit cut.

    Args:
        indptr: int64 (N + 1,).
        indices: int32 or int64 (E,), ascending in a row.
        seed_indptr: int64 (B + 1,).
        seed_nodes: int32, in [0, N).
        hops: How far to go.
        limit: Most nodes of a query; of the hop that does not fit whole, the lowest nodes are kept, and nothing beyond.
    """
    num_nodes, num_queries = indptr.size - 1, seed_indptr.size - 1
    stamp = np.zeros(num_nodes, np.int32)
    found, hop = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    out_indptr, cut = np.zeros(num_queries + 1, np.int64), np.zeros(num_queries, np.bool_)
    nodes, distances, total = np.empty(256, np.int32), np.empty(256, np.int32), 0
    for q in range(num_queries):
        size = 0
        for s in range(seed_indptr[q], seed_indptr[q + 1]):
            if stamp[seed_nodes[s]] != q + 1:
                stamp[seed_nodes[s]], found[size], hop[size] = q + 1, seed_nodes[s], 0
                size += 1
        start = 0
        for distance in range(hops + 1):
            if distance > 0:
                stop = size
                for i in range(start, stop):
                    for e in range(indptr[found[i]], indptr[found[i] + 1]):
                        if stamp[indices[e]] != q + 1:
                            stamp[indices[e]], found[size], hop[size] = q + 1, indices[e], distance
                            size += 1
                start = stop
            if size > limit:
                kept = limit - start
                found[start:limit] = np.partition(found[start:size], max(0, kept - 1))[:kept]
                size, cut[q] = limit, True
                break
            if start == size and distance > 0:
                break
        if total + size > nodes.size:
            room = max(total + size, 2 * nodes.size)
            wider, further = np.empty(room, np.int32), np.empty(room, np.int32)
            wider[:total], further[:total] = nodes[:total], distances[:total]
            nodes, distances = wider, further
        order = np.argsort(found[:size])
        nodes[total : total + size] = found[:size][order]
        distances[total : total + size] = hop[:size][order]
        total += size
        out_indptr[q + 1] = total
    return out_indptr, nodes[:total], distances[:total], cut
