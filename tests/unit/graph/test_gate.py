"""Gated walks: every query its own matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph import CsrGraph, EdgeGates, SeedFlag, SentenceGates, build_csr, personalized_pagerank

BACKENDS = ["numba", "torch"]


def gated_case(
    num_queries: int, num_nodes: int = 40, num_edges: int = 120, *, undirected: bool = True, dtype: torch.dtype = torch.float64
) -> tuple[CsrGraph, torch.Tensor, EdgeGates]:
    """Return a graph with isolated nodes, resets and gates that open some edges and close others."""
    rng = np.random.default_rng(num_queries + num_edges)
    source, target = rng.integers(0, num_nodes - 3, num_edges), rng.integers(0, num_nodes - 3, num_edges)
    graph = build_csr(num_nodes, source, target, rng.random(num_edges) + 0.1, undirected=undirected)
    rows = np.repeat(np.arange(num_nodes), np.diff(graph.indptr.numpy()))
    pairs = np.minimum(rows, graph.indices.numpy()) * 7 + np.maximum(rows, graph.indices.numpy()) * 3
    gates = EdgeGates(
        torch.from_numpy((pairs % 6 - 1).astype(np.int32)),
        torch.from_numpy(np.exp(rng.normal(size=(num_queries, 5)))).to(dtype),
        torch.from_numpy(np.exp(rng.normal(size=(num_queries, num_nodes)))).to(dtype),
    )
    reset = torch.from_numpy(rng.random((num_queries, num_nodes)) * (rng.random((num_queries, num_nodes)) < 0.2)).to(dtype)
    reset[:, 0] += 0.1
    return graph, reset, gates


def dense_solve(graph: CsrGraph, reset: torch.Tensor, gates: EdgeGates, damping: float) -> np.ndarray:
    """Return the scores of each query by a dense solve over its own matrix, the mass of dangling nodes returned."""
    num_nodes = graph.num_nodes
    rows = np.repeat(np.arange(num_nodes), np.diff(graph.indptr.numpy()))
    columns, of_edge = graph.indices.numpy(), gates.gate_of_edge.numpy()
    out = []
    for query in range(len(reset)):
        matrix = np.zeros((num_nodes, num_nodes))
        for row, column, weight, gate in zip(rows, columns, graph.weights.double().numpy(), of_edge, strict=True):
            factor = 1.0 if gate < 0 else float(gates.edge_gates[query, gate])
            matrix[row, column] = weight * factor * float(gates.node_gates[query, column])
        strength = matrix.sum(axis=1)
        r = reset[query].double().numpy() / float(reset[query].double().sum())
        walk = np.where(strength[:, None] > 0, matrix / np.where(strength > 0, strength, 1.0)[:, None], r)
        out.append(np.linalg.solve(np.eye(num_nodes) - damping * walk.T, (1 - damping) * r))
    return np.array(out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("damping", [0.3, 0.85])
def test_scores_equal_a_dense_solve_over_each_querys_own_matrix(backend: str, undirected: bool, damping: float) -> None:
    graph, reset, gates = gated_case(19, undirected=undirected)
    result = personalized_pagerank(graph, reset, damping=damping, tol=1e-9, backend=backend, gate=gates)
    assert result.flags.sum() == 0
    error = np.abs(result.scores.numpy() - dense_solve(graph, reset, gates, damping)).sum(axis=1)
    assert error.max() <= 1e-9


def test_open_gates_change_nothing_but_rounding() -> None:
    graph, reset, _ = gated_case(5)
    gates = EdgeGates(torch.full((graph.num_edges,), -1, dtype=torch.int32), torch.ones(5, 1), torch.ones(5, 40))
    gated = personalized_pagerank(graph, reset, tol=1e-10, gate=gates).scores
    torch.testing.assert_close(gated, personalized_pagerank(graph, reset, tol=1e-10).scores, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gated_query_is_bit_equal_alone_and_in_a_batch(dtype: torch.dtype) -> None:
    graph, reset, gates = gated_case(50, dtype=dtype)
    batch = personalized_pagerank(graph, reset, gate=gates)
    for query in (0, 15, 16, 33, 49):
        part = slice(query, query + 1)
        own = EdgeGates(gates.gate_of_edge, gates.edge_gates[part], gates.node_gates[part])
        alone = personalized_pagerank(graph, reset[part], gate=own)
        assert torch.equal(alone.scores[0], batch.scores[query])
        assert alone.residual[0] == batch.residual[query]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_query_with_a_bad_gate_is_flagged_and_the_others_are_as_without_it(backend: str, value: float) -> None:
    graph, reset, gates = gated_case(20)
    expected = personalized_pagerank(graph, reset, backend=backend, gate=gates)
    gates.edge_gates[3, 2] = value
    gates.node_gates[7, 9] = value
    result = personalized_pagerank(graph, reset, backend=backend, gate=gates)
    others = [query for query in range(20) if query not in (3, 7)]
    assert torch.equal(result.scores[others], expected.scores[others])
    assert result.flags[[3, 7]].tolist() == [SeedFlag.BAD_GATE] * 2
    assert bool((result.scores[[3, 7]] == 0).all())


def test_top_of_a_range_equals_the_top_of_the_scores() -> None:
    graph, reset, gates = gated_case(20, dtype=torch.float32)
    top = personalized_pagerank(graph, reset, gate=gates, top_range=(5, 30), top_k=4)
    scores = personalized_pagerank(graph, reset, gate=gates).scores
    assert torch.equal(top.top_scores, torch.topk(scores[:, 5:30], 4).values)


def test_gates_of_sentences_follow_the_best_sentence_of_each_gate() -> None:
    similarities = torch.tensor([[0.1, 0.5, 0.9, 0.3], [0.2, 0.2, 0.2, 0.2]])
    gates = SentenceGates(
        torch.zeros(2, dtype=torch.int32), torch.tensor([0, 2, 3, 4]), torch.tensor([0, 1, 2, 3]),
        torch.tensor([2.0, 2.0, 4.0]), similarities, torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 2.0, num_nodes=3,
    )  # fmt: skip
    edges, nodes = gates.rows(0, 2)
    sigma = torch.tensor([[(0.5 - 0.3) / 0.6, 1.0, 0.0], [0.5, 0.5, 0.5]])
    torch.testing.assert_close(edges, torch.exp(torch.tensor([2.0, 2.0, 4.0]) * (sigma - 0.5)))
    torch.testing.assert_close(nodes, torch.exp(torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0]])))


def test_gates_of_sentences_are_bit_equal_in_every_block() -> None:
    rng = np.random.default_rng(2)
    gates = SentenceGates(
        torch.zeros(2, dtype=torch.int32), torch.arange(0, 64, 3), torch.from_numpy(rng.integers(0, 50, 63)),
        torch.full((21,), 2.0), torch.from_numpy(rng.random((33, 50)).astype(np.float32)), torch.rand(33, 7), 2.0, 11,
    )  # fmt: skip
    edges, nodes = gates.rows(0, 33)
    for query in range(33):
        edge, node = gates.rows(query, query + 1)
        assert torch.equal(edge[0], edges[query])
        assert torch.equal(node[0], nodes[query])


def test_gates_that_do_not_fit_are_refused_by_name() -> None:
    graph, reset, gates = gated_case(4)
    cases = [
        (EdgeGates(gates.gate_of_edge[1:], gates.edge_gates, gates.node_gates), "gate_of_edge is"),
        (EdgeGates(gates.gate_of_edge, gates.edge_gates[:3], gates.node_gates[:3]), "3 queries, reset for 4"),
        (EdgeGates(gates.gate_of_edge + 1, gates.edge_gates, gates.node_gates), "is no gate of"),
        (EdgeGates(torch.arange(graph.num_edges).int() % 5, gates.edge_gates, gates.node_gates), "other direction"),
    ]
    for gate, message in cases:
        with pytest.raises(InputError, match=message):
            personalized_pagerank(graph, reset, gate=gate)
    with pytest.raises(InputError, match="gate 1 has no sentence"):
        SentenceGates(
            torch.zeros(1, dtype=torch.int32), torch.tensor([0, 1, 1]), torch.tensor([0]), torch.ones(2), torch.ones(1, 1),
            torch.ones(1, 1), 2.0, 3,
        )  # fmt: skip
