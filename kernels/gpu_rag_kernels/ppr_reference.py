"""Personalized PageRank by plain power iteration in float64: what the kernels are tested against, and the `torch` backend.

It iterates, from x = r, `x <- d * (P^T x + m(x) * r) + (1 - d) * r`, where r is the reset divided by its sum and m(x) the
mass on nodes without outgoing weight (igraph's convention). The map keeps mass and contracts L1 distances by d.

Shape suffixes: N nodes, E edges, B queries, G gates.
Source: Page et al. 1999; conventions of igraph `personalized_pagerank(implementation="prpack")`.
"""

from __future__ import annotations

import warnings

import torch

__all__ = ["BAD_SEED", "NO_SEED", "gated_ppr_reference", "normalised_rows", "ppr_block_reference"]

NO_SEED = 1
BAD_SEED = 2


def ppr_block_reference(
    indptr_N1: torch.Tensor,
    indices_E: torch.Tensor,
    probabilities_E: torch.Tensor,
    dangling_N: torch.Tensor,
    reset_BN: torch.Tensor,
    damping: float,
    num_sweeps: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores (B, N), L1 residual float64 (B,) and flags uint8 (B,), by torch sparse products in float64.

    A row without mass, or with a negative or non-finite value, is flagged and comes back all zero; scores are rounded to
    the dtype of reset_BN at the end.

    Args:
        indptr_N1: int64 (N + 1,), offsets of the incoming edges of each node.
        indices_E: int32 or int64 (E,), source of each incoming edge.
        probabilities_E: float64 (E,), probability of the step.
        dangling_N: bool (N,), nodes without outgoing weight.
        reset_BN: float32 or float64 (B, N), not normalised; on one device with the others.
        damping: In [0, 1).
        num_sweeps: Sweeps to do, at least 0; one more is spent on the residual.

    Raises:
        ValueError: If the shapes do not fit.
    """
    num_nodes = reset_BN.shape[1]
    if indptr_N1.shape != (num_nodes + 1,) or dangling_N.shape != (num_nodes,) or indices_E.shape != probabilities_E.shape:
        shapes = [tuple(array.shape) for array in (indptr_N1, indices_E, probabilities_E, dangling_N)]
        raise ValueError(f"indptr_N1, indices_E, probabilities_E, dangling_N {shapes} misfit N={num_nodes}")
    r, flags = normalised_rows(reset_BN)
    with warnings.catch_warnings():  # torch says once that sparse CSR is beta
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        matrix = torch.sparse_csr_tensor(
            indptr_N1, indices_E.long(), probabilities_E.double(), size=(num_nodes, num_nodes), check_invariants=False
        )

    def sweep(x: torch.Tensor) -> torch.Tensor:
        returned = damping * x[dangling_N].sum(dim=0) + (1.0 - damping)
        walked = matrix @ x if indices_E.numel() else torch.zeros_like(x)
        return damping * walked + returned * r

    x = r
    for _ in range(num_sweeps):
        x = sweep(x)
    residual = (sweep(x) - x).abs().sum(dim=0)
    return x.T.to(reset_BN.dtype).contiguous(), residual, flags


def gated_ppr_reference(
    indptr_N1: torch.Tensor,
    indices_E: torch.Tensor,
    weights_E: torch.Tensor,
    gate_of_edge_E: torch.Tensor,
    edge_gates_BG: torch.Tensor,
    node_gates_BN: torch.Tensor,
    reset_BN: torch.Tensor,
    damping: float,
    num_sweeps: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what `ppr_block_reference` returns, each query on a matrix of its own, which is built: one at a time.

    The step along edge e into node v weighs `weights_e * edge_gates[q, gate_of_edge_e] * node_gates[q, v]`, divided by the
    sum over all steps that leave the same node.

    Args:
        indptr_N1: As above.
        indices_E: As above.
        weights_E: float (E,), weight of the incoming edge.
        gate_of_edge_E: int32 (E,), its gate; -1: none.
        edge_gates_BG: float (B, G), > 0.
        node_gates_BN: float (B, N), > 0.
        reset_BN: As above.
        damping: As above.
        num_sweeps: As above.
    """
    num_nodes = reset_BN.shape[1]
    nodes = torch.arange(num_nodes, device=reset_BN.device)
    targets = torch.repeat_interleave(nodes, indptr_N1[1:] - indptr_N1[:-1])
    sources, weights = indices_E.long(), weights_E.double()
    parts = []
    for query, reset in enumerate(reset_BN):
        open_gate = torch.cat([edge_gates_BG[query].double(), edge_gates_BG.new_ones(1, dtype=torch.float64)])
        gated = weights * open_gate[gate_of_edge_E.long()] * node_gates_BN[query].double()[targets]
        leaving = gated.new_zeros(num_nodes).index_add(0, sources, gated)
        shares = torch.where(gated > 0, gated / leaving[sources], 0.0)
        parts.append(ppr_block_reference(indptr_N1, indices_E, shares, leaving == 0, reset[None], damping, num_sweeps))
    scores, residual, flags = (torch.cat(column) for column in zip(*parts, strict=True))
    return scores, residual, flags


def normalised_rows(reset_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float64 (N, B), each query's reset divided by its sum or all zero, and flags uint8 (B,)."""
    reset = reset_BN.detach().to(torch.float64)
    bad = (~torch.isfinite(reset) | (reset < 0)).any(dim=1)
    reset = torch.where(bad[:, None], 0.0, reset)
    largest = reset.amax(dim=1, keepdim=True) if reset.shape[1] else reset.new_zeros((reset.shape[0], 1))
    scaled = torch.where(largest > 0, reset / largest, 0.0)
    r = torch.where(largest > 0, scaled / scaled.sum(dim=1, keepdim=True), 0.0).T.contiguous()
    flags = torch.where(bad, BAD_SEED, torch.where(largest[:, 0] == 0, NO_SEED, 0)).to(torch.uint8)
    return r, flags
