"""The Triton kernels at real size on a CUDA device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_rag.graph import build_csr, personalized_pagerank

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 5e-6), (torch.float64, 1e-10)])
def test_scores_equal_float64_power_iteration(undirected: bool, dtype: torch.dtype, tol: float) -> None:
    rng = np.random.default_rng(0)
    ends = (18_000 * rng.random((2, 66_000)) ** 2).astype(np.int64)
    graph = build_csr(18_000, ends[0], ends[1], undirected=undirected).to("cuda")
    reset = torch.zeros((300, 18_000), dtype=dtype, device="cuda")
    reset.scatter_(1, torch.from_numpy(rng.integers(0, 18_000, (300, 5))).cuda(), 1.0)
    result = personalized_pagerank(graph, reset, tol=tol, backend="triton")
    expected = personalized_pagerank(graph, reset.double(), tol=1e-12, backend="torch")
    assert float((result.scores.double() - expected.scores).abs().sum(dim=1).max()) <= tol
    assert int(result.flags.sum()) == 0


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_batch(undirected: bool, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    ends = (17_000 * rng.random((2, 66_000)) ** 2).astype(np.int64)  # nodes from 17,000 on have no edge
    graph = build_csr(18_000, ends[0], ends[1], undirected=undirected).to("cuda")
    reset = torch.from_numpy(rng.random((1000, 18_000)) * (rng.random((1000, 18_000)) < 0.01)).to("cuda", dtype)
    whole = personalized_pagerank(graph, reset, backend="triton")
    order = torch.from_numpy(rng.permutation(1000)).cuda()
    for queries in (order[:1], order[:7], order[:256], order):
        part = personalized_pagerank(graph, reset[queries], backend="triton")
        assert torch.equal(part.scores, whole.scores[queries])
        assert torch.equal(part.residual, whole.residual[queries])
