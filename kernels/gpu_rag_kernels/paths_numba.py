"""The cheapest paths among each query's nodes: best-first search with a bound from the far end.

Imports numba; import it at use. numba's cache on disk looks at no other file: after a change in `activation_numba`, change
this one too.

Shape suffixes: N nodes, A arcs, B queries, I entries of the incidence, P paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gpu_rag_kernels.activation_numba import _grown, dot

# A bound is added up from a path's far end, its cost from the near one: they may differ by rounding, not by this much.
_ROUNDING = 1.0 + 1e-12


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _reach(incidence: Any, seeds: Any, hops: int, both_ways: bool, epoch: int, stamp: Any, local: Any, nodes: Any) -> Any:
    """Write what lies within `hops` arcs of the seeds into nodes, seeds first; return how many, and how many seeds."""
    indptr, _, neighbours, outgoing = incidence
    size = 0
    for s in range(seeds.size):
        if stamp[seeds[s]] != epoch:
            stamp[seeds[s]], local[seeds[s]], nodes[size] = epoch, size, seeds[s]
            size += 1
    num_seeds, start = size, 0
    for _ in range(hops):
        stop = size
        for i in range(start, stop):
            for e in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
                node = neighbours[e]
                if stamp[node] != epoch and (both_ways or outgoing[e]):
                    stamp[node], local[node], nodes[size] = epoch, size, node
                    size += 1
        start = stop
        if size == stop:
            break
    return size, num_seeds


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _cost(arc: Any, q: int, vectors: Any, costs: Any, known: Any) -> Any:
    """Return the arc's cost for query q, 1 - max(0, cosine), in float64; the second of its ends finds it in `known`."""
    stamp, kept = known
    if stamp[arc] != q + 1:
        stamp[arc] = q + 1
        if costs is not None:
            kept[arc] = costs[q, arc]
        if vectors is not None:
            query_vectors, arc_vectors, length = vectors
            cosine = dot(query_vectors, arc_vectors, q * length, np.int64(arc) * length, length)
            kept[arc] = max(0.0, 1.0 - max(0.0, np.float64(cosine)))  # rounding can take a cosine above 1
    return kept[arc]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _links(incidence: Any, nodes: Any, size: int, local: Any, stamp: Any, q: int, vectors: Any, costs: Any, known: Any) -> Any:
    """Return starts, neighbours, arcs and costs within the subgraph; of parallel arcs the cheapest, then the lowest."""
    indptr, incident, neighbours, _ = incidence
    starts, at = np.zeros(size + 1, np.int64), np.full(size, -1, np.int64)
    node, arc, cost, total = np.empty(256, np.int32), np.empty(256, np.int32), np.empty(256, np.float64), 0
    for i in range(size):
        for e in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            if stamp[neighbours[e]] == q + 1:
                there, value = local[neighbours[e]], _cost(incident[e], q, vectors, costs, known)
                if at[there] < starts[i]:
                    node, arc, cost = (
                        _grown(node, total, total + 1),
                        _grown(arc, total, total + 1),
                        _grown(cost, total, total + 1),
                    )
                    at[there], node[total], arc[total], cost[total] = total, there, incident[e], value
                    total += 1
                elif value < cost[at[there]]:
                    arc[at[there]], cost[at[there]] = incident[e], value
        starts[i + 1] = total
    return starts, node, arc, cost


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _remaining(links: Any, num_ends: int, size: int, max_length: int) -> Any:
    """Return float64 (max_length, size): the least cost from a node to an end over at most so many arcs."""
    starts, node, _, cost = links
    least = np.full((max_length, size), np.inf)
    least[:, :num_ends] = 0.0
    for length in range(1, max_length):
        for i in range(num_ends, size):
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
def _pop(heap: Any, size: int, key: Any) -> Any:
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
    return top


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _with_room(items: Any, num_items: int, needed: int) -> Any:
    """Return the arrays of partial paths, each with room for so many; they grow with what a search does."""
    bound, total, here, parent, via, heap = items
    return (
        _grown(bound, num_items, needed), _grown(total, num_items, needed), _grown(here, num_items, needed),
        _grown(parent, num_items, needed), _grown(via, num_items, needed), _grown(heap, num_items, needed),
    )  # fmt: skip


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _search(links: Any, least: Any, num_ends: int, k: int, max_length: int, max_expansions: int, items: Any) -> Any:
    """Return the partial paths, which of them are paths (int32, at least the k cheapest), and whether it was cut.

    A partial path is its last node `here`, reached by arc `via` from partial path `parent`; `total` is its cost and `bound`
    the least cost of a path that begins so. The heap gives the one of the least bound, so the first paths are the cheapest.
    """
    starts, link_node, link_arc, link_cost = links
    items = _with_room(items, 0, num_ends)
    bound, total, here, parent, via, heap = items
    found, num_found = np.empty(64, np.int32), 0
    walked = np.empty(max_length + 1, np.int32)
    num_items, dearest = max(0, num_ends - 1), 0.0  # a path starts at the lower of its ends, so none at the highest
    for item in range(num_items):
        bound[item], total[item], here[item], parent[item], via[item], heap[item] = 0.0, 0.0, item, -1, -1, item
    waiting, looked = num_items, 0
    while waiting > 0:
        item = _pop(heap, waiting, bound)
        waiting -= 1
        if num_found >= k and bound[item] > dearest * _ROUNDING:
            break
        count, at = 0, item
        while at >= 0:
            walked[count] = here[at]
            count, at = count + 1, parent[at]
        last = here[item]
        if last < num_ends and last > walked[count - 1]:
            found = _grown(found, num_found, num_found + 1)
            found[num_found] = item
            if num_found < k:
                dearest = max(dearest, total[item])
            num_found += 1
        if count > max_length:
            continue
        looked += starts[last + 1] - starts[last]
        if looked > max_expansions:
            return items, found[:num_found], True
        items = _with_room(items, num_items, num_items + starts[last + 1] - starts[last])
        bound, total, here, parent, via, heap = items
        for e in range(starts[last], starts[last + 1]):
            there, cost = link_node[e], total[item] + link_cost[e]
            lowest = cost + least[max_length - count, there]
            if lowest == np.inf or (num_found >= k and lowest > dearest * _ROUNDING):
                continue
            seen = False
            for place in range(count):
                seen = seen or walked[place] == there
            if not seen:
                bound[num_items], total[num_items], here[num_items] = lowest, cost, there
                parent[num_items], via[num_items] = item, link_arc[e]
                _push(heap, waiting, bound, num_items)
                num_items, waiting = num_items + 1, waiting + 1
    return items, found[:num_found], False


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def cheapest(
    incidence: Any, num_nodes: int, num_arcs: int, end_indptr: Any, end_nodes: Any, vectors: Any, costs: Any, k: int,
    max_length: int, max_expansions: int,
) -> Any:  # fmt: skip
    """Return offsets of paths int64 (B + 1,), their costs, where each ends among the arcs, nodes, arcs, and bool (B,): cut.

    A path has one node more than arcs. It starts at the lower of its two ends; every path no dearer than the k-th is
    returned, so that the caller may choose among equals.

    Args:
        incidence: As in `activation_numba.activate`.
        num_nodes: N.
        num_arcs: A.
        end_indptr: int64 (B + 1,).
        end_nodes: int32, distinct and ascending within a query.
        vectors: None, or as in `activation_numba.activate`.
        costs: Without vectors: float32 (B, A), >= 0.
        k: Paths wanted, >= 1.
        max_length: Most arcs of a path, >= 1.
        max_expansions: Arcs after partial paths that a query's search looks at, at most.
    """
    num_queries = end_indptr.size - 1
    stamp, local, nodes = np.zeros(num_nodes, np.int32), np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    known = (np.zeros(num_arcs, np.int32), np.empty(num_arcs, np.float64))
    items = (
        np.empty(1024), np.empty(1024), np.empty(1024, np.int32), np.empty(1024, np.int32), np.empty(1024, np.int32),
        np.empty(1024, np.int32),
    )  # fmt: skip
    out_indptr, cut = np.zeros(num_queries + 1, np.int64), np.zeros(num_queries, np.bool_)
    out_costs, out_ends, num_paths = np.empty(64, np.float64), np.empty(64, np.int64), 0
    out_nodes, out_arcs, num_steps = np.empty(256, np.int32), np.empty(256, np.int32), 0
    for q in range(num_queries):
        ends = end_nodes[end_indptr[q] : end_indptr[q + 1]]
        # A node of a path lies within half its length of one end, so this is all that a path can touch.
        size, num_ends = _reach(incidence, ends, max_length // 2, True, q + 1, stamp, local, nodes)
        links = _links(incidence, nodes, size, local, stamp, q, vectors, costs, known)
        least = _remaining(links, num_ends, size, max_length)
        items, found, cut[q] = _search(links, least, num_ends, k, max_length, max_expansions, items)
        _, total, here, parent, via, _ = items
        for item in found:
            length, at = 0, parent[item]
            while at >= 0:
                length, at = length + 1, parent[at]
            out_costs, out_ends = _grown(out_costs, num_paths, num_paths + 1), _grown(out_ends, num_paths, num_paths + 1)
            out_nodes = _grown(out_nodes, num_steps + num_paths, num_steps + num_paths + length + 1)
            out_arcs = _grown(out_arcs, num_steps, num_steps + length)
            at = item
            for place in range(length, -1, -1):
                out_nodes[num_steps + num_paths + place] = nodes[here[at]]
                if place > 0:
                    out_arcs[num_steps + place - 1] = via[at]
                at = parent[at]
            num_steps += length
            out_costs[num_paths], out_ends[num_paths] = total[item], num_steps
            num_paths += 1
        out_indptr[q + 1] = num_paths
    return (
        out_indptr,
        out_costs[:num_paths],
        out_ends[:num_paths],
        out_nodes[: num_steps + num_paths],
        out_arcs[:num_steps],
        cut,
    )
