"""Batched n-hop neighbourhoods: what lies within so many edges of each query's nodes.

Device: CPU, numba.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.errors import InputError, MissingDependencyError
from gpu_rag.graph.blocks import choose_backend, plan_blocks
from gpu_rag.graph.csr import CsrGraph
from gpu_rag.graph.reset import SeedFlag
from gpu_rag.graph.seeds import SeedLists

_BLOCK = 64  # queries that a thread takes at once, with its own memory of which nodes it has seen


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """The nodes near B queries' seeds, K in all.

    Attributes:
        indptr: int64 (B + 1,), offsets of the queries.
        nodes: int32 (K,), ascending within a query, the seeds among them.
        distances: int32 (K,), edges to the nearest seed.
        flags: uint8 (B,), `SeedFlag` NO_SEED, BAD_SEED (no node then) or CUT.
    """

    indptr: torch.Tensor
    nodes: torch.Tensor
    distances: torch.Tensor
    flags: torch.Tensor


def n_hop(graph: CsrGraph, seeds: SeedLists, *, hops: int, max_nodes: int | None = None) -> Neighbourhoods:
    """Return each query's neighbourhood; it does not depend on its batch.

    Args:
        graph: N nodes, on the CPU; a directed one is followed along its edges.
        seeds: Of B queries.
        hops: >= 0.
        max_nodes: Most nodes of a query, >= 1: where a hop does not fit whole, its lowest nodes are kept and nothing beyond,
            and the query is flagged CUT. So a hub costs one hop, not the graph.

    Raises:
        InputError: If a parameter is out of bounds, or the graph lies elsewhere.
        MissingDependencyError: If numba is not installed.
    """
    if hops < 0:
        raise InputError(f"hops={hops} must be >= 0")
    if max_nodes is not None and max_nodes < 1:
        raise InputError(f"max_nodes={max_nodes} must be >= 1 or None")
    if graph.device.type != "cpu":
        raise InputError(f"the graph lies on {graph.device}, expected the CPU")
    if choose_backend("auto", graph.device) != "numba":
        raise MissingDependencyError("n_hop needs numba: pip install 'gpu-rag[cpu]'")
    from gpu_rag_kernels import neighbourhood_numba

    indptr, nodes, flags = seeds.usable(graph.num_nodes)
    limit = graph.num_nodes if max_nodes is None else max_nodes
    offsets, indices = graph.indptr.numpy(), graph.indices.numpy()

    def run(block: tuple[int, int]) -> tuple[np.ndarray, ...]:
        part = indptr[block[0] : block[1] + 1]
        found: tuple[np.ndarray, ...] = neighbourhood_numba.neighbourhoods(
            offsets, indices, part - part[0], nodes[part[0] : part[-1]], hops, limit
        )
        return found

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        parts = list(pool.map(run, plan_blocks(seeds.num_queries, _BLOCK, seeds.num_queries)))
    counts, found, distances, cut = zip(*parts, strict=True)
    flags |= np.concatenate(cut).astype(np.uint8) * np.uint8(SeedFlag.CUT)
    whole = np.concatenate([[0], *(np.diff(count) for count in counts)]).cumsum()
    return Neighbourhoods(
        torch.from_numpy(whole), torch.from_numpy(np.concatenate(found)), torch.from_numpy(np.concatenate(distances)),
        torch.from_numpy(flags),
    )  # fmt: skip
