"""The Triton kernels over awkward shapes, through the interpreter where there is no CUDA device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_rag.graph import CsrGraph, EdgeGates, SeedFlag, build_csr, personalized_pagerank

ppr_triton = pytest.importorskip("gpu_rag_kernels.ppr_triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def graph_of(kind: str, num_edges: int, *, undirected: bool, num_nodes: int = 24) -> CsrGraph:
    """Return a graph whose first and last rows are empty."""
    rng = np.random.default_rng(num_edges)
    source, target = rng.integers(1, num_nodes - 2, (2, num_edges))
    if kind == "hub":
        source[: (num_edges + 1) // 2] = 7
    return build_csr(num_nodes, source, target, rng.random(num_edges) + 0.01, undirected=undirected).to(DEVICE)


def resets(num_queries: int, num_nodes: int = 24, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rng = np.random.default_rng(num_queries)
    reset = rng.random((num_queries, num_nodes)) * (rng.random((num_queries, num_nodes)) < 0.1)
    reset[:, 3] += 0.2
    return torch.from_numpy(reset).to(dtype).to(DEVICE)


def check(graph: CsrGraph, reset: torch.Tensor, *, tol: float, damping: float = 0.5, gate: EdgeGates | None = None) -> None:
    options = {"damping": damping, "gate": gate}
    expected = personalized_pagerank(graph, reset.double(), tol=1e-10, backend="torch", **options)
    result = personalized_pagerank(graph, reset, tol=tol, backend="triton", **options)
    assert result.flags.tolist() == [0] * len(reset)
    error = (result.scores.double() - expected.scores).abs().sum(dim=1)
    assert bool((error <= result.residual / (1 - damping) + 1e-7).all())
    assert bool((error <= tol).all())


@pytest.mark.parametrize("kind", ["random", "hub"])
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("num_edges", [0, 1, 60])
def test_scores_equal_the_reference(kind: str, undirected: bool, num_edges: int) -> None:
    check(graph_of(kind, num_edges, undirected=undirected), resets(3), tol=1e-6)


@pytest.mark.parametrize("num_queries", [1, 2, 31, 33, 255, 1000])
def test_every_number_of_queries_works(num_queries: int) -> None:
    check(graph_of("random", 5, undirected=True, num_nodes=6), resets(num_queries, 6), tol=1e-3)


@pytest.mark.parametrize("damping", [0.0, 0.85])
def test_every_damping_works(damping: float) -> None:
    check(graph_of("random", 60, undirected=True), resets(2, dtype=torch.float64), tol=1e-8, damping=damping)


def test_rows_longer_than_a_segment_are_put_together(monkeypatch) -> None:
    monkeypatch.setattr(ppr_triton, "SEGMENT", 5)
    graph = graph_of("hub", 60, undirected=True)
    rows = ppr_triton.rows_of(*graph.transition(torch.float32)[:3])
    lengths = torch.diff(graph.indptr)
    assert rows.long.tolist() == torch.nonzero(lengths > 5).flatten().tolist()
    assert int((rows.piece_end - rows.piece_start).max()) <= 5
    assert int((rows.piece_end - rows.piece_start).sum()) == int(lengths[rows.long].sum())
    check(graph, resets(3), tol=1e-6)


def test_query_is_bit_equal_alone_and_in_a_batch() -> None:
    graph, reset = graph_of("hub", 60, undirected=True), resets(70)
    batch = personalized_pagerank(graph, reset, backend="triton", tol=1e-2)
    for query in (0, 69):
        alone = personalized_pagerank(graph, reset[query : query + 1], backend="triton", tol=1e-2)
        assert torch.equal(alone.scores[0], batch.scores[query])
        assert alone.residual[0] == batch.residual[query]


@pytest.mark.parametrize("undirected", [True, False])
def test_bits_do_not_depend_on_the_batch_where_mass_is_lost_at_dead_ends(undirected: bool) -> None:
    rng = np.random.default_rng(0)
    graph = build_csr(80, rng.integers(0, 4, 8), rng.integers(4, 8, 8), undirected=undirected).to(DEVICE)
    reset = torch.from_numpy(rng.random((66, 80))).to(DEVICE)  # most of it on the many nodes without edges
    check(graph, reset[:2], tol=1e-2)
    batch = personalized_pagerank(graph, reset, backend="triton", tol=1e-1)
    for query in (0, 20, 65):
        alone = personalized_pagerank(graph, reset[query : query + 1], backend="triton", tol=1e-1)
        assert torch.equal(alone.scores[0], batch.scores[query])
        assert alone.residual[0] == batch.residual[query]


def test_largest_values_of_the_dtype_do_not_overflow() -> None:
    graph = graph_of("random", 12, undirected=True, num_nodes=9)
    for dtype, largest in ((torch.float64, 1.7e308), (torch.float32, 3.4e38)):
        reset = resets(2, 9, dtype=dtype)
        reset[:, 2:5] = largest  # their sum is infinite
        check(graph, reset, tol=1e-5)


@pytest.mark.parametrize("num_rows", [0, 1, 4, 5, 6, 130])
def test_column_sums_equal_float64_sums_and_look_at_their_own_column_alone(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ppr_triton, "_SUM_ROWS", 5)
    generator = torch.Generator().manual_seed(num_rows)
    wide, other, inverse = (torch.randn((num_rows, 192), generator=generator).to(DEVICE) for _ in range(3))
    inverse = inverse.abs() + 0.1
    expected = (wide.clamp(min=0.0).double() / inverse.double()).sum(dim=0)
    torch.testing.assert_close(ppr_triton.column_sums(wide, None, inverse), expected, rtol=1e-6, atol=0.0)
    changes = ppr_triton.column_sums(wide, other)
    torch.testing.assert_close(changes, (wide - other).abs().double().sum(dim=0), rtol=1e-12, atol=0.0)
    narrow = [part[:, 64:128].contiguous() for part in (wide, other)]
    assert torch.equal(ppr_triton.column_sums(*narrow), changes[64:128])


def test_column_sums_do_not_hide_what_is_no_number() -> None:
    values = torch.zeros((600, 64), device=DEVICE)
    values[599, 3] = torch.nan
    assert torch.nonzero(torch.isnan(ppr_triton.column_sums(values, torch.zeros_like(values)))).tolist() == [[3]]


def test_bad_rows_are_flagged_and_the_others_are_as_without_them() -> None:
    graph, reset = graph_of("random", 20, undirected=True), resets(5)
    expected = personalized_pagerank(graph, reset, backend="triton")
    reset[1], reset[3, 2] = 0.0, torch.nan
    result = personalized_pagerank(graph, reset, backend="triton")
    assert result.flags.tolist() == [0, SeedFlag.NO_SEED, 0, SeedFlag.BAD_SEED, 0]
    assert torch.equal(result.scores[[0, 2, 4]], expected.scores[[0, 2, 4]])
    assert bool((result.scores[[1, 3]] == 0).all())


def test_top_of_a_range_equals_the_top_of_the_scores() -> None:
    graph, reset = graph_of("random", 30, undirected=True), resets(4)
    top = personalized_pagerank(graph, reset, backend="triton", tol=1e-3, top_range=(3, 20), top_k=4)
    scores = personalized_pagerank(graph, reset, backend="triton", tol=1e-3).scores
    assert torch.equal(top.top_scores, torch.topk(scores[:, 3:20], 4).values)
    assert torch.equal(scores.gather(1, top.top_indices), top.top_scores)


@pytest.mark.parametrize("undirected", [True, False])
def test_gated_scores_equal_the_reference(undirected: bool) -> None:
    graph, reset = graph_of("hub", 60, undirected=undirected), resets(3)
    rng = np.random.default_rng(1)
    rows = np.repeat(np.arange(24), np.diff(graph.indptr.cpu().numpy()))
    columns = graph.indices.cpu().numpy()
    of_edge = torch.from_numpy((np.minimum(rows, columns) * 7 + np.maximum(rows, columns) * 3) % 6 - 1).int().to(DEVICE)
    gates = (torch.from_numpy(np.exp(rng.normal(size=(3, size)))).float().to(DEVICE) for size in (5, 24))
    check(graph, reset, tol=1e-6, gate=EdgeGates(of_edge, *gates))
