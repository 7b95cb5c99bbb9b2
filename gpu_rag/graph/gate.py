"""Gates: a walk whose steps weigh differently for every query, without a matrix per query in memory.

The step along edge e into node v weighs `weight_e * edge_gate[q, gate_of_edge_e] * node_gate[q, v]`, divided by the sum over
all steps that leave the same node. On an undirected graph both directions of an edge share its gate; then the walk is
reversible whatever the node gates are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from gpu_rag.errors import InputError
from gpu_rag.graph.csr import CsrGraph


class Gate(Protocol):
    """Factors on the weights of each query's steps."""

    @property
    def gate_of_edge(self) -> torch.Tensor:
        """int32 (E,), the gate of each of the graph's stored edges; -1: none."""

    @property
    def num_queries(self) -> int:
        """B."""

    @property
    def num_gates(self) -> int:
        """G."""

    def rows(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return edge gates (stop - start, G) and node gates (stop - start, N) of queries [start, stop), all > 0."""


@dataclass(frozen=True, eq=False)
class EdgeGates:
    """Gates that are given as they are.

    Attributes:
        gate_of_edge: int32 (E,), -1: none.
        edge_gates: float32 or float64 (B, G), > 0.
        node_gates: (B, N), > 0.
    """

    gate_of_edge: torch.Tensor
    edge_gates: torch.Tensor
    node_gates: torch.Tensor

    @property
    def num_queries(self) -> int:
        """B."""
        return int(self.edge_gates.shape[0])

    @property
    def num_gates(self) -> int:
        """G."""
        return int(self.edge_gates.shape[1])

    def rows(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return edge gates and node gates of queries [start, stop)."""
        return self.edge_gates[start:stop], self.node_gates[start:stop]


@dataclass(frozen=True, eq=False)
class SentenceGates:
    """Gates computed, when a block of queries needs them, from how like each query its sentences are.

    An edge stands in some sentences. Its gate is exp(strength * (sigma - 0.5)), sigma being the best similarity among them,
    min-max normalised over the query's gates; the gate of a node is exp(node_strength * its score).

    Attributes:
        gate_of_edge: int32 (E,), -1: none.
        indptr: int64 (G + 1,), offsets of the gates' sentences; each gate has one at least.
        sentences: int64, columns of similarities.
        strength: float (G,).
        similarities: float32 (B, S).
        node_scores: float32 (B, P), of nodes [0, P).
        node_strength: Times the score.
        num_nodes: N.

    Raises:
        InputError: If a gate has no sentence, or a sentence or a shape does not fit.
    """

    gate_of_edge: torch.Tensor
    indptr: torch.Tensor
    sentences: torch.Tensor
    strength: torch.Tensor
    similarities: torch.Tensor
    node_scores: torch.Tensor
    node_strength: float
    num_nodes: int

    def __post_init__(self) -> None:
        empty = torch.nonzero(self.indptr[1:] <= self.indptr[:-1]).flatten()
        if empty.numel():
            raise InputError(f"gate {int(empty[0])} has no sentence")
        outside = torch.nonzero((self.sentences < 0) | (self.sentences >= self.similarities.shape[1])).flatten()
        if outside.numel():
            at = int(outside[0])
            raise InputError(f"sentences[{at}]={int(self.sentences[at])} is no column of similarities")
        if self.strength.shape != (self.num_gates,):
            raise InputError(f"strength has shape {tuple(self.strength.shape)}, expected ({self.num_gates},)")
        if self.node_scores.shape[0] != self.num_queries or self.node_scores.shape[1] > self.num_nodes:
            raise InputError(f"node_scores has shape {tuple(self.node_scores.shape)}, expected ({self.num_queries}, <= N)")

    @property
    def num_queries(self) -> int:
        """B."""
        return int(self.similarities.shape[0])

    @property
    def num_gates(self) -> int:
        """G."""
        return int(self.indptr.numel()) - 1

    def rows(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return edge gates and node gates of queries [start, stop)."""
        found = self.similarities[start:stop][:, self.sentences].T.contiguous()
        best = torch.segment_reduce(found, "max", offsets=self.indptr, axis=0).T
        lowest, highest = best.amin(dim=1, keepdim=True), best.amax(dim=1, keepdim=True)
        sigma = torch.where(highest > lowest, (best - lowest) / (highest - lowest), 0.5)
        nodes = self.similarities.new_ones((stop - start, self.num_nodes))
        nodes[:, : self.node_scores.shape[1]] = torch.exp(self.node_strength * self.node_scores[start:stop])
        return torch.exp(self.strength.to(sigma) * (sigma - 0.5)), nodes


def check_gate(gate: Gate, graph: CsrGraph, num_queries: int) -> None:
    """Raise InputError, naming what does not fit, unless the gate is one for these queries on this graph."""
    of_edge = gate.gate_of_edge
    if of_edge.dtype != torch.int32 or of_edge.shape != (graph.num_edges,):
        raise InputError(f"gate_of_edge is {of_edge.dtype} {tuple(of_edge.shape)}, expected int32 ({graph.num_edges},)")
    if gate.num_queries != num_queries:
        raise InputError(f"gate is for {gate.num_queries} queries, reset for {num_queries}")
    outside = torch.nonzero((of_edge < -1) | (of_edge >= gate.num_gates)).flatten()
    if outside.numel():
        raise InputError(f"gate_of_edge[{int(outside[0])}]={int(of_edge[outside[0]])} is no gate of [-1, {gate.num_gates})")
    if graph.undirected:
        other = torch.argsort(graph.indices, stable=True)  # the same edges seen from their other ends
        differs = torch.nonzero(of_edge[other] != of_edge).flatten()
        if differs.numel():
            raise InputError(f"gate_of_edge[{int(differs[0])}] differs from that of the same undirected edge's other direction")
