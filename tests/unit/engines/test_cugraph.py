"""The calls into pylibcugraph fit its documented signatures, and its answers come back at the right nodes.

No GPU here: `pylibcugraph` is stood in for by functions of exactly its signatures, taken from the .pyx files in the wheel
pylibcugraph_cu13-26.10.0. They check what arrives as strictly as those do, and compute what those document, in float64.
"""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from gpu_rag_kernels.ppr_reference import ppr_block_reference

from gpu_rag.engines.cugraph import cugraph_leiden, cugraph_pagerank
from gpu_rag.errors import MissingDependencyError
from gpu_rag.graph import CsrGraph, build_csr, personalized_pagerank


class DeviceArray:
    """What `cupy.asarray` gives, as far as pylibcugraph looks: a typed array with `__cuda_array_interface__`."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values.numpy()
        self.dtype = self.values.dtype
        self.__cuda_array_interface__ = {"data": (0, False)}

    def __len__(self) -> int:
        return len(self.values)


class ResourceHandle:
    def __init__(self, handle=None) -> None:
        assert handle is None


class GraphProperties:
    def __init__(self, is_symmetric=False, is_multigraph=False) -> None:
        assert isinstance(is_symmetric, bool) and isinstance(is_multigraph, bool)
        self.is_symmetric, self.is_multigraph = is_symmetric, is_multigraph


class SGGraph:
    def __init__(
        self, resource_handle, graph_properties, src_or_offset_array, dst_or_index_array, weight_array=None,
        store_transposed=False, renumber=False, do_expensive_check=False, edge_id_array=None, edge_type_array=None,
        edge_start_time_array=None, edge_end_time_array=None, input_array_format="COO", vertices_array=None,
        drop_self_loops=False, drop_multi_edges=False, symmetrize=False,
    ) -> None:  # fmt: skip
        assert isinstance(resource_handle, ResourceHandle) and isinstance(graph_properties, GraphProperties)
        assert {type(flag) for flag in (store_transposed, renumber, do_expensive_check)} == {bool}
        assert (edge_id_array, edge_type_array, edge_start_time_array, edge_end_time_array) == (None,) * 4
        assert (drop_self_loops, drop_multi_edges, symmetrize, renumber) == (False,) * 4
        offsets, columns, weights = (checked(a) for a in (src_or_offset_array, dst_or_index_array, weight_array))
        assert offsets.dtype == columns.dtype and offsets.dtype in (np.int32, np.int64)  # else widened, with a warning
        assert weights.dtype in (np.float32, np.float64) and weights.size == columns.size
        self.properties, self.transposed, self.weight_dtype, self.vertex_dtype = (
            graph_properties, store_transposed, weights.dtype, offsets.dtype,
        )  # fmt: skip
        if input_array_format == "CSR":  # graph_sg.cpp: the vertex list is 0 ... len(offsets) - 2
            sources, self.num_vertices = np.repeat(np.arange(offsets.size - 1), np.diff(offsets)), offsets.size - 1
        else:  # COO: vertices are those of the edges, unless they are listed
            assert input_array_format == "COO"
            sources = offsets
            listed = checked(vertices_array) if vertices_array is not None else np.concatenate([offsets, columns])
            self.num_vertices = int(listed.max(initial=-1)) + 1
        self.matrix = np.zeros((self.num_vertices, self.num_vertices))
        np.add.at(self.matrix, (sources, columns), weights)
        assert not graph_properties.is_symmetric or (self.matrix == self.matrix.T).all()


def checked(array) -> np.ndarray:
    if not hasattr(array, "__cuda_array_interface__"):
        raise TypeError("array does not support __cuda_array_interface__")
    return array.values


def personalized_pagerank_of_pylibcugraph(
    resource_handle, graph, precomputed_vertex_out_weight_vertices, precomputed_vertex_out_weight_sums,
    initial_guess_vertices, initial_guess_values, personalization_vertices, personalization_values, alpha, epsilon,
    max_iterations, do_expensive_check, fail_on_nonconvergence=True,
):  # fmt: skip
    """The loop of pagerank_impl.cuh; the vertices come back in another order than they went in."""
    assert isinstance(resource_handle, ResourceHandle) and isinstance(graph, SGGraph) and graph.transposed
    assert precomputed_vertex_out_weight_vertices is precomputed_vertex_out_weight_sums is None
    assert initial_guess_vertices is initial_guess_values is None
    assert isinstance(alpha, float) and isinstance(epsilon, float) and isinstance(max_iterations, int)
    vertices, values = checked(personalization_vertices), checked(personalization_values)
    assert vertices.dtype == graph.vertex_dtype and values.dtype == graph.weight_dtype
    assert 0 < len(vertices) == len(values) == len(set(vertices.tolist())) and values.sum() > 0
    reset = np.zeros(graph.num_vertices)
    reset[vertices] = values / values.astype(np.float64).sum()
    leaving = graph.matrix.sum(axis=1)
    ranks, num_sweeps, change = np.full(graph.num_vertices, 1.0 / graph.num_vertices), 0, np.inf
    while change >= epsilon and num_sweeps < max_iterations:
        dangling = ranks[leaving == 0].sum()
        walked = alpha * (ranks / np.where(leaving == 0, 1.0, leaving)) @ graph.matrix
        after = walked + (dangling * alpha + 1.0 - alpha) * reset
        change, ranks, num_sweeps = np.abs(after - ranks).sum(), after, num_sweeps + 1
    order = np.random.default_rng(0).permutation(graph.num_vertices)
    result = order.astype(graph.vertex_dtype), ranks[order].astype(graph.weight_dtype)
    if fail_on_nonconvergence is False:
        return (*result, num_sweeps < max_iterations)
    assert num_sweeps < max_iterations
    return result


def leiden(resource_handle, random_state, graph, max_level, resolution, theta, do_expensive_check):
    """Connected components instead of communities: enough to see that each label comes back at its node."""
    assert isinstance(resource_handle, ResourceHandle) and isinstance(graph, SGGraph) and graph.properties.is_symmetric
    assert not graph.transposed  # it is stored anew otherwise
    assert graph.weight_dtype == np.float64
    assert isinstance(random_state, int) and isinstance(max_level, int)
    assert isinstance(resolution, float) and isinstance(theta, float) and isinstance(do_expensive_check, bool)
    label = np.arange(graph.num_vertices)
    for _ in range(graph.num_vertices):
        for row, column in zip(*np.nonzero(graph.matrix), strict=True):
            label[row] = label[column] = min(label[row], label[column])
    order = np.random.default_rng(1).permutation(graph.num_vertices)
    names = np.random.default_rng(2).permutation(graph.num_vertices + 5)  # no meaning in a cluster's number
    return order.astype(graph.vertex_dtype), names[label[order]].astype(graph.vertex_dtype), 0.25


@pytest.fixture
def pylibcugraph(monkeypatch) -> ModuleType:
    cupy, fake = ModuleType("cupy"), ModuleType("pylibcugraph")
    cupy.asarray = DeviceArray
    fake.ResourceHandle, fake.GraphProperties, fake.SGGraph = ResourceHandle, GraphProperties, SGGraph
    fake.personalized_pagerank, fake.leiden = personalized_pagerank_of_pylibcugraph, leiden
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "pylibcugraph", fake)
    return fake


def random_graph(*, undirected: bool, num_nodes: int = 50) -> CsrGraph:
    """Edges with loops and parallels; nodes 0, 23 and the last two have none."""
    rng = np.random.default_rng(num_nodes)
    ends = rng.integers(1, num_nodes - 2, (2, 120))
    ends[ends == 23] = 24
    return build_csr(num_nodes, *ends, rng.random(120), undirected=undirected)


def resets(num_nodes: int, dtype: torch.dtype) -> torch.Tensor:
    rng = np.random.default_rng(1)
    rows = rng.random((6, num_nodes)) * (rng.random((6, num_nodes)) < 0.2)
    rows[:, 23] = 3.0  # an isolated seed: a third of the mass and more returns to the reset
    rows[5] = np.eye(num_nodes)[0]  # nothing but an isolated seed
    return torch.from_numpy(rows).to(dtype)


@pytest.mark.parametrize("damping", [0.5, 0.85])
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pagerank_binds_and_agrees_with_ours_isolated_and_dangling_nodes_among_them(
    pylibcugraph, damping: float, undirected: bool, dtype: torch.dtype
) -> None:
    graph, reset = random_graph(undirected=undirected), resets(50, dtype)
    scores, converged = cugraph_pagerank(graph, reset, damping=damping, tol=1e-6)
    ours = personalized_pagerank(graph, reset, damping=damping, tol=1e-6, backend="torch")
    exact, _, _ = ppr_block_reference(*graph.transition(torch.float64), reset.double(), damping, 300)
    assert scores.dtype == dtype and scores.shape == (6, 50) and converged.all()
    assert float((scores.double() - exact).abs().sum(dim=1).max()) <= 2e-6
    assert float((scores - ours.scores).abs().sum(dim=1).max()) <= 4e-6
    assert float(scores[5, 0]) == pytest.approx(1.0)


def test_an_isolated_node_keeps_its_row_among_a_thousand(pylibcugraph) -> None:
    ring = np.array([node for node in range(1000) if node != 123])
    graph = build_csr(1000, ring, np.roll(ring, 1), undirected=True)
    scores, _ = cugraph_pagerank(graph, torch.eye(1000)[[0, 123]], tol=1e-5)
    assert scores.shape == (2, 1000)
    assert float(scores[0, 123]) == 0.0
    assert float(scores[1, 123]) == pytest.approx(1.0, abs=1e-5)
    labels, _ = cugraph_leiden(random_graph(undirected=True))
    assert labels.shape == (50,)
    assert int((labels == labels[23]).sum()) == 1


def test_too_few_sweeps_are_reported_not_raised(pylibcugraph) -> None:
    _, converged = cugraph_pagerank(random_graph(undirected=True), resets(50, torch.float32), tol=1e-6, max_iter=3)
    assert not converged[:5].any()


def test_communities_come_back_at_their_nodes_numbered_by_first_node(pylibcugraph) -> None:
    graph = build_csr(7, [5, 4, 1], [0, 5, 2], undirected=True)
    labels, modularity = cugraph_leiden(graph, resolution=0.8, seed=3)
    assert labels.tolist() == [0, 1, 1, 2, 0, 0, 3]
    assert labels.dtype == torch.int64
    assert modularity == 0.25


def test_a_graph_without_edges_and_a_batch_without_queries_work(pylibcugraph) -> None:
    graph = build_csr(3, [], [], undirected=True)
    scores, _ = cugraph_pagerank(graph, torch.eye(3))
    torch.testing.assert_close(scores, torch.eye(3), rtol=0, atol=1e-6)
    assert cugraph_pagerank(graph, torch.empty(0, 3))[0].shape == (0, 3)
    assert cugraph_leiden(graph)[0].tolist() == [0, 1, 2]


def test_without_pylibcugraph_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pylibcugraph", None)
    with pytest.raises(MissingDependencyError, match=r"gpu-rag\[cuda\]"):
        cugraph_pagerank(random_graph(undirected=True), resets(50, torch.float32))
