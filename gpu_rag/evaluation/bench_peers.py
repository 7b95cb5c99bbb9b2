"""Other ways to personalized PageRank, as peers of ours in a benchmark: igraph, scipy, torch's sparse product, PyG.

Each computes scores of the same walk; what it does otherwise than ours is said where it is defined.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from gpu_rag.engines.require import require
from gpu_rag.errors import MissingDependencyError
from gpu_rag.evaluation.bench_graphs import WalkCase
from gpu_rag.evaluation.roofline import seconds
from gpu_rag.graph import CsrGraph, personalized_pagerank
from gpu_rag.graph.pagerank import num_sweeps

SINGLE_QUERIES = 8  # that a peer takes which works on one query after the other
_BATCH_FLOATS = 1 << 25  # scores of a batch that a peer holds whole, several times over
_REPEATS = 3
_PYG_QUERIES = 2
_PYG_EPS = 1e-6  # its default, 1e-5, leaves a visible error; at ours it takes minutes

Peer = Callable[[], np.ndarray]  # returns scores (Q, N) of the first Q queries


class IgraphWalk:
    """igraph's personalized PageRank (prpack), as HippoRAG 2 calls it: one query after the other."""

    def __init__(self, graph: CsrGraph, damping: float) -> None:
        """Build igraph's graph of an undirected one of ours.

        Raises:
            MissingDependencyError: If igraph is not installed.
        """
        igraph = require("igraph", extra="bench")
        rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))
        columns, weights = graph.indices.numpy(), graph.weights.double().numpy()
        upper = rows <= columns
        halved = np.where(rows == columns, 0.5, 1.0)  # a loop is stored with twice its weight, as it counts
        self._weights = (weights * halved)[upper].tolist()
        self._graph = igraph.Graph(graph.num_nodes, np.stack([rows[upper], columns[upper]], axis=1).tolist())
        self._damping = damping

    def scores(self, reset: np.ndarray) -> np.ndarray:
        """Return the scores of one query, float64 (N,); reset is (N,)."""
        return np.array(
            self._graph.personalized_pagerank(
                reset=reset.tolist(), damping=self._damping, weights=self._weights, implementation="prpack", directed=False
            )
        )


def measure_peers(case: WalkCase, damping: float, tol: float) -> dict[str, Any]:
    """Return, by peer, microseconds a query, queries of a measurement and largest L1 distance to ours, or why it was skipped.

    Power iteration takes as many sweeps as certify the tolerance; prepared before the time is taken is what does not depend
    on the queries.
    """
    graph, sweeps = case.graph, num_sweeps(damping, tol)
    held = max(SINGLE_QUERIES, _BATCH_FLOATS // max(1, graph.num_nodes))
    batch = case.rows(0, min(case.num_queries, held))
    seeds = _connected(graph, _PYG_QUERIES)
    unit = CsrGraph(graph.indptr, graph.indices, torch.ones_like(graph.weights), graph.undirected)
    single = torch.zeros((len(seeds), graph.num_nodes))
    single[torch.arange(len(seeds)), torch.from_numpy(seeds)] = 1.0
    found: dict[str, Any] = {}
    for name, walked, resets, prepare in (
        ("torch_sparse_batch", graph, batch, partial(_torch_sparse, graph, batch, damping, sweeps)),
        ("scipy_batch", graph, batch, partial(_scipy, graph, batch.numpy(), damping, sweeps)),
        (
            "scipy_one_by_one", graph, batch[:SINGLE_QUERIES],
            partial(_scipy_one_by_one, graph, batch[:SINGLE_QUERIES].numpy(), damping, sweeps),
        ),
        ("pyg_single_seeds_unweighted", unit, single, partial(_pyg, graph, seeds, damping)),
    ):  # fmt: skip
        try:
            peer = prepare()
            scores = peer()
        except MissingDependencyError as error:
            found[name] = {"skipped": str(error)}
            continue
        taken = median(seconds(peer) for _ in range(_REPEATS))
        ours = personalized_pagerank(walked, resets, damping=damping, tol=tol).scores
        assert ours is not None
        found[name] = {
            "us_per_query": 1e6 * taken / len(scores),
            "queries": len(scores),
            "largest_l1_to_ours": float(np.abs(scores - ours.numpy()).sum(axis=1).max()),
        }
    return found


def _torch_sparse(graph: CsrGraph, resets: torch.Tensor, damping: float, sweeps: int) -> Peer:
    """Return power iteration by torch's sparse product, float32, the whole batch at once."""
    walk = graph.transition(torch.float32)
    with warnings.catch_warnings():  # torch says once that sparse CSR is beta
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        matrix = torch.sparse_csr_tensor(
            walk.indptr,
            walk.indices.long(),
            walk.probabilities,
            size=(graph.num_nodes, graph.num_nodes),
            check_invariants=False,
        )
    rows = resets.T.contiguous()

    def run() -> np.ndarray:
        start = rows / rows.sum(dim=0)
        x = start
        for _ in range(sweeps):
            x = damping * (matrix @ x) + (1.0 - damping) * start
        scores: np.ndarray = (x / x.sum(dim=0)).T.numpy()
        return scores

    return run


def _scipy(graph: CsrGraph, resets: np.ndarray, damping: float, sweeps: int) -> Peer:
    """Return power iteration by scipy's sparse product, float32, on one thread."""
    from scipy.sparse import csr_array

    walk = graph.transition(torch.float32)
    size = (graph.num_nodes, graph.num_nodes)
    matrix = csr_array((walk.probabilities.numpy(), walk.indices.numpy(), walk.indptr.numpy()), shape=size)
    rows = np.ascontiguousarray(resets.T)
    kept, renewed = np.float32(damping), np.float32(1.0 - damping)

    def run() -> np.ndarray:
        start = rows / rows.sum(axis=0)
        x = start
        for _ in range(sweeps):
            x = kept * (matrix @ x) + renewed * start
        scores: np.ndarray = (x / x.sum(axis=0)).T
        return scores

    return run


def _scipy_one_by_one(graph: CsrGraph, resets: np.ndarray, damping: float, sweeps: int) -> Peer:
    """Return the sequential reference: the same, one query after the other."""
    runs = [_scipy(graph, reset[None], damping, sweeps) for reset in resets]
    return lambda: np.concatenate([run() for run in runs])


def _pyg(graph: CsrGraph, seeds: np.ndarray, damping: float) -> Peer:
    """Return PyTorch Geometric's PPR from single seeds, as it has no other and reads no weights."""
    from gpu_rag.engines.pyg import pyg_pagerank

    return partial(pyg_pagerank, graph, seeds, damping=damping, eps=_PYG_EPS)


def _connected(graph: CsrGraph, count: int) -> np.ndarray:
    """Return some nodes with an edge, int64, spread over the graph."""
    nodes = torch.nonzero(~graph.dangling).flatten().numpy()
    spread: np.ndarray = nodes[:: max(1, len(nodes) // count)][:count]
    return spread
