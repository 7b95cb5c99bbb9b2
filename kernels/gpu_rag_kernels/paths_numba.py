"""The cheapest paths among each query's nodes: best-first search with a bound from the far end.

Imports numba; import it at use. numba's cache on disk looks at no other file: after a change in `activation_numba`, change
this one too.

Shape suffixes: N nodes, A arcs, B queries, I entries of the incidence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gpu_rag_kernels.activation_numba import _grown, _reach, dot

_ROUNDING = 1e-9  # by which a bound may miss the cost that it bounds


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _cost(arc: Any, q: int, vectors: Any, costs: Any) -> Any:
    """Return the arc's cost for query q: 1 - max(0, cosine), in float64."""
    cost = 0.0
    if vectors is not None:
        query_vectors, arc_vectors, length = vectors
        cost = 1.0 - max(0.0, np.float64(dot(query_vectors, arc_vectors, q * length, np.int64(arc) * length, length)))
    if costs is not None:
        cost = np.float64(costs[q, arc])
    return cost


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _links(incidence: Any, nodes: Any, size: int, local: Any, stamp: Any, epoch: int, q: int, vectors: Any, costs: Any) -> Any:
    """Return starts, neighbours, arcs and costs within the subgraph; of parallel arcs the cheapest, then the lowest."""
    indptr, incident, neighbours, _ = incidence
    starts, at = np.zeros(size + 1, np.int64), np.full(size, -1, np.int64)
    node, arc, cost, total = np.empty(256, np.int32), np.empty(256, np.int32), np.empty(256, np.float64), 0
    for i in range(size):
        first, last = indptr[nodes[i]], indptr[nodes[i] + 1]
        node, arc = _grown(node, total, total + last - first), _grown(arc, total, total + last - first)
        cost = _grown(cost, total, total + last - first)
        for e in range(first, last):
            if stamp[neighbours[e]] == epoch:
                there, value = local[neighbours[e]], _cost(incident[e], q, vectors, costs)
                if at[there] < starts[i]:
                    at[there], node[total], arc[total], cost[total] = total, there, incident[e], value
                    total += 1
                elif value < cost[at[there]]:
                    arc[at[there]], cost[at[there]] = incident[e], value
        starts[i + 1] = total
    return starts, node[:total], arc[:total], cost[:total]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _remaining(links: Any, num_targets: int, size: int, max_length: int) -> Any:
    """Return float64 (max_length + 1, size): the least cost from a node to a target over at most so many arcs."""
    starts, node, _, cost = links
    least = np.full((max_length + 1, size), np.inf)
    least[:, :num_targets] = 0.0
    for length in range(1, max_length + 1):
        for i in range(num_targets, size):
            best = least[length - 1, i]
            for e in range(starts[i], starts[i + 1]):
                best = min(best, cost[e] + least[length - 1, node[e]])
            least[length, i] = best
    return least


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _push(heap: Any, size: int, key: Any, item: int) -> None:
    at = size
    while at > 0 and key[heap[(at - 1) // 2]] > key[item]:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = item


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _pop(heap: Any, size: int, key: Any) -> int:
    """Return the item of the least key and close the gap; size is that before."""
    top, last, at = heap[0], heap[size - 1], 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[heap[child]] >= key[last]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return int(top)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def cheapest(
    incidence: Any, num_nodes: int, seed_indptr: Any, seed_nodes: Any, vectors: Any, costs: Any, k: int, max_length: int,
    max_expansions: int,
) -> Any:  # fmt: skip
    """Return offsets of paths int64 (B + 1,), their costs, their ends among nodes and arcs, and bool (B,) where it was cut.

    A path has one node more than arcs. It starts at the lower of its two ends; every path no dearer than the k-th is
    returned, so that the caller may choose among equals.

    Args:
        incidence: As in `activation_numba.activate`.
        num_nodes: N.
        seed_indptr: int64 (B + 1,).
        seed_nodes: int32, distinct and ascending within a query.
        vectors: None, or as in `activation_numba.activate`.
        costs: Without vectors: float32 (B, A), >= 0.
        k: Paths wanted, >= 1.
        max_length: Most arcs of a path, >= 1.
        max_expansions: Partial paths of a query that are gone on with, at most.
    """
    num_queries = seed_indptr.size - 1
    stamp, local, nodes = np.zeros(num_nodes, np.int32), np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    out_indptr, cut = np.zeros(num_queries + 1, np.int64), np.zeros(num_queries, np.bool_)
    out_costs, out_ends, num_paths = np.empty(64, np.float64), np.empty(64, np.int64), 0
    out_nodes, out_arcs, num_arcs = np.empty(256, np.int32), np.empty(256, np.int32), 0
    key, cost = np.empty(1024, np.float64), np.empty(1024, np.float64)
    here, parent, via, length = (
        np.empty(1024, np.int32), np.empty(1024, np.int32), np.empty(1024, np.int32), np.empty(1024, np.int32)
    )  # fmt: skip
    heap = np.empty(1024, np.int32)
    walked = np.empty(max_length + 1, np.int32)
    for q in range(num_queries):
        seeds = seed_nodes[seed_indptr[q] : seed_indptr[q + 1]]
        # A node of a path lies within half its length of one of its ends, so this is all that a path can touch.
        size, num_seeds = _reach(incidence, seeds, max_length // 2, True, q + 1, stamp, local, nodes)
        links = _links(incidence, nodes, size, local, stamp, q + 1, q, vectors, costs)
        starts, link_node, link_arc, link_cost = links
        least = _remaining(links, num_seeds, size, max_length)
        num_items, waiting, expansions, found, dearest = 0, 0, 0, 0, np.inf
        for s in range(num_seeds):
            key[num_items], cost[num_items], here[num_items], parent[num_items], length[num_items] = 0.0, 0.0, s, -1, 0
            heap = _grown(heap, waiting, waiting + 1)
            _push(heap, waiting, key, num_items)
            num_items, waiting = num_items + 1, waiting + 1
            key, cost = _grown(key, num_items, num_items + 1), _grown(cost, num_items, num_items + 1)
            here, parent = _grown(here, num_items, num_items + 1), _grown(parent, num_items, num_items + 1)
            via, length = _grown(via, num_items, num_items + 1), _grown(length, num_items, num_items + 1)
        while waiting > 0:
            item = _pop(heap, waiting, key)
            waiting -= 1
            if key[item] > dearest + _ROUNDING:
                break
            count, at = 0, item
            while at >= 0:
                walked[count] = here[at]
                count, at = count + 1, parent[at]
            origin = walked[count - 1]
            if count > 1 and here[item] < num_seeds and here[item] > origin:
                out_costs, out_ends = _grown(out_costs, num_paths, num_paths + 1), _grown(out_ends, num_paths, num_paths + 1)
                out_nodes = _grown(out_nodes, num_arcs + num_paths, num_arcs + num_paths + count)
                out_arcs = _grown(out_arcs, num_arcs, num_arcs + count)
                at = item
                for place in range(count - 1, -1, -1):
                    out_nodes[num_arcs + num_paths + place] = nodes[here[at]]
                    if place > 0:
                        out_arcs[num_arcs + place - 1] = via[at]
                    at = parent[at]
                num_arcs += count - 1
                out_costs[num_paths], out_ends[num_paths] = cost[item], num_arcs
                num_paths, found = num_paths + 1, found + 1
                if found == k:
                    dearest = cost[item]
            if length[item] == max_length:
                continue
            if expansions == max_expansions:
                cut[q] = True
                break
            expansions += 1
            for e in range(starts[here[item]], starts[here[item] + 1]):
                there, new = link_node[e], cost[item] + link_cost[e]
                bound = new + least[max_length - length[item] - 1, there]
                if bound > dearest + _ROUNDING or bound == np.inf:
                    continue
                seen = False
                for place in range(count):
                    seen = seen or walked[place] == there
                if not seen:
                    key, cost = _grown(key, num_items, num_items + 1), _grown(cost, num_items, num_items + 1)
                    here, parent = _grown(here, num_items, num_items + 1), _grown(parent, num_items, num_items + 1)
                    via, length = _grown(via, num_items, num_items + 1), _grown(length, num_items, num_items + 1)
                    heap = _grown(heap, waiting, waiting + 1)
                    key[num_items], cost[num_items], here[num_items] = bound, new, there
                    parent[num_items], via[num_items], length[num_items] = item, link_arc[e], length[item] + 1
                    _push(heap, waiting, key, num_items)
                    num_items, waiting = num_items + 1, waiting + 1
        out_indptr[q + 1] = num_paths
    return out_indptr, out_costs[:num_paths], out_ends[:num_paths], out_nodes[: num_arcs + num_paths], out_arcs[:num_arcs], cut
