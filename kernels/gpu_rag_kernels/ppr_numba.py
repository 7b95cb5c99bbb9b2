"""Personalized PageRank of many queries on a CPU: successive over-relaxation, `LANES` queries in step.

One sweep goes through the nodes once and writes each new score over the old one, so that it already counts for the nodes
after it: per sweep that is worth two of a method that keeps old and new apart, and only one array has to fit the cache.
numba's own loops keep a row's sums in memory and check for aliasing at every row; `sweep` is emitted as vector code: a sum
over a row's edges lives in vector registers, one lane a query. Lanes never mix, the order of addition is the order of the
edges, every multiply-add is fused, and a query stops by its own certificate: its bits depend on nothing but its own column.

Imports numba; import it at use (`ppr_cpu` does). numba's cache on disk looks at no other file: after a change in
`vector_code`, change this one too.

Shape suffixes: N nodes, E edges, B queries, L = `LANES`, S seeds, R rows that hold a seed, G gates, K of top-k.
Source: Young 1950 (over-relaxation); bound of the error: see `ppr_cpu`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from gpu_rag_kernels.vector_code import INT64, VectorEmitter

LANES = 16  # of float32: one cache line
NO_SEED, BAD_SEED = 1, 2
CLOSED, ISOLATED, LEAKING = 0, 1, 2  # no node loses mass; isolated nodes of an undirected graph do; any dangling node does
_SEGMENT = 64  # edges summed before they enter the row's sum: bounds the rounding error of hubs
_ROWS = 64  # rows whose steps are added in the working dtype before they enter the float64 sum


def _emit_sweep(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    code = VectorEmitter(context, builder, signature.args, values, lanes=LANES, scalar=signature.args[3].dtype)
    gated = len(values) > 11
    indptr, indices, weights, x, slots, resets = range(6)
    omega_at, change_at, gate_of_edge, edge_gates, node_gates, inverse = 8, 10, 11, 12, 13, 14
    first, last, damping = values[6], values[7], code.splat(values[9])
    one, nothing = ir.Constant(INT64, 1), ir.Constant(INT64, 0)
    omega = code.load(omega_at, nothing)
    plain = code.call("minnum", omega, code.splat(ir.Constant(code.scalar, 1.0)))  # a node without edges has nothing to relax
    before = builder.block
    rows, segments, edges, edges_end, rows_end, end = (
        builder.append_basic_block(name) for name in ("rows", "segments", "edges", "edges_end", "rows_end", "end")
    )
    builder.cbranch(builder.icmp_signed("<", first, last), rows, end)

    builder.position_at_end(rows)
    i, change = builder.phi(INT64), builder.phi(code.vector)
    next_i = builder.add(i, one)
    row_start, row_end = code.item(indptr, i), code.item(indptr, next_i)
    builder.cbranch(builder.icmp_signed("<", row_start, row_end), segments, rows_end)

    builder.position_at_end(segments)
    start, total = builder.phi(INT64), builder.phi(code.vector)
    stop = builder.add(start, ir.Constant(INT64, _SEGMENT))
    stop = builder.select(builder.icmp_signed("<", stop, row_end), stop, row_end)
    builder.branch(edges)

    builder.position_at_end(edges)
    e, part = builder.phi(INT64), builder.phi(code.vector)
    weight = code.splat(code.item(weights, e))
    if gated:
        weight = builder.fmul(weight, code.load(edge_gates, code.item(gate_of_edge, e)))
    new_part = code.call("fma", code.load(x, code.item(indices, e)), weight, part)
    next_e = builder.add(e, one)
    builder.cbranch(builder.icmp_signed("<", next_e, stop), edges, edges_end)

    builder.position_at_end(edges_end)
    new_total = builder.fadd(total, new_part)
    builder.cbranch(builder.icmp_signed("<", stop, row_end), segments, rows_end)

    builder.position_at_end(rows_end)
    walked, relaxation = builder.phi(code.vector), builder.phi(code.vector)
    old, reset = code.load(x, i), code.load(resets, code.item(slots, i))
    if gated:
        scale = code.load(inverse, i)
        walked_here = builder.fmul(walked, code.load(node_gates, i))
        target = builder.fmul(code.call("fma", damping, walked_here, reset), scale)
    else:
        target = code.call("fma", damping, walked, reset)
    new = code.call("fma", relaxation, builder.fsub(target, old), old)
    code.store(new, x, i)
    step = code.call("fabs", builder.fsub(new, old))
    new_change = builder.fadd(change, builder.fdiv(step, scale) if gated else step)
    builder.cbranch(builder.icmp_signed("<", next_i, last), rows, end)

    builder.position_at_end(end)
    result = builder.phi(code.vector)
    code.store(result, change_at, nothing)

    for phi, incoming in (
        (i, ((first, before), (next_i, rows_end))),
        (change, ((code.zero, before), (new_change, rows_end))),
        (start, ((row_start, rows), (stop, edges_end))),
        (total, ((code.zero, rows), (new_total, edges_end))),
        (e, ((start, segments), (next_e, edges))),
        (part, ((code.zero, segments), (new_part, edges))),
        (walked, ((code.zero, rows), (new_total, edges_end))),
        (relaxation, ((plain, rows), (omega, edges_end))),
        (result, ((code.zero, before), (new_change, rows_end))),
    ):
        for value, block in incoming:
            phi.add_incoming(value, block)
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def sweep(
    typing: Any, indptr: Any, indices: Any, weights: Any, x: Any, slots: Any, resets: Any, first: Any, last: Any,
    omega: Any, damping: Any, change: Any,
) -> Any:  # fmt: skip
    """For each row i of [first, last) in turn: `x_i += omega * (damping * walked_i + reset_i - x_i)`.

    walked_i is `sum_e weights_e * x_source(e)`, reset_i row slots_i of resets.

    Args:
        typing: numba's.
        indptr: int64 (N + 1,).
        indices: int32 or int64 (E,), source of each incoming edge, >= 0.
        weights: float32 or float64 (E,); all that follows has the same dtype.
        x: (N, L), contiguous, changed in place.
        slots: int32 (N,); row 0 of resets is all zero.
        resets: (R + 1, L).
        first: int64.
        last: int64.
        omega: (L,), relaxation; 0 leaves a lane as it is.
        damping: Scalar.
        change: (L,), overwritten with the sums of the rows' |change|, in row order.
    """
    kinds = (indptr, indices, weights, x, slots, resets, first, last, omega, damping, change)
    return types.void(*kinds), _emit_sweep


@intrinsic  # type: ignore[untyped-decorator]
def gated_sweep(
    typing: Any, indptr: Any, indices: Any, weights: Any, x: Any, slots: Any, resets: Any, first: Any, last: Any,
    omega: Any, damping: Any, change: Any, gate_of_edge: Any, edge_gates: Any, node_gates: Any, inverse: Any,
) -> Any:  # fmt: skip
    """As `sweep`, each lane with a matrix of its own: weights_e is multiplied by row gate_of_edge_e of edge_gates (G, L).

    walked_i is multiplied by row i of node_gates (N, L), and with the reset by row i of inverse (N, L), 1 / the sum of the
    gated weights that leave i. So x is the score divided by that sum; change counts in scores.
    """
    kinds = (
        indptr, indices, weights, x, slots, resets, first, last, omega, damping, change, gate_of_edge, edge_gates, node_gates,
        inverse,
    )  # fmt: skip
    return types.void(*kinds), _emit_sweep


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _any_bit(bits: Any, first: Any, last: Any) -> bool:
    some = np.uint64(0)
    for i in range(first, last):  # unsigned: no negative index to wrap, so that this is vector code
        some |= bits[i]
    return bool(some != 0)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def seeds_of_rows(bits: Any, values: Any) -> Any:
    """Return indptr, nodes and values of what is not zero in values (B, N); bits is the same memory as unsigned integers."""
    num_queries, num_nodes = values.shape
    num_parts = (num_nodes + _ROWS - 1) // _ROWS
    used = np.zeros((num_queries, num_parts), np.bool_)
    indptr = np.zeros(num_queries + 1, np.int64)
    for b in range(num_queries):
        row, count = bits[b], 0
        for part in range(num_parts):
            first, last = part * _ROWS, min(part * _ROWS + _ROWS, num_nodes)
            if _any_bit(row, np.uint64(first), np.uint64(last)):
                used[b, part] = True
                for i in range(first, last):
                    count += values[b, i] != 0.0
        indptr[b + 1] = indptr[b] + count
    nodes = np.empty(indptr[-1], np.int32)
    kept = np.empty(indptr[-1], values.dtype)
    at = 0
    for b in range(num_queries):
        for part in range(num_parts):
            if used[b, part]:
                for i in range(part * _ROWS, min(part * _ROWS + _ROWS, num_nodes)):
                    if values[b, i] != 0.0:
                        nodes[at] = i
                        kept[at] = values[b, i]
                        at += 1
    return indptr, nodes, kept


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _sift(nodes: Any, scores: Any, size: int) -> None:
    """Restore the heap below its root: the worst entry on top, that is the lowest score, among equals the highest node."""
    at = 0
    while True:
        worst = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < size and (
                scores[child] < scores[worst] or (scores[child] == scores[worst] and nodes[child] > nodes[worst])
            ):
                worst = child
        if worst == at:
            return
        nodes[at], nodes[worst] = nodes[worst], nodes[at]
        scores[at], scores[worst] = scores[worst], scores[at]
        at = worst


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _keep_top(values: Any, lo: int, nodes: Any, scores: Any) -> int:
    """Write the best nodes with a score above 0 into nodes and scores (K,), best first; return how many there are.

    values are the scores of nodes lo, lo + 1 ...; among equal scores the lower node is better.
    """
    size = 0
    for i in range(values.size):
        value = values[i]
        if value > 0.0 and size < nodes.size:
            at = size
            size += 1
            while at > 0 and scores[(at - 1) // 2] >= value:  # at equal scores the new node is the worse one
                scores[at], nodes[at] = scores[(at - 1) // 2], nodes[(at - 1) // 2]
                at = (at - 1) // 2
            scores[at], nodes[at] = value, lo + i
        elif size > 0 and value > scores[0]:
            scores[0], nodes[0] = value, lo + i
            _sift(nodes, scores, size)
    for left in range(size - 1, 0, -1):
        nodes[0], nodes[left] = nodes[left], nodes[0]
        scores[0], scores[left] = scores[left], scores[0]
        _sift(nodes, scores, left)
    return size


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _gate_sums(indptr: Any, indices: Any, weights: Any, gate_of_edge: Any, edge_gates: Any, node_gates: Any) -> Any:
    """Return (N, L), 1 / the sum of the gated weights of the edges that leave each node; 1 where none does."""
    sums = np.zeros(node_gates.shape, np.float64)
    for i in range(node_gates.shape[0]):
        for e in range(indptr[i], indptr[i + 1]):
            source, gate, weight = indices[e], gate_of_edge[e], weights[e]
            for lane in range(LANES):
                sums[source, lane] += weight * edge_gates[gate, lane] * node_gates[i, lane]
    inverse = np.ones_like(node_gates)
    for i in range(node_gates.shape[0]):
        for lane in range(LANES):
            if sums[i, lane] > 0.0:
                inverse[i, lane] = 1.0 / sums[i, lane]
    return inverse


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _largest(values: Any) -> Any:
    """Return the largest of a query's seeds, and 0 or what is wrong with them."""
    top = 0.0
    for s in range(values.size):
        value = np.float64(values[s])
        if not (value >= 0.0 and value < np.inf):
            return 0.0, BAD_SEED
        top = max(top, value)
    return top, 0 if top > 0.0 else NO_SEED


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _place_seeds(walk: Any, mass: int, nodes: Any, values: Any, scale: float, rows: Any, slots: Any, touched: Any) -> Any:
    """Fill rows with the place of each seed, give each place a slot, and return the sum of the scaled values.

    Second comes the part of it on nodes that lose their mass for good: the walk is solved without the mass that dangling
    nodes would return, and divided by what remains. In an undirected graph that is known beforehand.
    """
    _, _, _, place, dangling = walk
    total, isolated, num_rows = 0.0, 0.0, touched[0]
    for s in range(nodes.size):
        row = place[nodes[s]]
        rows[s] = row
        value = np.float64(values[s]) * scale
        total += value
        if mass == ISOLATED and dangling[row]:
            isolated += value
        if slots[row] == 0:
            num_rows += 1
            touched[num_rows] = row
            slots[row] = num_rows
    touched[0] = num_rows
    return total, isolated


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _gather_gates(edge_gates: Any, node_gates: Any, place: Any, first: int, count: int) -> Any:
    """Return the gates of `count` queries as (G + 1, L), row 0 all 1, and (N, L) in the order of the sweep."""
    edges = np.ones((edge_gates.shape[1] + 1, LANES), edge_gates.dtype)
    nodes = np.ones((place.size, LANES), edge_gates.dtype)
    for lane in range(count):
        for gate in range(edge_gates.shape[1]):
            edges[gate + 1, lane] = edge_gates[first + lane, gate]
        for node in range(node_gates.shape[1]):
            nodes[place[node], lane] = node_gates[first + lane, node]
    return edges, nodes


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def solve(
    walk: Any, mass: int, seeds: Any, damping: float, omega: float, tol: float, rounding: float, max_sweeps: int,
    num_relaxed: int, gates: Any, lo: int, hi: int, workspace: Any, scores: Any, tops: Any, reports: Any,
) -> None:  # fmt: skip
    """Fill the outputs for B queries; `ppr_cpu.solve_queries` says what the arguments are."""
    indptr, indices, weights, place, _ = walk
    seed_indptr, seed_nodes, seed_values = seeds
    top_nodes, top_scores, top_counts = tops
    bounds, sweeps, flags = reports
    num_nodes, num_queries = place.size, seed_indptr.size - 1
    working = weights.dtype.type
    slots = np.zeros(num_nodes, np.int32)
    touched = np.empty(num_nodes + 1, np.int32)  # how many places have a slot, and which
    x, all_resets = workspace
    found = np.empty((LANES, hi - lo), weights.dtype)
    change = np.zeros(LANES, weights.dtype)
    relaxation = np.zeros(LANES, weights.dtype)
    steps, factor, scale, remaining = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES), np.ones(LANES)
    widest = 2.0 / (1.0 - damping) if mass == LEAKING else 1.0  # an error of the scores, per error before the division
    enough = max(tol - rounding, rounding) / widest
    for tile in range(0, num_queries, LANES):
        count = min(LANES, num_queries - tile)
        relaxation[:] = working(0)
        num_left = 0
        touched[0] = 0
        start = seed_indptr[tile]
        rows = np.empty(seed_indptr[tile + count] - start, np.int32)
        for lane in range(count):
            q = tile + lane
            part = slice(seed_indptr[q], seed_indptr[q + 1])
            top, flags[q] = _largest(seed_values[part])
            if flags[q] == 0:
                relaxation[lane] = omega
                num_left += 1
                scale[lane] = math.ldexp(1.0, min(max(-math.frexp(top)[1], -1000), 1000))  # so that no sum overflows
                total, isolated = _place_seeds(
                    walk, mass, seed_nodes[part], seed_values[part], scale[lane],
                    rows[part.start - start : part.stop - start], slots, touched,
                )  # fmt: skip
                factor[lane] = (1.0 - damping) / (total * (1.0 - damping * (isolated / total)))
        resets = all_resets[: touched[0] + 1]
        resets[:] = working(0)
        for lane in range(count):
            if relaxation[lane] > 0:
                for s in range(seed_indptr[tile + lane], seed_indptr[tile + lane + 1]):
                    share = np.float64(seed_values[s]) * scale[lane] * factor[lane]
                    resets[slots[rows[s - start]], lane] += working(share)
        x[:] = working(0)
        if gates is not None:
            gate_of_edge, all_edge_gates, all_node_gates = gates
            edge_gates, node_gates = _gather_gates(all_edge_gates, all_node_gates, place, tile, count)
            inverse = _gate_sums(indptr, indices, weights, gate_of_edge, edge_gates, node_gates)
        for number in range(max_sweeps):
            if num_left == 0:
                break
            if number == num_relaxed:
                for lane in range(count):
                    if relaxation[lane] > 0:
                        relaxation[lane] = working(1)
            steps[:] = 0.0
            for first in range(0, num_nodes, _ROWS):
                last = min(first + _ROWS, num_nodes)
                if gates is None:
                    sweep(indptr, indices, weights, x, slots, resets, first, last, relaxation, working(damping), change)
                else:
                    gated_sweep(
                        indptr, indices, weights, x, slots, resets, first, last, relaxation, working(damping), change,
                        gate_of_edge, edge_gates, node_gates, inverse,
                    )  # fmt: skip
                for lane in range(LANES):
                    steps[lane] += change[lane]
            used = omega if number < num_relaxed else 1.0
            for lane in range(count):
                if relaxation[lane] > 0:
                    q = tile + lane
                    sweeps[q] = number + 1
                    bounds[q] = steps[lane] * (damping + abs(1.0 - 1.0 / used)) / (1.0 - damping)
                    if bounds[q] <= enough:
                        relaxation[lane] = working(0)
                        num_left -= 1
        if gates is not None:
            for i in range(num_nodes):
                for lane in range(LANES):
                    x[i, lane] /= inverse[i, lane]
        if mass == LEAKING:
            remaining[:] = 0.0
            for i in range(num_nodes):
                for lane in range(LANES):
                    remaining[lane] += max(x[i, lane], working(0))
        for i in range(hi - lo):
            row = place[lo + i]
            for lane in range(LANES):
                found[lane, i] = max(x[row, lane], working(0))
        for lane in range(count):
            q = tile + lane
            if flags[q] == 0:
                if mass == LEAKING:
                    bounds[q] *= 2.0 / remaining[lane]
                    for i in range(hi - lo):
                        found[lane, i] /= remaining[lane]
                bounds[q] += rounding
                if scores.size > 0:
                    scores[q] = found[lane]
                if top_nodes.size > 0:
                    top_counts[q] = _keep_top(found[lane], lo, top_nodes[q], top_scores[q])
        for row in touched[1 : touched[0] + 1]:
            slots[row] = 0
