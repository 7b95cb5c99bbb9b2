"""Ours against pylibcugraph on a CUDA device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_rag.engines.cugraph import cugraph_leiden, cugraph_pagerank
from gpu_rag.graph import CsrGraph, build_csr, personalized_pagerank

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _pylibcugraph() -> None:
    pytest.importorskip("pylibcugraph", exc_type=ImportError)


def random_graph(*, undirected: bool, num_nodes: int = 2000, num_edges: int = 8000) -> CsrGraph:
    """A hub with a tenth of the edges, loops, parallels; nodes 0, 123 and the last have none."""
    rng = np.random.default_rng(num_edges)
    ends = rng.integers(1, num_nodes - 1, (2, num_edges))
    ends[0, : num_edges // 10] = 7
    ends[ends == 123] = 124
    return build_csr(num_nodes, *ends, rng.random(num_edges), undirected=undirected)


def resets(num_queries: int, num_nodes: int) -> torch.Tensor:
    rng = np.random.default_rng(num_queries)
    rows = rng.random((num_queries, num_nodes)) * (rng.random((num_queries, num_nodes)) < 0.01)
    rows[:, 123] = 1.0
    return torch.from_numpy(rows)


@pytest.mark.parametrize("damping", [0.5, 0.85])
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
def test_pagerank_agrees_isolated_and_dangling_nodes_among_them(
    damping: float, undirected: bool, dtype: torch.dtype, tol: float
) -> None:
    graph, reset = random_graph(undirected=undirected).to("cuda"), resets(33, 2000).to("cuda", dtype)
    theirs, converged = cugraph_pagerank(graph, reset, damping=damping, tol=tol)
    ours = personalized_pagerank(graph, reset, damping=damping, tol=tol)
    assert ours.scores is not None
    assert theirs.shape == ours.scores.shape
    assert converged.all()
    # Each is within tol of the exact scores, but for what its dtype rounds.
    assert float((theirs - ours.scores).abs().sum(dim=1).max()) <= 2 * tol + 50 * torch.finfo(dtype).eps


def test_leiden_labels_every_node_and_finds_cliques() -> None:
    size, count = 8, 5
    inside = [(clique * size + a, clique * size + b) for clique in range(count) for a in range(size) for b in range(a)]
    bridges = [(clique * size, (clique + 1) * size) for clique in range(count - 1)]
    source, target = zip(*inside, *bridges, strict=True)
    graph = build_csr(size * count + 2, source, target, undirected=True).to("cuda")  # and two isolated nodes
    labels, modularity = cugraph_leiden(graph, seed=1)
    expected = [clique for clique in range(count) for _ in range(size)]
    assert labels.tolist() == [*expected, count, count + 1]
    assert modularity > 0.6


def test_ten_runs_of_leiden_are_equally_good_for_more_is_not_promised() -> None:
    graph = random_graph(undirected=True).to("cuda")
    modularities = [cugraph_leiden(graph, seed=1)[1] for _ in range(10)]
    assert max(modularities) - min(modularities) <= 0.02
