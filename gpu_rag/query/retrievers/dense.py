"""Dense retrieval: exact inner product of query and chunk embeddings."""

from gpu_rag.query.repository import Repository
from gpu_rag.query.retrievers import Queries, Ranking


def rank_dense(queries: Queries, depth: int, *, repository: Repository) -> list[Ranking]:
    """Return the chunks by cosine.

    Raises:
        EngineError: If a vector is not finite.
    """
    return [Ranking(rows, scores) for rows, scores in repository.chunk_search.search(queries.vectors, depth)]
