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
    alone = personalized_pagerank(graph, reset[77:78], tol=tol, backend="triton")
    assert torch.equal(alone.scores[0], result.scores[77])
