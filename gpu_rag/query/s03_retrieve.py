"""Query stage 03, retrieve: for each demand one ranked list of chunks.

Input:  `question` and `demands`; a demand's `query` is the text that is retrieved with.
Output: `schemas.LISTS`, 1:1; one list per demand, to depth h, each hit with what each retriever gave it.
Device: CPU, or the device of encoder and graph.
Source: LineageRAG, "Demand-Conditioned Lineage Expansion"; one list L_j a demand, so fusion comes before the merge.

All demands of all questions of a shard are one batch, equal query texts are computed once, and the batch is cut into
tiles that fit the memory. A demand's result does not depend on any of this. A list's flags say what was out of the
ordinary; a walk that cannot start gives the dense ranking and says so. A list is empty only for an empty index
(`empty_index`), or for BM25 alone and a query without a word of the corpus (`no_known_words`).
"""

from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder
from gpu_rag.engines.vector_index import QUERY_TILE
from gpu_rag.query.frame import Failed, query_stage, result_table
from gpu_rag.query.repository import Repository
from gpu_rag.query.retrievers import Queries, Ranking
from gpu_rag.query.retrievers.bm25 import Bm25Config, rank_bm25
from gpu_rag.query.retrievers.dense import rank_dense
from gpu_rag.query.retrievers.hybrid import HybridConfig, rank_hybrid
from gpu_rag.query.retrievers.ppr import PprConfig, rank_ppr
from gpu_rag.spans import is_blank

RetrieverName = Literal["bm25", "dense", "hybrid", "ppr"]


class RetrieveConfig(BaseModel):
    """Which retrievers rank, and how their lists become one.

    Attributes:
        retrievers: One gives its own list; several are fused by reciprocal ranks, sum of 1 / (rrf_k + rank).
        depth: Hits per demand, h.
        list_depth: Hits of each retriever that enter the fusion.
        rrf_k: Constant of the fusion.
        bm25: Constants of BM25, wherever it is used.
        hybrid: Mix of embeddings and BM25.
        ppr: Graph, seeds and walk.
        tile_bytes: Memory for the scores of the queries that are computed together; changes no result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    retrievers: tuple[RetrieverName, ...] = Field(default=("dense",), min_length=1)
    depth: PositiveInt = 50
    list_depth: PositiveInt = 100
    rrf_k: PositiveInt = 60
    bm25: Bm25Config = Bm25Config()
    hybrid: HybridConfig = HybridConfig()
    ppr: PprConfig = PprConfig()
    tile_bytes: PositiveInt = 1 << 29


def retrieve(work: pa.Table, *, config: RetrieveConfig, repository: Repository, encoder: Encoder) -> pa.Table:
    """Return the ranked lists of each question's demands.

    Raises:
        EngineError: If the encoder or an index meets a vector that is not finite.
    """
    demands = work.column("demands").to_pylist()
    failures = {row: problem for row, items in enumerate(demands) if (problem := _problem(items))}
    asked = [demand["query"] for row, items in enumerate(demands) if row not in failures for demand in items]
    texts = sorted(set(asked))
    lists = dict(zip(texts, _hits(texts, config, repository, encoder), strict=True))
    values = [
        Failed("error", failures[row])
        if row in failures
        else [{"demand_id": demand["demand_id"], **lists[demand["query"]]} for demand in items]
        for row, items in enumerate(demands)
    ]
    return result_table(work, schemas.LISTS.schema.field("lists"), values)


def _problem(demands: list[dict[str, Any]]) -> str:
    """Return why a question cannot be retrieved for, "" if it can."""
    if not demands:
        return "no demand"
    blank = [demand["demand_id"] for demand in demands if is_blank(demand["query"])]
    return f"demand {blank[0]} has an empty query" if blank else ""


def _hits(texts: list[str], config: RetrieveConfig, repository: Repository, encoder: Encoder) -> Iterator[dict[str, Any]]:
    """Yield `flags` and `hits` of each text."""
    tile = _tile_size(config.tile_bytes, repository)
    for first in range(0, len(texts), tile):
        part = texts[first : first + tile]
        if not repository.chunk_ids:
            yield from ({"flags": ["empty_index"], "hits": []} for _ in part)
            continue
        encoded = encoder.encode(part, kind="query")
        queries = Queries(part, encoded.vectors)
        depth = config.depth if len(config.retrievers) == 1 else config.list_depth
        rankings = [_rank(name, queries, depth, config, repository) for name in config.retrievers]
        for cut, *of_query in zip((encoded.cut_tokens > 0).tolist(), *rankings, strict=True):
            fused = _fused(dict(zip(config.retrievers, of_query, strict=True)), config, repository)
            fused["flags"] += ["query_cut"] * cut  # the encoder did not see all of it
            yield fused


def _rank(name: RetrieverName, queries: Queries, depth: int, config: RetrieveConfig, repository: Repository) -> list[Ranking]:
    if name == "bm25":
        return rank_bm25(queries, depth, config=config.bm25, repository=repository)
    if name == "dense":
        return rank_dense(queries, depth, repository=repository)
    if name == "hybrid":
        return rank_hybrid(queries, depth, config=config.hybrid, bm25=config.bm25, repository=repository)
    return rank_ppr(queries, depth, config=config.ppr, hybrid=config.hybrid, bm25=config.bm25, repository=repository)


def _fused(rankings: dict[str, Ranking], config: RetrieveConfig, repository: Repository) -> dict[str, Any]:
    """Return one query's flags and hits: the one ranking as it is, or several by the sum of reciprocal ranks."""
    sources: dict[int, list[dict[str, Any]]] = {}
    for name, ranking in rankings.items():
        for rank, (row, score) in enumerate(zip(ranking.rows.tolist(), ranking.scores.tolist(), strict=True), start=1):
            sources.setdefault(row, []).append({"name": name, "rank": rank, "score": score})
    if len(rankings) == 1:
        fused = {row: of_row[0]["score"] for row, of_row in sources.items()}
    else:
        fused = {row: sum(1 / (config.rrf_k + item["rank"]) for item in of_row) for row, of_row in sources.items()}
    ranked = sorted(fused, key=lambda row: (-fused[row], row))[: config.depth]
    hits = [
        {"chunk_id": repository.chunk_ids[row], "rank": rank, "score": fused[row], "retrievers": sources[row]}
        for rank, row in enumerate(ranked, start=1)
    ]
    return {"flags": [flag for ranking in rankings.values() for flag in ranking.flags], "hits": hits}


def _tile_size(tile_bytes: int, repository: Repository) -> int:
    """Return how many queries are computed together; whole product tiles where more than one fits.

    A query holds float32 scores of all chunks (cosine and H), sentences and facts, and its reset over all nodes twice.
    """
    num_chunks, num_entities = len(repository.chunk_ids), len(repository.entity_ids)
    width = 4 * num_chunks + len(repository.sentence_texts) + len(repository.fact_ids) + 2 * num_entities
    queries = max(1, tile_bytes // (4 * max(width, 1)))
    return queries // QUERY_TILE * QUERY_TILE or queries


STAGE = query_stage(
    number=3,
    name="retrieve",
    version=1,
    reads=("question", "demands"),
    after=schemas.DEMANDS,
    writes=schemas.LISTS,
    run=retrieve,
    engines=("repository", "encoder"),
)
