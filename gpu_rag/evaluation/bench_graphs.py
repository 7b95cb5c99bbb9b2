"""Graphs and resets for benchmarks: those of an index and its questions, or generated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from gpu_rag.config import load_config
from gpu_rag.engines.encoder import EncoderConfig, open_encoder
from gpu_rag.errors import InputError
from gpu_rag.graph import ArcGraph, CsrGraph, SeedLists, SparseReset, build_csr
from gpu_rag.graph.reset import Reset, dense_rows
from gpu_rag.query.questions import read_questions
from gpu_rag.query.repository import Repository
from gpu_rag.query.retrievers import Queries, top_rows
from gpu_rag.query.retrievers.ppr import ppr_resets
from gpu_rag.query.s03_retrieve import RetrieveConfig
from gpu_rag.store import open_generation

NUM_TOPICS = 8  # of generated arcs


@dataclass(frozen=True, eq=False)
class WalkCase:
    """What a benchmark of personalized PageRank works on.

    Attributes:
        name: Where it comes from.
        graph: Undirected.
        resets: float32, of B queries, not normalised; every one has a seed.
        passages: Node range that is ranked.
    """

    name: str
    graph: CsrGraph
    resets: Reset
    passages: tuple[int, int]

    @property
    def num_queries(self) -> int:
        """B."""
        return len(self.resets) if isinstance(self.resets, torch.Tensor) else int(self.resets.indptr.numel()) - 1

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Return the resets of queries [start, stop), float32 (stop - start, N)."""
        return dense_rows(self.resets, start, stop)

    def first(self, count: int) -> WalkCase:
        """Return the same graph with the first queries alone."""
        resets = self.resets
        if isinstance(resets, torch.Tensor):
            return replace(self, resets=resets[:count])
        stop = int(resets.indptr[: count + 1][-1])
        part = SparseReset(resets.indptr[: count + 1], resets.indices[:stop], resets.values[:stop], resets.num_nodes)
        return replace(self, resets=part)


@dataclass(frozen=True, eq=False)
class ActivationCase:
    """What a benchmark of spreading activation works on.

    Attributes:
        name: Where it comes from.
        graph: The arcs.
        seeds: Of B queries.
        query_vectors: float32 (B, D), unit length.
        arc_vectors: float32 (A, D), unit length.
    """

    name: str
    graph: ArcGraph
    seeds: SeedLists
    query_vectors: np.ndarray
    arc_vectors: np.ndarray


def power_law_edges(num_nodes: int, num_edges: int, *, skew: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends, int64 (num_edges,), of edges whose expected degrees fall as rank^-skew (Chung and Lu 2002).

    Args:
        num_nodes: N >= 1.
        num_edges: Drawn; parallel ones and loops among them.
        skew: In [0, 1); 0: all nodes alike.
        seed: Same seed, same edges.
    """
    if not 0.0 <= skew < 1.0:
        raise InputError(f"skew={skew} must be in [0, 1)")
    random = np.random.default_rng(seed)
    number = random.permutation(num_nodes)  # so that a node's number says nothing of its degree

    def draw() -> np.ndarray:
        rank = num_nodes * random.random(num_edges) ** (1.0 / (1.0 - skew))
        ends: np.ndarray = number[np.minimum(rank.astype(np.int64), num_nodes - 1)]
        return ends

    return draw(), draw()


def generated_walk(
    num_nodes: int, num_edges: int, *, num_queries: int, skew: float, seed: int, num_passages: int, num_seeds: int = 5
) -> WalkCase:
    """Return a power-law graph, and resets of a few seeds and of all passages, which are the first nodes.

    Args:
        num_nodes: N.
        num_edges: Drawn; loops are left out, parallel ones add up.
        num_queries: B.
        skew: See `power_law_edges`.
        seed: Likewise.
        num_passages: At most N; 0: a query has its few seeds alone.
        num_seeds: Of a query, each with weight 1 beside what it has as a passage.
    """
    source, target = power_law_edges(num_nodes, num_edges, skew=skew, seed=seed)
    apart = source != target
    graph = build_csr(num_nodes, source[apart], target[apart], undirected=True)
    num_passages = min(num_passages, num_nodes)
    random = np.random.default_rng(seed + 1)
    nodes = np.empty((num_queries, num_passages + num_seeds), np.int32)
    nodes[:, :num_passages] = np.arange(num_passages)
    nodes[:, num_passages:] = random.integers(0, num_nodes, (num_queries, num_seeds))
    values = np.ones(nodes.shape, np.float32)
    values[:, :num_passages] = 0.05 * random.random((num_queries, num_passages), np.float32)
    offsets = torch.arange(num_queries + 1) * nodes.shape[1]
    resets = SparseReset(offsets, torch.from_numpy(nodes.ravel()), torch.from_numpy(values.ravel()), num_nodes)
    name = f"power law, {num_nodes} nodes, {num_edges} edges drawn, skew {skew}, seed {seed}"
    return WalkCase(name, graph, resets, (0, num_passages or num_nodes))


def walk_of_index(index: Path, questions: Sequence[Path], system: str, num_queries: int) -> WalkCase:
    """Return the graph that a system walks on an index, and the resets of questions, again from the first if there are few.

    Raises:
        InputError: If there is no question, or none with a seed.
    """
    config = load_config(system=system, base=_embedding_of(index))
    queries = _queries(questions, num_queries, config.embed.encoder)
    return walk_of_queries(f"{system} on {index.name}", Repository.open(index), queries, config.retrieve)


def walk_of_queries(name: str, repository: Repository, queries: Queries, config: RetrieveConfig) -> WalkCase:
    """Return the graph that a config walks and the queries' resets; a query that it does not walk for is left out.

    Raises:
        InputError: If none is left.
    """
    dense = repository.chunk_search.scores(queries.vectors)
    resets, _ = ppr_resets(queries, dense, config=config.ppr, hybrid=config.hybrid, bm25=config.bm25, repository=repository)
    resets = resets[resets.any(axis=1)]
    if not len(resets):
        raise InputError(f"{name}: no question has a seed")
    graph = repository.graph_view(config.ppr.view).graph
    return WalkCase(name, graph, torch.from_numpy(resets), (0, len(repository.chunk_ids)))


def activation_of_index(index: Path, questions: Sequence[Path], num_queries: int, num_seeds: int) -> ActivationCase:
    """Return an index's facts as arcs, and seeds of questions, again from the first if there are few.

    Raises:
        InputError: If there is no question, or no fact.
    """
    queries = _queries(questions, num_queries, load_config(base=_embedding_of(index)).embed.encoder)
    return activation_of_queries(f"facts of {index.name}", Repository.open(index), queries, num_seeds)


def activation_of_queries(name: str, repository: Repository, queries: Queries, num_seeds: int) -> ActivationCase:
    """Return the facts as arcs, and for each query as seeds the first ends of the facts most like it.

    Raises:
        InputError: If there is no fact.
    """
    if not len(repository.fact_ids):
        raise InputError(f"{name}: there is none, so there is no arc")
    similar = repository.fact_search.scores(queries.vectors)
    ends = np.stack([repository.fact_subject, repository.fact_object], axis=1).astype(np.int32)
    seeds = [list(dict.fromkeys(ends[top_rows(row, num_seeds).rows].ravel().tolist()))[:num_seeds] for row in similar]
    offsets = np.cumsum([0, *map(len, seeds)])
    lists = SeedLists(torch.from_numpy(offsets), torch.tensor([node for row in seeds for node in row]))
    source, target = (torch.from_numpy(np.ascontiguousarray(column)) for column in ends.T)
    graph = ArcGraph(len(repository.entity_ids), source, target)
    return ActivationCase(name, graph, lists, queries.vectors, repository.fact_vectors)


def generated_activation(
    num_nodes: int, num_arcs: int, *, num_queries: int, num_seeds: int, skew: float, seed: int, width: int = 384
) -> ActivationCase:
    """Return power-law arcs, and queries each about one of a few topics, seeded on nodes of it.

    Node i is about topic i modulo `NUM_TOPICS`, an arc about both its ends' topics: of the arcs at an active node those that
    stay within the topic carry most, and activation dies down over a few hops.
    """
    source, target = power_law_edges(num_nodes, num_arcs, skew=skew, seed=seed)
    random = np.random.default_rng(seed + 1)

    def noise(rows: int) -> np.ndarray:
        return 0.4 * _unit(random.standard_normal((rows, width), np.float32))

    topics = _unit(random.standard_normal((NUM_TOPICS, width), np.float32))
    arcs = 0.5 * (topics[source % NUM_TOPICS] + topics[target % NUM_TOPICS]) + noise(num_arcs)
    of_query = np.arange(num_queries) % NUM_TOPICS
    queries = topics[of_query] + noise(num_queries)
    seeds = random.integers(0, max(1, num_nodes // NUM_TOPICS), (num_queries, num_seeds)) * NUM_TOPICS + of_query[:, None]
    lists = SeedLists(torch.arange(num_queries + 1) * num_seeds, torch.from_numpy(np.minimum(seeds, num_nodes - 1).ravel()))
    graph = ArcGraph(num_nodes, torch.from_numpy(source.astype(np.int32)), torch.from_numpy(target.astype(np.int32)))
    name = f"power law, {num_nodes} nodes, {num_arcs} arcs, skew {skew}, seed {seed}"
    return ActivationCase(name, graph, lists, _unit(queries), _unit(arcs))


def _unit(vectors: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def _embedding_of(index: Path) -> dict[str, object]:
    return {"embed": open_generation(index, verify=False).manifest["config"]["embed"]}


def _queries(questions: Sequence[Path], num_queries: int, encoder: EncoderConfig) -> Queries:
    texts = [text for path in questions for text in read_questions(path).column("question").to_pylist()]
    if not texts:
        raise InputError(f"{', '.join(map(str, questions)) or '--questions'}: there is no question")
    texts = [texts[number % len(texts)] for number in range(num_queries)]
    return Queries(texts, open_encoder(encoder).encode(texts).vectors)
