import numpy as np
import pytest

from gpu_rag.engines.vector_index import QUERY_TILE, VectorIndex
from gpu_rag.errors import EngineError


def unit(rng: np.random.Generator, count: int, dim: int = 384) -> np.ndarray:
    vectors = rng.normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("num_queries", [1, 64])
def test_empty_index_gives_empty_hits(num_queries):
    index = VectorIndex(np.empty((0, 8), np.float32))
    hits = index.search(np.ones((num_queries, 8), np.float32), 5)
    assert [len(rows) for rows, _ in hits] == [0] * num_queries
    assert index.scores(np.ones((num_queries, 8), np.float32)).shape == (num_queries, 0)


@pytest.mark.parametrize("num_queries", [0, 1, 19, 33])
def test_k_above_the_corpus_gives_all_rows_once_and_no_other(num_queries):
    rng = np.random.default_rng(0)
    hits = VectorIndex(unit(rng, 7)).search(unit(rng, num_queries), 5000)
    assert len(hits) == num_queries
    assert all(sorted(rows) == list(range(7)) for rows, _ in hits)


def test_search_agrees_with_plain_products():
    rng = np.random.default_rng(1)
    vectors, queries = unit(rng, 500), unit(rng, 70)
    plain = queries @ vectors.T
    index = VectorIndex(vectors)
    np.testing.assert_allclose(index.scores(queries), plain, atol=1e-6)
    for (rows, scores), row in zip(index.search(queries, 10), plain, strict=True):
        np.testing.assert_allclose(scores, np.sort(row)[::-1][:10], atol=1e-6)
        np.testing.assert_allclose(row[rows], scores, atol=1e-6)


def test_query_has_the_same_bits_alone_and_at_any_place_of_any_batch():
    rng = np.random.default_rng(2)
    vectors, queries = unit(rng, 1001), unit(rng, 100)
    index = VectorIndex(vectors)
    scores, hits = index.scores(queries), index.search(queries, 20)
    order = rng.permutation(len(queries))
    moved = index.scores(queries[order])
    for place, query in enumerate(order):
        assert np.array_equal(moved[place], scores[query])
    for query in range(len(queries)):
        assert np.array_equal(index.scores(queries[query : query + 1])[0], scores[query])
        rows, values = index.search(queries[query : query + 1], 20)[0]
        assert np.array_equal(rows, hits[query][0])
        assert np.array_equal(values, hits[query][1])
    assert len({int(rows[0]) for rows, _ in hits}) > 50


@pytest.mark.parametrize("num_equal", [3, 30, 300])
def test_equal_vectors_are_ordered_by_row_even_where_k_cuts_them(num_equal):
    rng = np.random.default_rng(3)
    vectors = unit(rng, 400)
    vectors[50 : 50 + num_equal] = vectors[50]
    rows, _ = VectorIndex(vectors).search(vectors[50:51], 2)[0]
    assert list(rows) == [50, 51]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused_by_number(bad):
    vectors = unit(np.random.default_rng(4), QUERY_TILE + 2)
    index = VectorIndex(vectors)
    broken = vectors.copy()
    broken[QUERY_TILE, 3] = bad
    with pytest.raises(EngineError, match=f"query {QUERY_TILE} is not finite"):
        index.scores(broken)
    with pytest.raises(EngineError, match=f"query {QUERY_TILE} is not finite"):
        index.search(broken, 3)
    with pytest.raises(EngineError, match=f"indexed vector {QUERY_TILE} is not finite"):
        VectorIndex(broken)
