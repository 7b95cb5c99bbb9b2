"""Batched spreading activation over an arc graph, touching only the part of it that a query reaches.

For each seed in turn its score becomes 1 and a breadth-first pass from it visits each node of the query's subgraph once; a
visited node adds weight * score to each of its neighbours, visited or not, along and against arcs, and scores are capped at 1.
They carry over from one seed's pass to the next. The weight of an arc is max(0, (cos(query, arc) - c) / (1 - c)),
computed when a node with a score first needs it: of a query's subgraph few arcs ever are.
Device: `numba` on the CPU; `torch`, plain and slow, for `order="level"` without paths on both.
Source: SA-RAG (arXiv:2512.15922) as its authors' public code runs it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gpu_rag_kernels import activation_reference

from gpu_rag.errors import InputError
from gpu_rag.graph.arcs import ArcGraph
from gpu_rag.graph.blocks import choose_backend, plan_blocks
from gpu_rag.graph.reset import SeedFlag
from gpu_rag.graph.seeds import SeedLists

Order = Literal["level", "sequential"]
_DOT_STEP = 64  # dimensions are padded with zeros to a multiple of it
_BLOCK = 64  # queries that a thread takes at once, with its own memory of which nodes it has seen


@dataclass(frozen=True, eq=False)
class ActivationResult:
    """The activated nodes of B queries, K in all.

    Attributes:
        indptr: int64 (B + 1,), offsets of the queries.
        nodes: int32 (K,), ascending within a query, all whose score is above tau_a.
        scores: float64 (K,), in (tau_a, 1].
        path_seeds: int32 (K,), the seed that the node's path starts from; -1 if the backend keeps no paths.
        path_indptr: int64 (K + 1,), offsets of the paths.
        path_arcs: int32, the arcs from seed to node, each of weight above 0. A node's last arc is the one over which it got
            its largest addition of all passes (the first of equal ones), unless that came from a node whose own path leads
            through it; the rest is the path of the arc's other end. A seed's path is empty.
        flags: uint8 (B,), `SeedFlag` NO_SEED or BAD_SEED; such a query has no node.
        num_nodes_seen: int32 (B,), nodes of the query's subgraph.
        num_arcs_weighed: int32 (B,), arcs whose weight was needed.
    """

    indptr: torch.Tensor
    nodes: torch.Tensor
    scores: torch.Tensor
    path_seeds: torch.Tensor
    path_indptr: torch.Tensor
    path_arcs: torch.Tensor
    flags: torch.Tensor
    num_nodes_seen: torch.Tensor
    num_arcs_weighed: torch.Tensor


class _Task(NamedTuple):
    """What was asked for, checked; queries with a bad row have no seed left."""

    graph: ArcGraph
    indptr: np.ndarray
    seeds: np.ndarray
    query_vectors: torch.Tensor | None
    arc_vectors: torch.Tensor | None
    flat_arc_vectors: np.ndarray | None
    arc_weights: torch.Tensor | None
    hops: int
    both_ways: bool
    c: float
    tau_a: float
    sequential: bool


def spread_activation(
    graph: ArcGraph,
    seeds: SeedLists,
    *,
    query_vectors: torch.Tensor | None = None,
    arc_vectors: torch.Tensor | None = None,
    arc_weights: torch.Tensor | None = None,
    hops: int,
    c: float = 0.4,
    tau_a: float = 0.5,
    order: Order = "level",
    follow: Literal["both", "outgoing"] = "both",
    backend: Literal["auto", "numba", "torch"] = "auto",
) -> ActivationResult:
    """Return the nodes that each query's seeds activate.

    A query's result does not depend on its batch, bit for bit (numba).

    Args:
        graph: N nodes, A arcs.
        seeds: In the order in which they are activated.
        query_vectors: float32 (B, D), unit length, on the CPU.
        arc_vectors: float32 (A, D), unit length, finite, on the CPU.
        arc_weights: float32 (B, A), >= 0, instead of the two.
        hops: The subgraph is the seeds and what lies within so many arcs, and all arcs between these.
        c: Rescaling constant, in [0, 1).
        tau_a: Activated is what scores strictly above it, >= 0.
        order: "sequential": the authors' order, each addition at once in force. "level": all additions of a level use the
            scores at its start, are added up in float64 in the order in which the level's nodes were found and of their
            arcs, and capped once.
        follow: Which way the subgraph follows arcs; activation itself goes both ways.
        backend: "auto": numba if it is installed.

    Raises:
        InputError: On a shape, dtype or parameter out of these bounds; a bad row is flagged instead.
        MissingDependencyError: If backend="numba" and numba is not installed.
    """
    _check_parameters(hops, c, tau_a, order, follow)
    indptr, nodes, flags = seeds.usable(graph.num_nodes)
    bad = check_arc_values(graph, seeds.num_queries, query_vectors, arc_vectors, "arc_weights", arc_weights)
    flags[bad & (flags == 0)] = int(SeedFlag.BAD_SEED)
    counts = np.diff(indptr)
    nodes = nodes[~np.repeat(bad, counts)]
    indptr = np.concatenate([[0], np.cumsum(np.where(bad, 0, counts))]).astype(np.int64)
    both_ways, sequential = follow == "both", order == "sequential"
    flat = None if arc_vectors is None else flat_vectors(arc_vectors)
    task = _Task(graph, indptr, nodes, query_vectors, arc_vectors, flat, arc_weights, hops, both_ways, c, tau_a, sequential)
    if choose_backend(backend, torch.device("cpu")) == "numba":
        blocks = plan_blocks(seeds.num_queries, _BLOCK, seeds.num_queries)
        spare: SimpleQueue[Any] = SimpleQueue()
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            found, path_arcs, seen, arcs = _joined(list(pool.map(lambda block: _activate(task, block, spare), blocks)))
    elif sequential:
        raise InputError("order='sequential' needs the numba backend")
    else:
        found, path_arcs, seen, arcs = _joined([_activate_plainly(task)])
    offsets, out_nodes, scores, path_seeds, path_ends = (torch.from_numpy(part) for part in found)
    path_indptr = torch.cat([path_ends.new_zeros(1), path_ends])
    return ActivationResult(
        offsets, out_nodes, scores, path_seeds, path_indptr, torch.from_numpy(path_arcs), torch.from_numpy(flags),
        torch.from_numpy(seen), torch.from_numpy(arcs),
    )  # fmt: skip


def _activate(task: _Task, block: tuple[int, int], spare: SimpleQueue[Any]) -> Any:
    """Return what the kernel finds for queries [start, stop); spare holds the scratch of threads that are done with theirs."""
    from gpu_rag_kernels import activation_numba

    start, stop = block
    indptr, graph = task.indptr[start : stop + 1], task.graph
    query_vectors, arc_vectors, length = np.empty(0, np.float32), np.empty(0, np.float32), 0
    weights = np.empty((1, 0), np.float32)
    if task.arc_weights is not None:
        weights = task.arc_weights[start:stop].contiguous().numpy()
    elif task.query_vectors is not None and task.flat_arc_vectors is not None:
        query_vectors, arc_vectors = flat_vectors(task.query_vectors[start:stop]), task.flat_arc_vectors
        length = padded_width(task.query_vectors)
    try:
        work = spare.get_nowait()
    except Empty:
        work = activation_numba.scratch(graph.num_nodes, graph.num_arcs)
    found = activation_numba.activate(
        tuple(graph.incidence), tuple(work), indptr - indptr[0], task.seeds[indptr[0] : indptr[-1]],
        (query_vectors, arc_vectors, length, weights, task.c), task.hops, task.both_ways, task.tau_a, task.sequential,
    )  # fmt: skip
    spare.put(work)
    return found


def _plain_weights(task: _Task, query: int) -> torch.Tensor:
    """Return one query's weights, float32 (A,)."""
    if task.arc_weights is not None:
        return task.arc_weights[query]
    assert task.query_vectors is not None
    assert task.arc_vectors is not None
    cosines = task.arc_vectors @ task.query_vectors[query]
    return torch.from_numpy(activation_reference.arc_weights(cosines.numpy(), task.c))


def _activate_plainly(task: _Task) -> Any:
    """Return what `_activate` yields, without paths, by whole-graph torch operations, query by query."""
    graph = task.graph
    follow = "both" if task.both_ways else "outgoing"
    found, num_nodes, num_arcs = [], [], []
    for query in range(task.indptr.size - 1):
        seeds = task.seeds[task.indptr[query] : task.indptr[query + 1]].tolist()
        scores, inside = activation_reference.level_scores(
            graph.num_nodes, graph.source, graph.target, seeds, _plain_weights(task, query), task.hops, follow
        )
        active = torch.nonzero(scores > task.tau_a).flatten()
        found.append((active.int().numpy(), scores[active].numpy()))
        num_nodes.append(int(inside.sum()))
        num_arcs.append(graph.num_arcs)
    nodes = np.concatenate([np.empty(0, np.int32), *(part for part, _ in found)])
    scores_of = np.concatenate([np.empty(0), *(part for _, part in found)])
    indptr = np.cumsum([0, *(part.size for part, _ in found)]).astype(np.int64)
    none = np.full(nodes.size, -1, np.int32)
    results = (indptr, nodes, scores_of, none, np.zeros(nodes.size, np.int64))
    return results, np.empty(0, np.int32), np.array(num_nodes, np.int32), np.array(num_arcs, np.int32)


def _joined(parts: list[Any]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Return the results of consecutive blocks as one, offsets shifted."""
    counts = np.concatenate([np.diff(found[0]) for found, _, _, _ in parts])
    columns = [np.concatenate([found[column] for found, _, _, _ in parts]) for column in (1, 2, 3)]
    shifts = np.cumsum([0, *(arcs.size for _, arcs, _, _ in parts)])
    ends = np.concatenate([found[4] + shift for (found, _, _, _), shift in zip(parts, shifts, strict=False)])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    arcs, seen, cosines = (np.concatenate([part[column] for part in parts]) for column in (1, 2, 3))
    return [indptr, *columns, ends], arcs, seen, cosines


def padded_width(vectors: torch.Tensor) -> int:
    """Return the dimensions that `flat_vectors` fills vectors up to."""
    return -(-vectors.shape[1] // _DOT_STEP) * _DOT_STEP


def flat_vectors(vectors: torch.Tensor) -> np.ndarray:
    """Return the vectors, flat, each filled up with zeros."""
    missing = padded_width(vectors) - vectors.shape[1]
    return (torch.nn.functional.pad(vectors, (0, missing)) if missing else vectors).contiguous().numpy().reshape(-1)


def _check_parameters(hops: int, c: float, tau_a: float, order: str, follow: str) -> None:
    if hops < 0:
        raise InputError(f"hops={hops} must be >= 0")
    if not 0.0 <= c < 1.0:
        raise InputError(f"c={c} must be in [0, 1)")
    if not tau_a >= 0.0:
        raise InputError(f"tau_a={tau_a} must be >= 0")
    for name, value, allowed in (("order", order, ("level", "sequential")), ("follow", follow, ("both", "outgoing"))):
        if value not in allowed:
            raise InputError(f"{name}={value!r} is none of {', '.join(allowed)}")


def check_arc_values(
    graph: ArcGraph, num_queries: int, query_vectors: torch.Tensor | None, arc_vectors: torch.Tensor | None, name: str,
    values: torch.Tensor | None,
) -> np.ndarray:  # fmt: skip
    """Return which queries have a bad row, bool (B,), of the vectors or of the values that stand instead of them.

    Raises:
        InputError: Unless it is the one or the other, of the right shape, float32 and on the CPU.
    """
    if values is not None:
        if query_vectors is not None or arc_vectors is not None:
            raise InputError(f"{name} stands instead of query_vectors and arc_vectors, not beside them")
        _check_matrix(name, values, num_queries, graph.num_arcs)
        fine: np.ndarray = (torch.isfinite(values) & (values >= 0)).all(dim=1).numpy()
        return ~fine
    if query_vectors is None or arc_vectors is None:
        raise InputError(f"give query_vectors and arc_vectors, or {name}")
    _check_matrix("arc_vectors", arc_vectors, graph.num_arcs, arc_vectors.shape[-1])
    _check_matrix("query_vectors", query_vectors, num_queries, arc_vectors.shape[-1])
    if not torch.isfinite(arc_vectors.sum()):  # much faster than to look at each
        wrong = torch.nonzero(~torch.isfinite(arc_vectors).all(dim=1)).flatten()
        if wrong.numel():
            raise InputError(f"arc_vectors[{int(wrong[0])}] is not finite")
    finite: np.ndarray = torch.isfinite(query_vectors).all(dim=1).numpy()
    return ~finite


def _check_matrix(name: str, matrix: torch.Tensor, rows: int, columns: int) -> None:
    if matrix.dtype != torch.float32 or matrix.device.type != "cpu" or tuple(matrix.shape) != (rows, columns):
        shape = f"{matrix.dtype} {tuple(matrix.shape)} on {matrix.device}"
        raise InputError(f"{name} is {shape}, expected float32 ({rows}, {columns}) on the CPU")
