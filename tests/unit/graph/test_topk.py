"""Behaviour of gpu_rag.graph.topk."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import InputError
from gpu_rag.graph import topk_in_range


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_order_is_score_descending_then_lower_node(data: st.DataObject) -> None:
    num_queries, num_nodes = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 30))
    values = st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.0, float("inf"), float("-inf")])
    row = st.lists(values, min_size=num_nodes, max_size=num_nodes)
    rows = data.draw(st.lists(row, min_size=num_queries, max_size=num_queries))
    lo = data.draw(st.integers(0, num_nodes))
    hi = data.draw(st.integers(lo, num_nodes))
    k = data.draw(st.integers(0, num_nodes + 2))
    top = topk_in_range(torch.tensor(rows).view(num_queries, num_nodes), lo, hi, k)
    expected = [sorted(range(lo, hi), key=lambda node, row=row: (-row[node], node))[:k] for row in rows]
    assert top.indices.tolist() == expected
    assert top.scores.tolist() == [[row[node] for node in nodes] for row, nodes in zip(rows, expected, strict=True)]
    assert top.indices.dtype == torch.int64


def test_k_is_clamped_to_the_range() -> None:
    top = topk_in_range(torch.tensor([[1.0, 3.0, 2.0]]), 1, 3, 99)
    assert top.indices.tolist() == [[1, 2]]


def test_ties_go_to_the_lower_node_in_a_large_row() -> None:
    scores = torch.zeros(2, 100_000)
    scores[1, 77_777] = 1.0
    assert topk_in_range(scores, 10, 100_000, 3).indices.tolist() == [[10, 11, 12], [77_777, 10, 11]]


def test_nan_in_the_range_is_refused_with_its_place() -> None:
    scores = torch.tensor([[0.0, 1.0, 2.0], [float("nan"), 1.0, float("nan")]])
    with pytest.raises(InputError, match=r"scores\[1, 2\] is NaN"):
        topk_in_range(scores, 1, 3, 1)
    assert topk_in_range(scores, 1, 2, 1).indices.tolist() == [[1], [1]]


@pytest.mark.parametrize(("lo", "hi", "k"), [(-1, 2, 1), (2, 1, 1), (0, 4, 1), (0, 3, -1)])
def test_range_or_k_out_of_bounds_is_refused(lo: int, hi: int, k: int) -> None:
    with pytest.raises(InputError):
        topk_in_range(torch.zeros(1, 3), lo, hi, k)


@pytest.mark.parametrize("scores", [torch.zeros(3), torch.zeros(1, 3, dtype=torch.int64)])
def test_wrong_shape_or_dtype_is_refused(scores: torch.Tensor) -> None:
    with pytest.raises(InputError, match="expected floating point"):
        topk_in_range(scores, 0, 1, 1)
