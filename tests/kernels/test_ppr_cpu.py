"""The numba solver over awkward shapes, against the plain reference and a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_rag_kernels import ppr_cpu, ppr_reference

from gpu_rag.graph.csr import CsrGraph, build_csr
from gpu_rag.graph.walk import ordered_walk, sweep_order


def graph_of(kind: str, num_edges: int, *, undirected: bool) -> CsrGraph:
    """Return a graph of 60 nodes whose first and last rows are empty."""
    rng = np.random.default_rng(num_edges)
    source, target = rng.integers(1, 55, num_edges), rng.integers(1, 55, num_edges)
    if kind == "hub":
        source[: (num_edges + 1) // 2] = 7
    return build_csr(60, source, target, rng.random(num_edges) + 0.01, undirected=undirected)


def resets(num_queries: int, dtype: torch.dtype) -> torch.Tensor:
    rng = np.random.default_rng(num_queries)
    reset = rng.random((num_queries, 60)) * (rng.random((num_queries, 60)) < 0.1)
    reset[:, 3] += 0.2
    return torch.from_numpy(reset).to(dtype)


def solve(graph: CsrGraph, reset: torch.Tensor, *, damping: float = 0.6, top_k: int | None = None) -> ppr_cpu.Solution:
    return ppr_cpu.solve_queries(
        ordered_walk(graph, reset.dtype).walk, ppr_cpu.seeds_of_rows(reset.numpy()), undirected=graph.undirected,
        damping=damping, tol=1e-6, max_sweeps=200, num_relaxed=50, node_range=(0, graph.num_nodes), top_k=top_k,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["random", "hub"])
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("num_edges", [0, 1, 200])
@pytest.mark.parametrize("num_queries", [1, 2, 3, 31, 33, 255, 1000])
def test_solution_equals_the_reference(kind: str, undirected: bool, num_edges: int, num_queries: int) -> None:
    graph, reset = graph_of(kind, num_edges, undirected=undirected), resets(num_queries, torch.float32)
    expected, _, _ = ppr_reference.ppr_block_reference(*graph.transition(torch.float64), reset, 0.6, 40)
    solution = solve(graph, reset)
    error = np.abs(solution.scores.astype(np.float64) - expected.numpy()).sum(axis=1)
    assert (error <= solution.bounds + 1e-7).all()
    assert (solution.bounds <= 1e-6).all()
    assert not np.isnan(solution.scores).any()


@pytest.mark.parametrize("num_queries", [1, 16, 40])
@pytest.mark.parametrize("top_k", [0, 1, 2, 7, 60])
def test_top_is_the_sorted_scores_with_equal_ones_by_lower_node(num_queries: int, top_k: int) -> None:
    edges = np.array([(hub, hub + leaf) for hub in (1, 21, 41) for leaf in range(1, 15)])  # leaves of a hub score alike
    graph = build_csr(60, edges[:, 0], edges[:, 1], undirected=True)
    reset = torch.zeros(num_queries, 60)
    reset[:, [1, 21]] = 1.0
    reset[::2, 50] = 0.5
    scores, top = solve(graph, reset).scores, solve(graph, reset, top_k=top_k)
    for query in range(num_queries):
        reached = np.flatnonzero(scores[query] > 0)
        best = sorted(reached, key=lambda node: (-scores[query, node], node))[:top_k]
        assert top.top_counts[query] == len(best)
        assert top.top_nodes[query].tolist() == best + [-1] * (top_k - len(best))
        assert top.top_scores[query, : len(best)].tolist() == scores[query, best].tolist()


def test_seeds_of_rows_are_what_is_not_zero() -> None:
    rows = np.zeros((4, 200), np.float32)
    rows[0, [0, 63, 64, 199]] = [1, 2, np.nan, -4]
    rows[2, 5], rows[3, 7] = -0.0, 1e-45
    seeds = ppr_cpu.seeds_of_rows(rows)
    assert seeds.indptr.tolist() == [0, 4, 4, 4, 5]
    assert seeds.nodes.tolist() == [0, 63, 64, 199, 7]
    assert np.array_equal(seeds.values, np.array([1, 2, np.nan, -4, 1e-45], np.float32), equal_nan=True)
    assert ppr_cpu.seeds_of_rows(np.zeros((3, 0))).indptr.tolist() == [0, 0, 0, 0]


def test_sweep_goes_from_nodes_of_many_edges_to_isolated_ones() -> None:
    graph = graph_of("hub", 200, undirected=True)
    degrees = np.diff(graph.indptr.numpy())[sweep_order(graph)]
    assert (np.diff(degrees) <= 0).all()
    assert sorted(sweep_order(graph)) == list(range(60))


@pytest.mark.parametrize("damping", [0.0, 0.1, 0.5, 0.85, 0.99])
def test_relaxation_stays_where_sweeps_converge(damping: float) -> None:
    assert 1.0 <= ppr_cpu.relaxation(damping) < 2.0
