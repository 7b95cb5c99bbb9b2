"""Spreading activation over the active part of an arc graph, one query after the other.

Of a query's subgraph only its nodes are gathered. A pass ends as soon as no node above 0 is left that has not spread, and the
weight of an arc is computed when a node above 0 first spreads over it: both change nothing in the result, since a node at 0
and an arc of weight 0 add nothing, but most arcs are never looked at.

Marks: `state[node]` is a time. Below `base` the node is off the subgraph, from `first` on it was found in this pass. Time only
rises, so nothing is cleared between queries. Inner helpers take arrays one by one: numba counts references to those in a tuple.

Imports numba; import it at use. numba's cache on disk looks at no other file: after a change in `vector_code`, change this
one too.

Shape suffixes: N nodes, A arcs, D dimensions, B queries, I entries of the incidence.
Source: SA-RAG (arXiv:2512.15922) as its authors' public code runs it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from gpu_rag_kernels.vector_code import INT64, VectorEmitter

DOT_LANES = 16
_UNROLLED = 4  # sums that run side by side, since an addition takes as long as four loads


def _emit_dot(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    code = VectorEmitter(context, builder, signature.args, values, lanes=DOT_LANES, scalar=types.float32)
    left_start, right_start, length = values[2], values[3], values[4]
    step = ir.Constant(INT64, DOT_LANES * _UNROLLED)
    before = builder.block
    loop, end = builder.append_basic_block("dot"), builder.append_basic_block("dot_end")
    builder.cbranch(builder.icmp_signed("<", ir.Constant(INT64, 0), length), loop, end)
    builder.position_at_end(loop)
    at = builder.phi(INT64)
    sums = [builder.phi(code.vector) for _ in range(_UNROLLED)]
    new_sums = []
    for number, total in enumerate(sums):
        offset = builder.add(at, ir.Constant(INT64, number * DOT_LANES))
        left, right = (code.load_at(side, builder.add(start, offset)) for side, start in ((0, left_start), (1, right_start)))
        new_sums.append(code.call("fma", left, right, total))
    after = builder.add(at, step)
    builder.cbranch(builder.icmp_signed("<", after, length), loop, end)
    builder.position_at_end(end)
    totals = [builder.phi(code.vector) for _ in range(_UNROLLED)]
    at.add_incoming(ir.Constant(INT64, 0), before)
    at.add_incoming(after, loop)
    for total, new, final in zip(sums, new_sums, totals, strict=True):
        total.add_incoming(code.zero, before)
        total.add_incoming(new, loop)
        final.add_incoming(code.zero, before)
        final.add_incoming(new, loop)
    return code.sum(builder.fadd(builder.fadd(totals[0], totals[1]), builder.fadd(totals[2], totals[3])))


@intrinsic  # type: ignore[untyped-decorator]
def dot(typing: Any, left: Any, right: Any, left_start: Any, right_start: Any, length: Any) -> Any:
    """Return the product of left[left_start:] and right[right_start:], float32, flat, over length elements.

    length is a multiple of `DOT_LANES * 4`; the order of addition depends on length alone.
    """
    return types.float32(left, right, left_start, right_start, length), _emit_dot


class Scratch(NamedTuple):
    """What one thread works in, query after query; never cleared."""

    clock: npt.NDArray[np.int64]  # (2,): the time, the number of the query
    state: npt.NDArray[np.int64]  # (N,)
    scores: npt.NDArray[np.float64]  # (N,), of the subgraph's nodes
    added: npt.NDArray[np.float64]  # (N,), 0 outside a level
    best: npt.NDArray[np.float64]  # (N,), the largest addition; infinite at a seed, so that it gets no parent
    parent: npt.NDArray[np.int32]  # (N,), where that addition came from; -1: nowhere yet
    parent_arc: npt.NDArray[np.int32]  # (N,), over which arc
    queue: npt.NDArray[np.int32]  # (N,), of the subgraph, then of a pass
    touched: npt.NDArray[np.int32]  # (N,), what a level adds to
    positive: npt.NDArray[np.int32]  # (N,), nodes above 0, as they get there
    arc_query: npt.NDArray[np.int64]  # (A,), the last query that the arc was weighed for
    arc_weight: npt.NDArray[np.float32]  # (A,)


def scratch(num_nodes: int, num_arcs: int) -> Scratch:
    """Return what a thread works in; pages that no query touches are never written."""
    scores, added, best = (np.zeros(num_nodes) for _ in range(3))
    parent, parent_arc, queue, touched, positive = (np.zeros(num_nodes, np.int32) for _ in range(5))
    return Scratch(
        np.zeros(2, np.int64), np.zeros(num_nodes, np.int64), scores, added, best, parent, parent_arc, queue, touched, positive,
        np.zeros(num_arcs, np.int64), np.zeros(num_arcs, np.float32),
    )  # fmt: skip


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _grown(array: Any, size: int, needed: int) -> Any:
    """Return the array, or a larger one that starts with its first `size` elements."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), array.dtype)
    larger[:size] = array[:size]
    return larger


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _enter(incidence: Any, seeds: Any, hops: int, both_ways: bool, base: int, work: Any) -> Any:
    """Mark and reset what lies within `hops` arcs of the seeds; return how many nodes, and how many distinct seeds, first.

    The seeds stand first in the queue, in their order.
    """
    indptr, _, neighbours, outgoing = incidence
    _, state, scores, _, best, parent, _, queue, _, _, _, _ = work
    size = 0
    for s in range(seeds.size):
        node = seeds[s]
        if state[node] != base:
            state[node], scores[node], best[node], parent[node], queue[size] = base, 0.0, np.inf, -1, node
            size += 1
    num_seeds, start = size, 0
    for _ in range(hops):
        stop = size
        for i in range(start, stop):
            for e in range(indptr[queue[i]], indptr[queue[i] + 1]):
                node = neighbours[e]
                if state[node] != base and (both_ways or outgoing[e]):
                    state[node], scores[node], best[node], parent[node], queue[size] = base, 0.0, 0.0, -1, node
                    size += 1
        start = stop
        if size == stop:
            break
    return size, num_seeds


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _weight(cosine: Any, c: float) -> Any:
    """Return max(0, (cosine - c) / (1 - c)) in float32."""
    scaled = (cosine - np.float32(c)) / (np.float32(1) - np.float32(c))
    return max(scaled, np.float32(0))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _weigh(
    begin: int, end: int, incident: Any, neighbours: Any, state: Any, base: int, query: int, arc_query: Any, arc_weight: Any,
    query_vectors: Any, offset: int, arc_vectors: Any, length: int, weights: Any, c: float,
) -> int:  # fmt: skip
    """Weigh the arcs at a node that lie in the subgraph, unless that was done for this query; return how many were new."""
    count = 0
    for e in range(begin, end):
        arc = incident[e]
        if state[neighbours[e]] >= base and arc_query[arc] != query:
            arc_query[arc] = query
            count += 1
            if length == 0:
                arc_weight[arc] = weights[arc]
            else:
                arc_weight[arc] = _weight(dot(query_vectors, arc_vectors, offset, np.int64(arc) * length, length), c)
    return count


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _offer(there: int, here: int, arc: int, gain: float, best: Any, parent: Any, parent_arc: Any) -> None:
    """Make `here` the parent of `there` for its larger addition, unless it descends from it."""
    if parent[there] >= 0 and parent_arc[there] != arc:
        above = here
        while above >= 0:
            if above == there:
                return
            above = parent[above]
    best[there], parent[there], parent_arc[there] = gain, here, arc


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _spread_level(
    incidence: Any, seed: int, base: int, query: int, similarity: Any, num_positive: int, work: Any
) -> Any:  # fmt: skip
    """Spread from one seed level by level; return how many nodes are above 0, and how many arcs were weighed.

    All additions of a level use the scores at its start; they are added up in float64, in the order in which the level's
    nodes were found and of their arcs, and capped once.
    """
    indptr, incident, neighbours, _ = incidence
    clock, state, scores, added, best, parent, parent_arc, queue, touched, positive, arc_query, arc_weight = work
    query_vectors, offset, arc_vectors, length, weights, c = similarity
    first = clock[0] + 1
    mark = first
    queue[0], state[seed], size, start = seed, mark, 1, 0
    waiting, num_weighed = num_positive, 0  # nodes above 0 that have not spread in this pass
    while start < size and waiting > 0:
        stop, num_touched = size, 0
        mark += 1
        for k in range(start, stop):
            here = queue[k]
            score = scores[here]
            if score > 0.0:
                waiting -= 1
                num_weighed += _weigh(
                    indptr[here], indptr[here + 1], incident, neighbours, state, base, query, arc_query, arc_weight,
                    query_vectors, offset, arc_vectors, length, weights, c,
                )  # fmt: skip
            for e in range(indptr[here], indptr[here + 1]):
                there = neighbours[e]
                if state[there] < base:
                    continue
                if state[there] < first:
                    state[there], queue[size] = mark, there
                    size += 1
                if score > 0.0:
                    gain = arc_weight[incident[e]] * score
                    if gain > 0.0:
                        if added[there] == 0.0:
                            touched[num_touched] = there
                            num_touched += 1
                        added[there] += gain
                        if gain > best[there]:
                            _offer(there, here, incident[e], gain, best, parent, parent_arc)
        for k in range(num_touched):
            there = touched[k]
            if scores[there] == 0.0:
                positive[num_positive] = there
                num_positive += 1
                waiting += state[there] == mark
            scores[there] = min(1.0, scores[there] + added[there])
            added[there] = 0.0
        start = stop
    clock[0] = mark
    return num_positive, num_weighed


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _spread_sequential(
    incidence: Any, seed: int, base: int, query: int, similarity: Any, num_positive: int, work: Any
) -> Any:  # fmt: skip
    """Spread from one seed node by node, each addition capped and at once in force; return what `_spread_level` does."""
    indptr, incident, neighbours, _ = incidence
    clock, state, scores, _, best, parent, parent_arc, queue, _, positive, arc_query, arc_weight = work
    query_vectors, offset, arc_vectors, length, weights, c = similarity
    first = clock[0] + 1
    queue[0], state[seed], size, start = seed, first, 1, 0
    waiting, num_weighed = num_positive, 0  # nodes above 0 that have not spread in this pass
    while start < size and waiting > 0:
        here = queue[start]
        start += 1
        state[here] = first + 1
        score = scores[here]
        if score > 0.0:
            waiting -= 1
            num_weighed += _weigh(
                indptr[here], indptr[here + 1], incident, neighbours, state, base, query, arc_query, arc_weight,
                query_vectors, offset, arc_vectors, length, weights, c,
            )  # fmt: skip
        for e in range(indptr[here], indptr[here + 1]):
            there = neighbours[e]
            if state[there] < base:
                continue
            if state[there] < first:
                state[there], queue[size] = first, there
                size += 1
            if score > 0.0:
                gain = arc_weight[incident[e]] * score
                if gain > 0.0:
                    if scores[there] == 0.0:
                        positive[num_positive] = there
                        num_positive += 1
                        waiting += state[there] == first
                    scores[there] = min(1.0, scores[there] + gain)
                    if gain > best[there]:
                        _offer(there, here, incident[e], gain, best, parent, parent_arc)
    clock[0] = first + 1
    return num_positive, num_weighed


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def activate(
    incidence: Any, work: Any, seed_indptr: Any, seed_nodes: Any, similarity: Any, hops: int, both_ways: bool,
    threshold: float, sequential: bool,
) -> Any:  # fmt: skip
    """Return what was found for B queries: results, arcs of the paths, nodes seen and arcs weighed for each query.

    Args:
        incidence: indptr int64 (N + 1,), arcs, neighbours int32 (I,) and outgoing bool (I,), arcs ascending at each node.
        work: A `Scratch` as a tuple, used by nobody else meanwhile.
        seed_indptr: int64 (B + 1,).
        seed_nodes: int32, in [0, N).
        similarity: Vectors of the queries and of the arcs, float32, flat; D, a multiple of 64; weights of the arcs, float32
            (B, A), >= 0, that stand instead if D is 0; the rescaling constant.
        hops: How far the subgraph reaches.
        both_ways: Whether it follows arcs against their direction.
        threshold: Nodes with a score above it are returned.
        sequential: The authors' order; else level by level.

    Returns:
        Results are indptr int64 (B + 1,) and, per node, its number, score, the seed its path starts from and the end of its
        path among the arcs of the paths.
    """
    clock, _, scores, _, _, parent, parent_arc, queue, _, positive, _, _ = work
    query_vectors, arc_vectors, length, weights, c = similarity
    num_queries = seed_indptr.size - 1
    out_indptr = np.zeros(num_queries + 1, np.int64)
    seen, weighed = np.zeros(num_queries, np.int32), np.zeros(num_queries, np.int32)
    out_nodes, out_scores, out_seeds = np.empty(64, np.int32), np.empty(64, np.float64), np.empty(64, np.int32)
    path_ends, path_arcs = np.empty(64, np.int64), np.empty(64, np.int32)
    num_out, num_path = 0, 0
    for row in range(num_queries):
        clock[0] += 1
        clock[1] += 1
        base, query = clock[0], clock[1]
        seen[row], num_seeds = _enter(
            incidence, seed_nodes[seed_indptr[row] : seed_indptr[row + 1]], hops, both_ways, base, work
        )
        seeds = queue[:num_seeds].copy()
        of_row = (query_vectors, row * length, arc_vectors, length, weights[min(row, weights.shape[0] - 1)], c)
        num_positive = 0
        for seed in seeds:
            if scores[seed] == 0.0:
                positive[num_positive] = seed
                num_positive += 1
            scores[seed] = max(1.0, scores[seed])
            if sequential:
                num_positive, count = _spread_sequential(incidence, seed, base, query, of_row, num_positive, work)
            else:
                num_positive, count = _spread_level(incidence, seed, base, query, of_row, num_positive, work)
            weighed[row] += count
        num_active = 0
        for k in range(num_positive):
            if scores[positive[k]] > threshold:
                positive[num_active] = positive[k]
                num_active += 1
        active = np.sort(positive[:num_active])
        out_nodes = _grown(out_nodes, num_out, num_out + num_active)
        out_scores = _grown(out_scores, num_out, num_out + num_active)
        out_seeds = _grown(out_seeds, num_out, num_out + num_active)
        path_ends = _grown(path_ends, num_out, num_out + num_active)
        for node in active:
            begin, at = num_path, node
            while parent[at] >= 0:
                path_arcs = _grown(path_arcs, num_path, num_path + 1)
                path_arcs[num_path] = parent_arc[at]
                num_path += 1
                at = parent[at]
            path_arcs[begin:num_path] = path_arcs[begin:num_path][::-1].copy()
            out_nodes[num_out], out_scores[num_out], out_seeds[num_out] = node, scores[node], at
            path_ends[num_out] = num_path
            num_out += 1
        out_indptr[row + 1] = num_out
    found = (out_indptr, out_nodes[:num_out], out_scores[:num_out], out_seeds[:num_out], path_ends[:num_out])
    return found, path_arcs[:num_path], seen, weighed
