"""Passage score mixed from embeddings and BM25, of whole chunks and of their best sentences.

H(p) = [mm(.5 cos(q, p) + .5 max_s cos(q, s)) + .15 mm(BM25(p)) + .15 mm(max_s BM25(s))] / 1.3, where mm is the min-max
over all chunks. The weights lie on a flat plateau on the development sets.
"""

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat

from gpu_rag.query.repository import Repository
from gpu_rag.query.retrievers import Queries, Ranking, min_max, top_rows
from gpu_rag.query.retrievers.bm25 import Bm25Config


class HybridConfig(BaseModel):
    """Shares of the mix.

    Attributes:
        sentence_share: Of the best sentence's cosine; the chunk's own has the rest.
        chunk_bm25: Weight of the chunk's BM25, against 1 for the cosines.
        sentence_bm25: Weight of the best sentence's BM25.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    sentence_share: float = Field(default=0.5, ge=0, le=1)
    chunk_bm25: NonNegativeFloat = 0.15
    sentence_bm25: NonNegativeFloat = 0.15


def rank_hybrid(
    queries: Queries, depth: int, *, config: HybridConfig, bm25: Bm25Config, repository: Repository
) -> list[Ranking]:
    """Return the chunks by H."""
    scores = hybrid_scores(queries, config=config, bm25=bm25, repository=repository)
    return [top_rows(row, depth) for row in scores]


def hybrid_scores(queries: Queries, *, config: HybridConfig, bm25: Bm25Config, repository: Repository) -> np.ndarray:
    """Return H of every chunk, float32 (B, C), in [0, 1]."""
    lexical = repository.lexical_with(bm25.k1, bm25.b)
    dense = repository.chunk_search.scores(queries.vectors)
    sentences = repository.sentence_search.scores(queries.vectors)
    share = np.float32(config.sentence_share)
    for row, text in enumerate(queries.texts):
        best_cosine = _best_sentences(sentences[row], dense[row], repository.sentence_indptr)
        total = min_max((1 - share) * dense[row] + share * best_cosine)
        chunk_bm25 = lexical.chunks.scores([text])[0]
        total += np.float32(config.chunk_bm25) * min_max(chunk_bm25)
        sentence_bm25 = lexical.sentences.scores([text])[0]
        best_bm25 = _best_sentences(sentence_bm25, np.zeros_like(chunk_bm25), repository.sentence_indptr)
        total += np.float32(config.sentence_bm25) * min_max(best_bm25)
        dense[row] = total / np.float32(1 + config.chunk_bm25 + config.sentence_bm25)
    return dense


def _best_sentences(scores: np.ndarray, without: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """Return the largest score among each chunk's sentences; a chunk without any has its value of `without`."""
    best = without.copy()
    filled = np.flatnonzero(indptr[1:] > indptr[:-1])
    if len(filled):
        best[filled] = np.maximum.reduceat(scores, indptr[filled])
    return best
