"""The walk of a graph as the CPU kernel reads it: nodes renumbered so that a sweep runs fast.

Nodes of many edges come first, and among nodes of equally many those near each other (reverse Cuthill-McKee): rows of equal
length in a row let the processor foresee where a row ends, and near nodes share the cache. Measured in `docs/log.md`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gpu_rag_kernels.ppr_cpu import Walk

from gpu_rag.graph.csr import CsrGraph


class OrderedWalk(NamedTuple):
    """A walk in the order of the sweep, and where its edges come from."""

    walk: Walk
    edges: np.ndarray  # int64 (E,), position in the graph's arrays of each of the walk's edges


def ordered_walk(graph: CsrGraph, dtype: torch.dtype, *, gated: bool = False) -> OrderedWalk:
    """Return the walk, computed once per dtype and kept with the graph; with `gated`, weights instead of probabilities."""
    return graph.derived(("ordered_walk", dtype, gated), lambda: _ordered_walk(graph, dtype, gated))


def sweep_order(graph: CsrGraph) -> np.ndarray:
    """Return int64 (N,), the nodes in the order of the sweep."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    indptr, indices = graph.indptr.cpu().numpy(), graph.indices.cpu().numpy()
    if graph.num_edges == 0:
        return np.arange(graph.num_nodes)
    pattern = csr_array((np.ones(graph.num_edges, np.int8), indices, indptr), shape=(graph.num_nodes, graph.num_nodes))
    near = reverse_cuthill_mckee(pattern, symmetric_mode=graph.undirected).astype(np.int64)
    in_degree = np.bincount(indices, minlength=graph.num_nodes)
    order: np.ndarray = near[np.argsort(-in_degree[near], kind="stable")]
    return order


def _ordered_walk(graph: CsrGraph, dtype: torch.dtype, gated: bool) -> OrderedWalk:
    order = graph.derived("sweep_order", lambda: sweep_order(graph))
    place = np.empty(graph.num_nodes, np.int64)
    place[order] = np.arange(graph.num_nodes)
    targets = place[graph.indices.numpy()]
    sources = place[np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))]
    edges = np.lexsort((sources, targets))
    indptr = np.zeros(graph.num_nodes + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=graph.num_nodes), out=indptr[1:])
    weights = graph.weights.to(dtype) if gated else graph.shares(dtype)
    return OrderedWalk(
        Walk(
            indptr,
            sources[edges].astype(graph.indices.numpy().dtype),
            weights.numpy()[edges],
            place.astype(np.int32),
            graph.dangling.numpy()[order],
        ),
        edges,
    )
