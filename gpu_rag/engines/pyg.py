"""PyTorch Geometric's own personalized PageRank, as a peer of ours; no backend of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpu_rag.engines.require import require
from gpu_rag.graph import CsrGraph


def pyg_pagerank(
    graph: CsrGraph, seeds: npt.NDArray[Any], *, damping: float = 0.5, eps: float = 1e-7
) -> npt.NDArray[np.float32]:
    """Return the scores of walks that start at one node each, float32 (B, N), by `torch_geometric.utils.get_ppr`.

    It pushes from one seed at a time, takes every edge to weigh alike, and stops by residual and degree. It agrees with ours
    on graphs whose weights are all equal.

    Args:
        graph: N nodes; its weights are not read.
        seeds: int (B,), the one seed of each query, with an edge.
        damping: Its alpha is 1 - damping.
        eps: A node is pushed while its residual is at least (1 - damping) * eps * degree.

    Raises:
        MissingDependencyError: If torch-geometric is not installed.
    """
    utils = require("torch_geometric.utils", extra="bench")
    counts = graph.indptr[1:] - graph.indptr[:-1]
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes), counts)
    edge_index = torch.stack([rows, graph.indices.long()])
    distinct, place = np.unique(np.asarray(seeds, np.int64), return_inverse=True)
    found, weight = utils.get_ppr(
        edge_index, alpha=1.0 - damping, eps=eps, target=torch.from_numpy(distinct), num_nodes=graph.num_nodes
    )
    scores = np.zeros((len(distinct), graph.num_nodes), np.float32)
    scores[np.searchsorted(distinct, found[0].numpy()), found[1].numpy()] = weight.numpy()
    of_queries: npt.NDArray[np.float32] = scores[place]
    return of_queries
