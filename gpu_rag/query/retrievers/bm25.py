"""BM25 over chunks."""

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat

from gpu_rag.query.repository import Repository
from gpu_rag.query.retrievers import Queries, Ranking, top_rows


class Bm25Config(BaseModel):
    """Constants of BM25, of the index over chunks and of the one over sentences."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    k1: NonNegativeFloat = 1.5
    b: float = Field(default=0.75, ge=0, le=1)


def rank_bm25(queries: Queries, depth: int, *, config: Bm25Config, repository: Repository) -> list[Ranking]:
    """Return the chunks that share a word with each query, by BM25; flag `no_known_words` where there is none."""
    index = repository.lexical_with(config.k1, config.b).chunks
    rankings = []
    for text in queries.texts:
        scores = index.scores([text])[0]
        known = bool((scores > 0).any())
        rankings.append(top_rows(scores, depth, positive=True, flags=() if known else ("no_known_words",)))
    return rankings
