"""pylibcugraph: personalized PageRank and Leiden on a CUDA device, as a cross-check of ours; no backend of it.

The graph is handed over as CSR, of which pylibcugraph makes a vertex list of all N nodes, so isolated ones stay. Its PageRank
returns the mass of nodes without outgoing weight to the reset, as ours does, so nothing has to be corrected.
Source: pylibcugraph 26.10.0 (`graphs.pyx`, `personalized_pagerank.pyx`, `leiden.pyx`), libcugraph's `graph_sg.cpp` and
`pagerank_impl.cuh`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpu_rag.engines.require import require
from gpu_rag.graph import CsrGraph

_INT32_END = 2**31


def cugraph_pagerank(
    graph: CsrGraph, reset: torch.Tensor, *, damping: float = 0.5, tol: float = 1e-6, max_iter: int = 500
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores (B, N), in the reset's dtype, and whether each query converged, bool (B,); one query after the other.

    Args:
        graph: N nodes, on a CUDA device.
        reset: float32 or float64 (B, N), on it; finite, >= 0, every row with a positive value. Rows need not sum to 1.
        damping: Its alpha, in (0, 1).
        tol: Bound of the L1 error, as ours. pylibcugraph stops by the L1 change of a sweep, epsilon; the error is at most
            damping / (1 - damping) times that, so epsilon is tol * (1 - damping) / damping.
        max_iter: Its max_iterations; a query that takes that many does not count as converged.

    Raises:
        MissingDependencyError: If pylibcugraph or cupy is not installed.
    """
    pylibcugraph, cupy = require("pylibcugraph", extra="cuda"), require("cupy", extra="cuda")
    handle = pylibcugraph.ResourceHandle()
    peer = _graph(pylibcugraph, cupy, handle, graph, reset.dtype, transposed=True)
    scores, converged = torch.zeros_like(reset), torch.zeros(len(reset), dtype=torch.bool, device=reset.device)
    for query, row in enumerate(reset):
        seeds = torch.nonzero(row).flatten()
        nodes, values, done = pylibcugraph.personalized_pagerank(
            resource_handle=handle,
            graph=peer,
            precomputed_vertex_out_weight_vertices=None,
            precomputed_vertex_out_weight_sums=None,
            initial_guess_vertices=None,
            initial_guess_values=None,
            personalization_vertices=cupy.asarray(seeds.to(_index_dtype(graph))),
            personalization_values=cupy.asarray(row[seeds]),
            alpha=damping,
            epsilon=tol * (1.0 - damping) / damping,
            max_iterations=max_iter,
            do_expensive_check=False,
            fail_on_nonconvergence=False,
        )
        scores[query, torch.as_tensor(nodes, device=reset.device).long()] = torch.as_tensor(values, device=reset.device)
        converged[query] = bool(done)
    return scores, converged


def cugraph_leiden(
    graph: CsrGraph, *, resolution: float = 1.0, max_level: int = 100, theta: float = 1.0, seed: int = 0
) -> tuple[torch.Tensor, float]:
    """Return the community of each node, int64 (N,), numbered in the order of their first nodes, and the modularity.

    Not reproducible: the seed fixes its random numbers, not the order in which threads add. With float32 weights, users saw
    different partitions of large graphs under one seed; with float64, which are handed over here, equal ones in 10 runs
    (rapidsai/cugraph #4072, #4373), without a promise. So it is for comparison; what enters an index is `leidenalg`'s.

    Args:
        graph: Undirected, on a CUDA device.
        resolution: Higher: more and smaller communities.
        max_level: Upper bound of the levels.
        theta: Scale of the refinement's random choice.
        seed: Of its random numbers.

    Raises:
        MissingDependencyError: If pylibcugraph or cupy is not installed.
    """
    pylibcugraph, cupy = require("pylibcugraph", extra="cuda"), require("cupy", extra="cuda")
    handle = pylibcugraph.ResourceHandle()
    nodes, clusters, modularity = pylibcugraph.leiden(
        resource_handle=handle,
        random_state=seed,
        graph=_graph(pylibcugraph, cupy, handle, graph, torch.float64, transposed=False),
        max_level=max_level,
        resolution=resolution,
        theta=theta,
        do_expensive_check=False,
    )
    found = np.empty(graph.num_nodes, np.int64)
    found[torch.as_tensor(nodes).cpu().numpy()] = torch.as_tensor(clusters).cpu().numpy()
    _, first, number = np.unique(found, return_index=True, return_inverse=True)
    return torch.from_numpy(np.argsort(np.argsort(first))[number]).to(graph.device), float(modularity)


def _graph(pylibcugraph: Any, cupy: Any, handle: Any, graph: CsrGraph, weight_dtype: torch.dtype, *, transposed: bool) -> Any:
    """Return the graph as pylibcugraph's, stored the way an algorithm reads it."""
    return pylibcugraph.SGGraph(
        resource_handle=handle,
        graph_properties=pylibcugraph.GraphProperties(is_symmetric=graph.undirected, is_multigraph=False),
        src_or_offset_array=cupy.asarray(graph.indptr.to(_index_dtype(graph))),
        dst_or_index_array=cupy.asarray(graph.indices.to(_index_dtype(graph))),
        weight_array=cupy.asarray(graph.weights.to(weight_dtype)),
        store_transposed=transposed,
        renumber=False,
        do_expensive_check=False,
        input_array_format="CSR",
    )


def _index_dtype(graph: CsrGraph) -> torch.dtype:
    """Return the one dtype that offsets and nodes have to share."""
    return torch.int32 if max(graph.num_edges, graph.num_nodes) < _INT32_END else torch.int64
