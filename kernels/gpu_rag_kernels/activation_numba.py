"""Spreading activation over the active part of an arc graph, one query after the other.

Imports numba; import it at use. numba's cache on disk looks at no other file: after a change in `vector_code`, change this
one too.

Shape suffixes: N nodes, A arcs, D dimensions, B queries, I entries of the incidence, P passes (seeds) of a query.
Source: SA-RAG (arXiv:2512.15922) as its authors' public code runs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _grown(array: Any, size: int, needed: int) -> Any:
    """Return the array, or a larger one that starts with its first `size` elements."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), array.dtype)
    larger[:size] = array[:size]
    return larger


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
def _weight(arc: Any, q: int, vectors: Any, weights: Any, scaled: bool, c: float, known: Any) -> Any:
    """Return the arc's weight for query q; computed when it is first needed, since few arcs of a subgraph carry anything."""
    stamp, kept, count = known
    if stamp[arc] != q + 1:
        stamp[arc] = q + 1
        count[0] += 1
        cosine = np.float32(0)
        if weights is not None:
            cosine = weights[q, arc]
        if vectors is not None:
            query_vectors, arc_vectors, length = vectors
            cosine = dot(query_vectors, arc_vectors, q * length, np.int64(arc) * length, length)
        if not scaled:
            cosine = max((cosine - np.float32(c)) / (np.float32(1) - np.float32(c)), np.float32(0))
        kept[arc] = cosine
    return kept[arc]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _link(incidence: Any, active: Any, here: int, epoch: int) -> None:
    """Write the neighbours of a node within the subgraph, and the arcs to them, unless it was done before."""
    indptr, incident, neighbours, _ = incidence
    stamp, local, nodes, starts, ends, link_node, link_arc, num_links = active
    if ends[here] >= 0:
        return
    size = num_links[0]
    starts[here] = size
    for e in range(indptr[nodes[here]], indptr[nodes[here] + 1]):
        if stamp[neighbours[e]] == epoch:
            link_node[size], link_arc[size] = local[neighbours[e]], incident[e]
            size += 1
    ends[here], num_links[0] = size, size


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _spread_level(
    incidence: Any, active: Any, seed: int, scores: Any, run: Any, q: int, vectors: Any, weights: Any, scaled: bool, c: float,
    known: Any,
) -> int:  # fmt: skip
    """Spread from one seed level by level; return how many nodes were visited, or found when none was left that gives.

    All additions of a level use the scores at its start; they are added up in float64, in the order in which the level's
    nodes were found and of their arcs, and capped once.
    """
    _, _, _, starts, ends, neighbours, arcs, _ = active
    order, level, added, touched, best, parent, parent_arc, waiting = run
    order[0], level[seed], size, first = seed, 0, 1, 0
    if scores[seed] == 0.0:
        waiting += 1
    scores[seed] = 1.0
    depth = 0
    while first < size and waiting > 0:
        stop, num_touched = size, 0
        depth += 1
        for k in range(first, stop):
            here = order[k]
            _link(incidence, active, here, q + 1)
            for e in range(starts[here], ends[here]):
                there = neighbours[e]
                if level[there] < 0:
                    level[there] = depth
                    order[size] = there
                    size += 1
            if scores[here] > 0.0:
                waiting -= 1
                for e in range(starts[here], ends[here]):
                    there = neighbours[e]
                    gain = np.float64(_weight(arcs[e], q, vectors, weights, scaled, c, known)) * scores[here]
                    if gain > 0.0:
                        if added[there] == 0.0:
                            touched[num_touched] = there
                            num_touched += 1
                        added[there] += gain
                        if level[there] == depth and gain > best[there]:
                            best[there], parent[there], parent_arc[there] = gain, here, arcs[e]
        for k in range(num_touched):
            there = touched[k]
            if scores[there] == 0.0 and level[there] == depth:
                waiting += 1
            scores[there] = min(1.0, scores[there] + added[there])
            added[there] = 0.0
        first = stop
    return size


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _spread_sequential(
    incidence: Any, active: Any, seed: int, scores: Any, run: Any, q: int, vectors: Any, weights: Any, scaled: bool, c: float,
    known: Any,
) -> int:  # fmt: skip
    """Spread from one seed node by node, each addition capped and at once in force; return as `_spread_level`."""
    _, _, _, starts, ends, neighbours, arcs, _ = active
    order, level, done, _, best, parent, parent_arc, waiting = run
    order[0], level[seed], size, first = seed, 0, 1, 0
    if scores[seed] == 0.0:
        waiting += 1
    scores[seed] = 1.0
    done[:] = 0.0
    while first < size and waiting > 0:
        here = order[first]
        done[here] = 1.0
        first += 1
        _link(incidence, active, here, q + 1)
        for e in range(starts[here], ends[here]):
            there = neighbours[e]
            if level[there] < 0:
                level[there] = level[here] + 1
                order[size] = there
                size += 1
        if scores[here] > 0.0:
            waiting -= 1
            for e in range(starts[here], ends[here]):
                there = neighbours[e]
                gain = np.float64(_weight(arcs[e], q, vectors, weights, scaled, c, known)) * scores[here]
                if gain > 0.0:
                    if scores[there] == 0.0 and done[there] == 0.0:
                        waiting += 1
                    scores[there] = min(1.0, scores[there] + gain)
                    if level[there] == level[here] + 1 and gain > best[there]:
                        best[there], parent[there], parent_arc[there] = gain, here, arcs[e]
    done[:] = 0.0
    return size


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def activate(
    incidence: Any, num_nodes: int, num_arcs: int, seed_indptr: Any, seed_nodes: Any, vectors: Any, weights: Any,
    scaled: bool, hops: int, both_ways: bool, c: float, threshold: float, sequential: bool,
) -> Any:  # fmt: skip
    """Return what was found for B queries: results, arcs of the paths, nodes seen and arcs weighed of each query.

    Args:
        incidence: indptr int64 (N + 1,), arcs, neighbours int32 (I,) and outgoing bool (I,), arcs ascending at each node.
        num_nodes: N.
        num_arcs: A.
        seed_indptr: int64 (B + 1,).
        seed_nodes: int32, in [0, N).
        vectors: None, or those of the queries and of the arcs, float32, flat, and D, a multiple of 64.
        weights: Without vectors: float32 (B, A).
        scaled: These are weights, >= 0; else cosines.
        hops: How far the subgraph reaches.
        both_ways: Whether it follows arcs against their direction.
        c: Rescaling constant.
        threshold: Nodes with a score above it are returned.
        sequential: The authors' order; else level by level.

    Returns:
        Results are indptr int64 (B + 1,) and, per node, its number, score, the seed its path starts from (-1: what it has
        came from nodes no nearer to a seed) and the end of its path among the arcs of the paths.
    """
    indptr, _, _, _ = incidence
    num_queries = seed_indptr.size - 1
    stamp, local, nodes = np.zeros(num_nodes, np.int32), np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    known = (np.zeros(num_arcs, np.int32), np.empty(num_arcs, np.float32), np.zeros(1, np.int32))
    link_node, link_arc = np.empty(64, np.int32), np.empty(64, np.int32)
    out_indptr = np.zeros(num_queries + 1, np.int64)
    seen, weighed = np.zeros(num_queries, np.int32), np.zeros(num_queries, np.int32)
    out_nodes, out_scores, out_seeds = np.empty(64, np.int32), np.empty(64, np.float64), np.empty(64, np.int32)
    path_ends, path_arcs = np.empty(64, np.int64), np.empty(64, np.int32)
    num_out, num_path = 0, 0
    for q in range(num_queries):
        epoch = q + 1
        seeds = seed_nodes[seed_indptr[q] : seed_indptr[q + 1]]
        size, num_seeds = _reach(incidence, seeds, hops, both_ways, epoch, stamp, local, nodes)
        starts, ends, needed = np.empty(size, np.int64), np.full(size, -1, np.int64), 0
        for i in range(size):
            needed += indptr[nodes[i] + 1] - indptr[nodes[i]]
        link_node, link_arc = _grown(link_node, 0, needed), _grown(link_arc, 0, needed)
        num_links = np.zeros(1, np.int64)
        active = (stamp, local, nodes, starts, ends, link_node, link_arc, num_links)
        seen[q], known[2][0] = size, 0
        scores, before, gained = np.zeros(size), np.zeros(size), np.zeros(size)
        level, order, touched = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
        added, best = np.zeros(size), np.empty(size)
        parent, parent_arc = np.empty((num_seeds, size), np.int32), np.empty((num_seeds, size), np.int32)
        chosen = np.full(size, -1, np.int32)
        for number in range(num_seeds):
            level[:] = -1
            best[:] = 0.0
            parent[number] = -1
            before[:] = scores
            waiting = 0  # nodes with a score that this pass has not visited yet: without one, nothing more is given
            for i in range(size):
                waiting += scores[i] > 0.0
            run = (order, level, added, touched, best, parent[number], parent_arc[number], waiting)
            if sequential:
                visited = _spread_sequential(incidence, active, number, scores, run, q, vectors, weights, scaled, c, known)
            else:
                visited = _spread_level(incidence, active, number, scores, run, q, vectors, weights, scaled, c, known)
            for k in range(visited):
                i = order[k]
                gain = scores[i] - before[i]
                if gain > gained[i] and parent[number, i] >= 0:
                    gained[i], chosen[i] = gain, number
        weighed[q] = known[2][0]
        above = np.flatnonzero(scores > threshold)
        above = above[np.argsort(nodes[above])]
        out_nodes = _grown(out_nodes, num_out, num_out + above.size)
        out_scores = _grown(out_scores, num_out, num_out + above.size)
        out_seeds = _grown(out_seeds, num_out, num_out + above.size)
        path_ends = _grown(path_ends, num_out, num_out + above.size)
        for k in range(above.size):
            i = above[k]
            out_nodes[num_out], out_scores[num_out] = nodes[i], scores[i]
            first, at, number = num_path, i, chosen[i]
            while at >= num_seeds and number >= 0:
                if parent[number, at] < 0:  # its score was there before this pass
                    number -= 1
                else:
                    path_arcs = _grown(path_arcs, num_path, num_path + 1)
                    path_arcs[num_path] = parent_arc[number, at]
                    num_path += 1
                    at = parent[number, at]
            out_seeds[num_out] = -1
            if at < num_seeds:
                out_seeds[num_out] = nodes[at]
                path_arcs[first:num_path] = path_arcs[first:num_path][::-1].copy()
            else:
                num_path = first
            path_ends[num_out] = num_path
            num_out += 1
        out_indptr[q + 1] = num_out
    found = (out_indptr, out_nodes[:num_out], out_scores[:num_out], out_seeds[:num_out], path_ends[:num_out])
    return found, path_arcs[:num_path], seen, weighed
