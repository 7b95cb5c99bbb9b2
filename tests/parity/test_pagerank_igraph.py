"""Agreement of personalized_pagerank with igraph's prpack and with networkx, under their conventions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_rag.graph import build_csr, personalized_pagerank

igraph = pytest.importorskip("igraph")
networkx = pytest.importorskip("networkx")


def edge_list(kind: str, seed: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return num_nodes, source, target and weights of a graph with self-loops, parallel edges and isolated nodes."""
    rng = np.random.default_rng(seed)
    num_nodes, num_edges = 120, 260
    if kind == "hubs":
        source = (rng.zipf(1.5, num_edges) - 1) % 100
        target = rng.integers(0, 100, num_edges)
    elif kind == "components":
        block = rng.integers(0, 5, num_edges) * 20
        source, target = block + rng.integers(0, 20, num_edges), block + rng.integers(0, 20, num_edges)
    else:
        source, target = rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges)
    return num_nodes, source, target, rng.random(num_edges).astype(np.float32) + 0.01


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("kind", ["random", "hubs", "components"])
@pytest.mark.parametrize("damping", [0.5, 0.85])
def test_scores_agree_with_igraph_to_1e_6(
    kind: str, undirected: bool, dtype: torch.dtype, damping: float, backend: str
) -> None:
    num_nodes, source, target, weights = edge_list(kind, seed=11)
    peer = igraph.Graph(num_nodes, list(zip(source.tolist(), target.tolist(), strict=True)), directed=not undirected)
    graph = build_csr(num_nodes, source, target, weights, undirected=undirected)
    rng = np.random.default_rng(5)
    reset = rng.random((12, num_nodes)) * (rng.random((12, num_nodes)) < 0.05)
    reset[:, 119] += 0.01  # isolated in all but the random kind
    mine = personalized_pagerank(graph, torch.from_numpy(reset).to(dtype), damping=damping, backend=backend)
    for query in range(12):
        theirs = peer.personalized_pagerank(
            reset=reset[query].tolist(), damping=damping, weights=weights.tolist(), implementation="prpack",
            directed=not undirected,
        )  # fmt: skip
        assert float(np.abs(mine.scores[query].double().numpy() - theirs).sum()) <= 1e-6
    assert mine.flags.sum() == 0


def test_self_loop_of_an_undirected_graph_counts_twice_as_in_igraph() -> None:
    peer = igraph.Graph(3, [(0, 0), (0, 1), (1, 2)])
    theirs = peer.personalized_pagerank(reset=[1, 0, 0], damping=0.5, weights=[3, 2, 1], implementation="prpack")
    graph = build_csr(3, np.array([0, 0, 1]), np.array([0, 1, 2]), np.array([3, 2, 1]), undirected=True)
    mine = personalized_pagerank(graph, torch.tensor([[1.0, 0.0, 0.0]])).scores[0]
    np.testing.assert_allclose(mine.numpy(), theirs, atol=1e-6)


def test_seeds_of_a_renumbered_graph_agree_with_networkx() -> None:
    num_nodes, source, target, weights = edge_list("random", seed=2)
    names = np.random.default_rng(9).permutation(num_nodes)  # name of node i of the networkx graph in ours
    peer = networkx.DiGraph()
    peer.add_nodes_from(range(num_nodes))
    for a, b, weight in zip(source.tolist(), target.tolist(), weights.tolist(), strict=True):
        before = peer.get_edge_data(a, b, {"weight": 0.0})["weight"]
        peer.add_edge(a, b, weight=before + weight)
    seeds = {4: 1.0, 77: 3.0}
    theirs = networkx.pagerank(peer, alpha=0.6, personalization=seeds, dangling=seeds, tol=1e-12, max_iter=500)
    graph = build_csr(num_nodes, names[source], names[target], weights, undirected=False)
    reset = torch.zeros(1, num_nodes, dtype=torch.float64)
    for node, value in seeds.items():
        reset[0, names[node]] = value
    mine = personalized_pagerank(graph, reset, damping=0.6, tol=1e-9).scores[0].numpy()
    assert float(np.abs(mine[names] - [theirs[node] for node in range(num_nodes)]).sum()) <= 1e-6
