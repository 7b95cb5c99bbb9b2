"""Behaviour of gpu_rag.graph.pagerank on its own: reference values, bad seeds, batches, parameters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from gpu_rag_kernels import ppr_cpu
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import InputError
from gpu_rag.graph import CsrGraph, SeedFlag, SparseReset, blocks, build_csr, pagerank, personalized_pagerank

BACKENDS = ["numba", "torch"]
PAIR = build_csr(4, np.array([0]), np.array([1]), undirected=True)  # edge 0-1, nodes 2 and 3 isolated


def random_graph(num_nodes: int, num_edges: int, *, undirected: bool, seed: int = 0) -> CsrGraph:
    rng = np.random.default_rng(seed)
    hubs = (rng.zipf(1.7, num_edges) - 1) % num_nodes
    weights = rng.random(num_edges) * (rng.random(num_edges) > 0.1)
    return build_csr(num_nodes, hubs, rng.integers(0, num_nodes, num_edges), weights, undirected=undirected)


def random_reset(num_queries: int, num_nodes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(num_queries, num_nodes, generator=generator, dtype=dtype)
    return values * (torch.rand(num_queries, num_nodes, generator=generator) < 0.1)


def dense_solve(graph: CsrGraph, reset: torch.Tensor, damping: float) -> torch.Tensor:
    """Return x = damping * (P^T x + m(x) r) + (1 - damping) r by a dense float64 solve."""
    num_nodes = graph.num_nodes
    weights = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    rows_E = torch.repeat_interleave(torch.arange(num_nodes), graph.indptr.diff())
    weights[rows_E, graph.indices.long()] = graph.weights.double()
    strength = weights.sum(dim=1, keepdim=True)
    rows = []
    for row in reset.double():
        r = row / row.sum()
        walk = torch.where(strength > 0, weights / strength, r[None, :])
        rows.append(torch.linalg.solve(torch.eye(num_nodes).double() - damping * walk.T, (1 - damping) * r))
    return torch.stack(rows)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_isolated_seed_keeps_its_mass_and_other_components_get_exactly_zero(backend: str, dtype: torch.dtype) -> None:
    reset = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], dtype=dtype)
    scores = personalized_pagerank(PAIR, reset, damping=0.5, backend=backend).scores
    expected = torch.tensor([[2 / 3, 1 / 3, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0.5]], dtype=dtype)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    assert bool((scores[expected == 0] == 0).all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_mass_of_a_node_without_outgoing_edge_returns_to_the_seed(backend: str) -> None:
    graph = build_csr(2, np.array([0]), np.array([1]), undirected=False)
    scores = personalized_pagerank(graph, torch.tensor([[0.0, 1.0]]), damping=0.85, backend=backend).scores
    assert scores.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_uniform_reset_on_a_pair_and_two_isolated_nodes(backend: str) -> None:
    graph = build_csr(4, np.array([1, 3]), np.array([3, 1]), undirected=False)
    scores = personalized_pagerank(graph, torch.ones(1, 4), damping=0.85, backend=backend).scores
    torch.testing.assert_close(scores, torch.tensor([[0.06522, 0.43478, 0.06522, 0.43478]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_weight_edge_carries_no_flow(backend: str) -> None:
    graph = build_csr(3, np.array([0, 0]), np.array([1, 2]), np.array([0.0, 1.0]), undirected=True)
    scores = personalized_pagerank(graph, torch.tensor([[1.0, 0.0, 0.0]]), backend=backend).scores
    assert scores[0, 1] == 0
    assert scores[0, 2] > 0.3


def test_stored_zero_weight_counts_as_no_edge() -> None:
    graph = CsrGraph(torch.tensor([0, 1, 1]), torch.tensor([1]), torch.tensor([0.0]), undirected=False)
    result = personalized_pagerank(graph, torch.tensor([[1.0, 0.0]]))
    assert result.scores.tolist() == [[1.0, 0.0]]


BAD_VALUES = [float("nan"), float("inf"), float("-inf"), -1.0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("value", "flag"), [(0.0, SeedFlag.NO_SEED), *((value, SeedFlag.BAD_SEED) for value in BAD_VALUES)])
def test_one_bad_row_is_flagged_and_the_others_are_bit_equal_without_it(backend: str, value: float, flag: SeedFlag) -> None:
    graph = random_graph(60, 150, undirected=True)
    reset = random_reset(100, 60)
    reset[:, 7] += 0.1
    reset[41] = 0
    reset[41, 5] = value
    result = personalized_pagerank(graph, reset, backend=backend)
    others = [query for query in range(100) if query != 41]
    alone = personalized_pagerank(graph, reset[others], backend=backend)
    assert torch.equal(result.scores[others], alone.scores)
    assert bool((result.scores[41] == 0).all())
    assert SeedFlag(int(result.flags[41])) == flag
    assert result.flags[others].sum() == 0
    assert result.iterations[41] == 0
    assert result.residual[41] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("undirected", [False, True])
def test_query_is_bit_equal_alone_and_in_every_batch(undirected: bool, dtype: torch.dtype, monkeypatch) -> None:
    graph = random_graph(300, 900, undirected=undirected)
    reset = random_reset(200, 300, dtype)
    batch = personalized_pagerank(graph, reset, backend="numba")
    for query in (0, 1, 63, 64, 131, 199):
        alone = personalized_pagerank(graph, reset[query : query + 1], backend="numba")
        assert torch.equal(alone.scores[0], batch.scores[query])
        assert alone.residual[0] == batch.residual[query]
    for per_thread in (1, 3, 100):
        monkeypatch.setattr(pagerank, "_BLOCKS_PER_THREAD", per_thread)
        assert torch.equal(personalized_pagerank(graph, reset, backend="numba").scores, batch.scores)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(3))
    assert torch.equal(personalized_pagerank(graph, reset[order], backend="numba").scores, batch.scores[order])


@pytest.mark.parametrize("undirected", [False, True])
def test_thousand_queries_in_another_order_are_bit_equal_to_seven_and_to_one(undirected: bool) -> None:
    graph, reset = random_graph(300, 900, undirected=undirected), random_reset(1000, 300)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    shuffled = personalized_pagerank(graph, reset[order], top_range=(10, 200), top_k=20)
    for chosen in ([731], list(range(500, 507)), list(range(256))):
        part = personalized_pagerank(graph, reset[chosen], top_range=(10, 200), top_k=20)
        places = torch.argsort(order)[chosen]
        for name in ("top_indices", "top_scores", "top_counts", "iterations", "residual", "flags"):
            assert torch.equal(getattr(part, name), getattr(shuffled, name)[places])


def test_less_memory_means_fewer_threads_and_the_same_bits(monkeypatch) -> None:
    graph, reset = random_graph(300, 900, undirected=True), random_reset(130, 300)
    expected = personalized_pagerank(graph, reset).scores
    monkeypatch.setattr(pagerank, "WORKSPACE_BYTES", 1)
    assert torch.equal(personalized_pagerank(graph, reset).scores, expected)
    sizes = [ppr_cpu.workspace_bytes(num_nodes, 0, 4, gated=False) for num_nodes in (1000, 2000, 4000)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])  # grows with the nodes, not with the queries


def test_a_top_k_beyond_the_range_is_the_whole_range() -> None:
    graph, reset = random_graph(300, 900, undirected=True), random_reset(3, 300)
    for backend in BACKENDS:
        result = personalized_pagerank(graph, reset, backend=backend, top_range=(20, 90), top_k=5000)
        assert result.top_indices.shape == (3, 70)


def test_concurrent_calls_and_thread_counts_give_the_same_bits() -> None:
    graph, reset = random_graph(300, 900, undirected=True), random_reset(130, 300)
    expected = personalized_pagerank(graph, reset).scores
    with ThreadPoolExecutor(4) as pool:
        for scores in pool.map(lambda _: personalized_pagerank(graph, reset).scores, range(8)):
            assert torch.equal(scores, expected)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(personalized_pagerank(graph, reset).scores, expected)
    finally:
        torch.set_num_threads(threads)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_scores_equal_a_dense_solve_within_tol(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(1, 15))
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node, st.floats(0, 10, width=32)), max_size=40))
    columns = np.array(edges, dtype=np.float64).reshape(-1, 3)
    ends = columns[:, :2].astype(np.int64)
    graph = build_csr(num_nodes, ends[:, 0], ends[:, 1], columns[:, 2], undirected=data.draw(st.booleans()))
    seeds = data.draw(st.lists(node, min_size=1, max_size=4))
    reset = torch.zeros(1, num_nodes, dtype=torch.float64)
    reset[0, seeds] = 1.5
    damping = data.draw(st.sampled_from([0.1, 0.5, 0.85, 0.95]))
    expected = dense_solve(graph, reset, damping)
    for backend in BACKENDS:
        result = personalized_pagerank(graph, reset, damping=damping, tol=1e-9, backend=backend)
        error = (result.scores - expected).abs().sum(dim=1)
        assert float(error) <= 1e-9
        assert float(error) <= float(result.residual) / (1 - damping) + 1e-12  # the bound the residual promises
        assert result.flags.tolist() == [0]
        assert abs(float(result.scores.sum()) - 1) <= 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_holds_its_tolerance_beside_a_hub(backend: str) -> None:
    graph = build_csr(40_001, np.zeros(40_000, int), np.arange(1, 40_001), undirected=True)
    reset = torch.zeros(1, 40_001)
    reset[0, 0] = 1.0
    result = personalized_pagerank(graph, reset, backend=backend)
    assert abs(float(result.scores[0, 0]) - 2 / 3) < 1e-6
    assert abs(float(result.scores.double().sum()) - 1) < 1e-6
    assert result.flags.tolist() == [0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_reset_equals_the_dense_one_and_adds_repeated_seeds(backend: str) -> None:
    graph = random_graph(60, 150, undirected=True)
    dense = torch.zeros(3, 60)
    dense[0, 3], dense[0, 9], dense[2, 0] = 0.75, 0.5, 2.0
    sparse = SparseReset(
        torch.tensor([0, 3, 3, 4]), torch.tensor([3, 9, 3, 0]), torch.tensor([0.25, 0.5, 0.5, 2.0]), num_nodes=60
    )
    one, other = (personalized_pagerank(graph, reset, backend=backend) for reset in (dense, sparse))
    assert torch.equal(one.scores, other.scores)
    assert other.flags.tolist() == [0, SeedFlag.NO_SEED, 0]


def test_negative_sparse_value_is_flagged_even_where_the_sum_is_positive() -> None:
    sparse = SparseReset(torch.tensor([0, 2, 3]), torch.tensor([1, 1, 1]), torch.tensor([-1.0, 2.0, 1.0]), num_nodes=4)
    result = personalized_pagerank(PAIR, sparse)
    assert result.flags.tolist() == [SeedFlag.BAD_SEED, 0]


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [([0, 1, 2], [0, 4], "query 1: seed 4"), ([0, 1], [0, 1], "must rise"), ([0, 2, 1, 2], [0, 1], "must rise")],
)
def test_sparse_reset_that_does_not_fit_is_refused(indptr: list[int], indices: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SparseReset(torch.tensor(indptr), torch.tensor(indices), torch.ones(len(indices)), num_nodes=4)


def test_different_seeds_give_different_scores() -> None:
    scores = personalized_pagerank(random_graph(60, 150, undirected=True), torch.eye(60)[[3, 40]]).scores
    assert float((scores[0] - scores[1]).abs().sum()) > 0.5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{"max_iter": 2}, {"tol": 1e-30}])
def test_unconverged_scores_are_flagged_with_their_residual(backend: str, options: dict) -> None:
    result = personalized_pagerank(
        PAIR, torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]), backend=backend, damping=0.7, **options
    )
    rounded = SeedFlag.NOT_CONVERGED if backend == "numba" and "tol" in options else 0  # its bound counts rounding in
    assert result.flags.tolist() == [SeedFlag.NOT_CONVERGED, SeedFlag.NO_SEED, rounded]
    assert float(result.residual[0]) > 0
    assert result.iterations.dtype == torch.int32
    assert result.iterations[0] >= 1
    assert result.iterations[0] <= options.get("max_iter", 1000)


@pytest.mark.parametrize("backend", BACKENDS)
def test_damping_zero_returns_the_normalised_reset(backend: str) -> None:
    result = personalized_pagerank(PAIR, torch.tensor([[3.0, 1.0, 0.0, 0.0]]), damping=0, backend=backend)
    assert result.scores.tolist() == [[0.75, 0.25, 0.0, 0.0]]
    assert result.iterations.tolist() == [0 if backend == "torch" else 1]
    assert result.residual.tolist() == [0.0]


@pytest.mark.parametrize("damping", [0.01, 0.3, 0.5, 0.85, 0.99])
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-12, 10.0])
def test_number_of_sweeps_is_the_fewest_that_certify_tol(damping: float, tol: float) -> None:
    sweeps = pagerank.num_sweeps(damping, tol)
    assert 2 * damping ** (sweeps + 1) <= tol * (1 - damping) * (1 + 1e-9)
    assert sweeps == 1 or 2 * damping**sweeps > tol * (1 - damping) * (1 - 1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"damping": 1.0}, {"damping": -0.1}, {"damping": 1.5}, {"damping": float("nan")}, {"tol": 0.0},
        {"tol": float("nan")}, {"tol": float("inf")}, {"max_iter": 0}, {"backend": "cuda"}, {"top_k": 3},
        {"top_range": (0, 3)}, {"top_range": (0, 5), "top_k": 1}, {"top_k": -1, "top_range": (0, 3)},
    ],
)  # fmt: skip
def test_parameter_out_of_bounds_is_refused_by_name(options: dict) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        personalized_pagerank(PAIR, torch.ones(1, 4), **options)


@pytest.mark.parametrize("reset", [torch.ones(4), torch.ones(1, 3), torch.ones(1, 4).half(), torch.ones(1, 4).long()])
def test_reset_that_does_not_fit_the_graph_is_refused(reset: torch.Tensor) -> None:
    with pytest.raises(InputError, match="reset"):
        personalized_pagerank(PAIR, reset)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_queries", [0, 1, 5, 130])
@pytest.mark.parametrize(("num_nodes", "num_edges"), [(0, 0), (1, 0), (7, 0), (7, 1)])
def test_empty_sizes_work(backend: str, num_queries: int, num_nodes: int, num_edges: int) -> None:
    edges = np.zeros(num_edges, int)
    graph = build_csr(num_nodes, edges, edges + 1, undirected=True)
    result = personalized_pagerank(graph, torch.ones(num_queries, num_nodes), backend=backend)
    assert result.scores.shape == (num_queries, num_nodes)
    assert result.flags.tolist() == [0 if num_nodes else SeedFlag.NO_SEED] * num_queries
    top = personalized_pagerank(graph, torch.ones(num_queries, num_nodes), backend=backend, top_range=(0, num_nodes), top_k=3)
    assert top.top_indices.shape == (num_queries, min(3, num_nodes))


@pytest.mark.parametrize("value", [1e-320, 1e-300, 1e300, 1.7e308])
def test_extreme_resets_and_weights_neither_overflow_nor_vanish(value: float) -> None:
    reset = torch.full((1, 4), value, dtype=torch.float64)
    for backend in BACKENDS:
        scores = personalized_pagerank(PAIR, reset, backend=backend).scores
        expected = torch.tensor([[1 / 3, 1 / 3, 1 / 6, 1 / 6]], dtype=torch.float64)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-3 if value < 1e-310 else 1e-6)
    for weight in (1e-44, 3e38):
        graph = build_csr(2, np.array([0]), np.array([1]), np.array([weight]), undirected=True)
        assert personalized_pagerank(graph, torch.tensor([[1.0, 0.0]])).scores[0, 1] > 0.33


def test_top_k_of_a_range_replaces_the_scores_and_counts_reached_nodes_only() -> None:
    reset = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [1.0, 0, 1.0, 1.0]])
    result = personalized_pagerank(PAIR, reset, top_range=(1, 4), top_k=2)
    assert result.scores is None
    assert result.top_indices.tolist() == [[1, -1], [-1, -1], [2, 3]]
    assert result.top_counts.tolist() == [1, 0, 2]
    full = personalized_pagerank(PAIR, reset).scores
    assert result.top_scores.tolist() == [[float(full[0, 1]), 0.0], [0.0, 0.0], full[2, [2, 3]].tolist()]


def test_blocks_cover_all_queries_in_whole_tiles() -> None:
    for num_queries, num_blocks in [(0, 2), (1, 2), (100, 2), (130, 8), (1000, 3), (17, 8)]:
        planned = blocks.plan_blocks(num_queries, 16, num_blocks)
        assert [query for start, stop in planned for query in range(start, stop)] == list(range(num_queries))
        assert all(start % 16 == 0 for start, _ in planned)
        assert len(planned) <= num_blocks


def test_scores_beyond_the_memory_of_the_machine_are_refused_before_allocation(monkeypatch) -> None:
    monkeypatch.setattr(pagerank.os, "sysconf", lambda name: 10)  # a machine of 100 bytes
    with pytest.raises(InputError, match=r"10 queries x 4 nodes take 160 bytes.* give top_range and top_k"):
        personalized_pagerank(PAIR, torch.ones(10, 4))
    assert personalized_pagerank(PAIR, torch.ones(10, 4), top_range=(0, 4), top_k=1).top_counts.tolist() == [1] * 10
