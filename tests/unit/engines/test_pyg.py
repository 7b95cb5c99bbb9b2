"""PyTorch Geometric's PageRank: where it coincides with ours, and where it does not."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from gpu_rag.engines.pyg import pyg_pagerank
from gpu_rag.errors import MissingDependencyError
from gpu_rag.graph import CsrGraph, build_csr, personalized_pagerank

pytest.importorskip("torch_geometric")


def distinct_pairs(num_nodes: int, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Return edges without loops and parallels; node 0 and the last have none."""
    rng = np.random.default_rng(num_nodes)
    ends = np.sort(rng.integers(1, num_nodes - 1, (2, num_edges)), axis=0)
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    return ends[0], ends[1]


def ours(graph: CsrGraph, seeds: np.ndarray, damping: float) -> np.ndarray:
    reset = torch.eye(graph.num_nodes, dtype=torch.float64)[torch.from_numpy(seeds)]
    result = personalized_pagerank(graph, reset, damping=damping, tol=1e-10, backend="torch")
    assert result.scores is not None
    return result.scores.numpy()


@pytest.mark.parametrize("damping", [0.5, 0.85])
@pytest.mark.parametrize("undirected", [True, False])
def test_it_agrees_with_ours_where_all_edges_weigh_alike(damping: float, undirected: bool) -> None:
    source, target = distinct_pairs(60, 200)
    if not undirected:  # every node that has an edge is left by one: there is no dangling mass, which it drops
        source, target = np.concatenate([source, np.arange(1, 59)]), np.concatenate([target, np.roll(np.arange(1, 59), 1)])
        source, target = np.unique([source, target], axis=1)
    graph = build_csr(60, source, target, undirected=undirected)
    seeds = np.unique(source)[[4, 1, 9, 4]]
    theirs = pyg_pagerank(graph, seeds, damping=damping, eps=1e-7)
    assert theirs.shape == (4, 60)
    assert np.abs(theirs - ours(graph, seeds, damping)).sum(axis=1).max() <= 1e-7 * graph.num_edges + 1e-6
    assert theirs[:, 0].max() == theirs[:, 59].max() == 0.0
    assert (theirs[0] == theirs[3]).all()


def test_it_reads_no_weights() -> None:
    source, target = distinct_pairs(40, 100)
    weights = np.random.default_rng(0).random(source.size) + 0.1
    graph = build_csr(40, source, target, weights, undirected=True)
    alike = build_csr(40, source, target, undirected=True)
    seeds = source[:2]
    theirs = pyg_pagerank(graph, seeds)
    assert np.abs(theirs - ours(alike, seeds, 0.5)).sum(axis=1).max() < 1e-4
    assert np.abs(theirs - ours(graph, seeds, 0.5)).sum(axis=1).min() > 1e-2


def test_it_drops_the_mass_that_ours_returns_from_dangling_nodes() -> None:
    graph = build_csr(3, [0, 0], [1, 2], undirected=False)
    theirs, mine = pyg_pagerank(graph, np.array([0])), ours(graph, np.array([0]), 0.5)
    np.testing.assert_allclose(theirs, [[0.5, 0.125, 0.125]], atol=1e-5)
    np.testing.assert_allclose(theirs / theirs.sum(), mine, atol=1e-5)


def test_without_torch_geometric_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric.utils", None)
    with pytest.raises(MissingDependencyError, match=r"gpu-rag\[bench\]"):
        pyg_pagerank(build_csr(2, [0], [1], undirected=True), np.array([0]))
