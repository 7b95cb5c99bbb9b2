"""Batched cheapest semantic paths among each query's nodes.

The cost of an arc is 1 - max(0, cos(query, arc)), so a cheap path is a short chain of relations that the query is about. Arcs
are followed either way. Of parallel arcs between two nodes the cheapest stands, of equal ones the lowest number. Best-first
search: a partial path waits under its cost so far and the least that its last node still needs to one of the query's nodes.
Device: CPU, numba.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.errors import InputError, MissingDependencyError
from gpu_rag.graph.activation import check_arc_values, flat_vectors, padded_width
from gpu_rag.graph.arcs import ArcGraph
from gpu_rag.graph.blocks import choose_backend, plan_blocks
from gpu_rag.graph.reset import SeedFlag
from gpu_rag.graph.seeds import SeedLists

_BLOCK = 16  # queries that a thread takes at once, with its own memory of which nodes it has seen


@dataclass(frozen=True, eq=False)
class SemanticPaths:
    """The cheapest paths of B queries, P in all: by cost, then fewer arcs, then lower nodes, then lower arcs.

    Attributes:
        indptr: int64 (B + 1,), offsets of the queries.
        costs: float64 (P,), the arcs' costs, added up from the path's lower end on.
        arc_indptr: int64 (P + 1,), offsets of the paths among the arcs.
        arcs: int32, arc numbers from the path's lower end to its higher one; which way an arc points says the graph.
        nodes: int32, one more a path than arcs: those of path i are `nodes[arc_indptr[i] + i : arc_indptr[i + 1] + i + 1]`.
        flags: uint8 (B,), `SeedFlag` NO_SEED (fewer than two nodes), BAD_SEED, or CUT: the search was stopped, and what it had
            found stands.
    """

    indptr: torch.Tensor
    costs: torch.Tensor
    arc_indptr: torch.Tensor
    arcs: torch.Tensor
    nodes: torch.Tensor
    flags: torch.Tensor


def cheapest_paths(
    graph: ArcGraph,
    ends: SeedLists,
    *,
    query_vectors: torch.Tensor | None = None,
    arc_vectors: torch.Tensor | None = None,
    arc_costs: torch.Tensor | None = None,
    k: int,
    max_length: int = 3,
    max_expansions: int = 1_000_000,
) -> SemanticPaths:
    """Return each query's k cheapest simple paths between two different ones of its nodes; exact, and bit-equal in any batch.

    A path is found once, not from both its ends; it may lead through other nodes of the query.

    Args:
        graph: N nodes, A arcs.
        ends: The nodes of B queries.
        query_vectors: float32 (B, D), unit length.
        arc_vectors: float32 (A, D), unit length.
        arc_costs: float32 (B, A), >= 0, instead of the two.
        k: >= 1; fewer come back where there are fewer.
        max_length: Most arcs of a path, >= 1.
        max_expansions: Arcs after partial paths that a query's search looks at, at most, >= 1: a hub makes a query CUT, not
            slow, and the search holds about 100 bytes for each at most.

    Raises:
        InputError: On a shape, dtype or parameter out of these bounds; a bad row is flagged instead.
        MissingDependencyError: If numba is not installed.
    """
    for name, value in (("k", k), ("max_length", max_length), ("max_expansions", max_expansions)):
        if value < 1:
            raise InputError(f"{name}={value} must be >= 1")
    bad = check_arc_values(graph, ends.num_queries, query_vectors, arc_vectors, "arc_costs", arc_costs)
    if choose_backend("auto", torch.device("cpu")) != "numba":
        raise MissingDependencyError("cheapest_paths needs numba: pip install 'gpu-rag[cpu]'")
    indptr, nodes, flags = _distinct(ends, graph.num_nodes, bad)
    incidence = tuple(graph.incidence)
    of_arcs = None if arc_vectors is None else (flat_vectors(arc_vectors), padded_width(arc_vectors))

    def run(block: tuple[int, int]) -> list[np.ndarray]:
        from gpu_rag_kernels import paths_numba

        start, stop = block
        part = indptr[start : stop + 1]
        vectors, costs = None, None
        if arc_costs is not None:
            costs = arc_costs[start:stop].contiguous().numpy()
        elif query_vectors is not None and of_arcs is not None:
            vectors = (flat_vectors(query_vectors[start:stop]), *of_arcs)
        found = paths_numba.cheapest(
            incidence, graph.num_nodes, graph.num_arcs, part - part[0], nodes[part[0] : part[-1]], vectors, costs, k,
            max_length, max_expansions,
        )  # fmt: skip
        return _best(k, *found)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        parts = list(pool.map(run, plan_blocks(ends.num_queries, _BLOCK, ends.num_queries)))
    counts, costs, lengths, path_nodes, arcs, cut = (np.concatenate(column) for column in zip(*parts, strict=True))
    flags |= cut.astype(np.uint8) * np.uint8(SeedFlag.CUT)
    offsets, arc_offsets = (np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64) for sizes in (counts, lengths))
    return SemanticPaths(*map(torch.from_numpy, (offsets, costs, arc_offsets, arcs, path_nodes, flags)))


def _distinct(ends: SeedLists, num_nodes: int, bad: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return offsets, each query's nodes distinct and ascending, and flags; a query of fewer than two has none."""
    indptr, nodes, flags = ends.usable(num_nodes)
    flags[bad & (flags == 0)] = int(SeedFlag.BAD_SEED)
    kept = []
    for query in range(ends.num_queries):
        own = np.unique(nodes[indptr[query] : indptr[query + 1]])
        if flags[query] == 0 and own.size < 2:
            flags[query] = int(SeedFlag.NO_SEED)
        kept.append(own if flags[query] == 0 else own[:0])
    offsets = np.concatenate([[0], np.cumsum([own.size for own in kept])]).astype(np.int64)
    return offsets, np.concatenate([np.empty(0, np.int32), *kept]).astype(np.int32), flags


def _best(
    k: int, indptr: np.ndarray, costs: np.ndarray, ends: np.ndarray, nodes: np.ndarray, arcs: np.ndarray, cut: np.ndarray
) -> list[np.ndarray]:
    """Return paths a query, costs, lengths, nodes, arcs and cut, of the k best paths of each query in their total order."""
    starts = np.concatenate([[0], ends[:-1]]) if ends.size else ends
    counts, chosen = [], []
    for query in range(indptr.size - 1):
        paths = range(indptr[query], indptr[query + 1])
        order = sorted(
            paths,
            key=lambda path: (
                costs[path],
                ends[path] - starts[path],
                nodes[starts[path] + path : ends[path] + path + 1].tolist(),
                arcs[starts[path] : ends[path]].tolist(),
            ),
        )[:k]
        counts.append(len(order))
        chosen += order
    empty = np.empty(0, np.int32)
    return [
        np.array(counts, np.int64),
        costs[chosen] if chosen else costs[:0],
        np.array([ends[path] - starts[path] for path in chosen], np.int64),
        np.concatenate([empty, *(nodes[starts[path] + path : ends[path] + path + 1] for path in chosen)]),
        np.concatenate([empty, *(arcs[starts[path] : ends[path]] for path in chosen)]),
        cut,
    ]
