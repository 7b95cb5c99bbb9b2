"""Top-k of a contiguous node range, with one defined order among equal scores."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gpu_rag.errors import InputError


class TopK(NamedTuple):
    """The best k nodes of each query, best first."""

    indices: torch.Tensor  # int64 (B, k), node numbers of the whole graph
    scores: torch.Tensor  # dtype of the scores, (B, k)


def topk_in_range(scores: torch.Tensor, lo: int, hi: int, k: int) -> TopK:
    """Return the k highest scores of nodes [lo, hi) per query: by score descending, among equals by lower node number.

    Args:
        scores: Floating point (B, N), without NaN in the range.
        lo: First node of the range, 0 <= lo <= hi.
        hi: End of the range, hi <= N.
        k: Number of nodes, >= 0; clamped to hi - lo.

    Raises:
        InputError: On a shape, dtype, range or k out of these bounds, or a NaN (naming its query and node).
    """
    if scores.ndim != 2 or not scores.dtype.is_floating_point:
        raise InputError(f"scores is {scores.dtype} {tuple(scores.shape)}, expected floating point (B, N)")
    if not 0 <= lo <= hi <= scores.shape[1]:
        raise InputError(f"node range [{lo}, {hi}) is not within [0, {scores.shape[1]})")
    if k < 0:
        raise InputError(f"k={k} must be >= 0")
    window = scores[:, lo:hi]
    missing = torch.isnan(window)
    if bool(missing.any()):
        query, node = (int(value) for value in missing.nonzero()[0])
        raise InputError(f"scores[{query}, {node + lo}] is NaN")
    k = min(k, hi - lo)
    if k == 0 or scores.shape[0] == 0:
        empty = scores.new_zeros((scores.shape[0], k))
        return TopK(empty.long(), empty)
    indices = _chosen(window, k)
    by_value = torch.sort(torch.gather(window, 1, indices), dim=1, descending=True, stable=True)
    return TopK(torch.gather(indices, 1, by_value.indices) + lo, by_value.values)


def _chosen(window: torch.Tensor, k: int) -> torch.Tensor:
    """Return int64 (B, k), the chosen columns ascending; torch.topk alone leaves the choice among equals open."""
    values, indices = torch.topk(window, k, dim=1)
    indices = torch.sort(indices, dim=1).values
    last = values[:, -1:]
    num_equal = (window == last).sum(dim=1)
    num_needed = (values == last).sum(dim=1)
    tied = torch.nonzero(num_equal > num_needed).flatten()
    if tied.numel():
        rows, bound = window[tied], last[tied]
        equal = rows == bound
        kept = (rows > bound) | (equal & (torch.cumsum(equal, dim=1) <= num_needed[tied, None]))
        indices[tied] = kept.nonzero()[:, 1].view(-1, k)
    return indices
