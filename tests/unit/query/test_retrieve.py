import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoded
from gpu_rag.errors import EngineError
from gpu_rag.query.s03_retrieve import STAGE, RetrieveConfig, retrieve

WORDS = [
    "tiber",
    "rome",
    "nero",
    "lyre",
    "fire",
    "senate",
    "legion",
    "gaul",
    "road",
    "wall",
    "coin",
    "bath",
    "forum",
    "temple",
    "gate",
    "hill",
]


@pytest.fixture(scope="module")
def repository(make_repository):
    rng = np.random.default_rng(0)
    documents = {
        f"d{n:02d}": (f"Title {n}", ". ".join(" ".join(rng.choice(WORDS, 5)) for _ in range(3)) + ".") for n in range(40)
    }
    triples = [(f"d{n:02d}", WORDS[n % 16], "meets", WORDS[(3 * n + 1) % 16], "accept") for n in range(40)]
    return make_repository(documents, triples, WORDS[:6], [("rome", "nero", 0.85)])


def demand(number: int, query: str) -> dict:
    return {"demand_id": f"D{number}", "description": query, "query": query, "inputs": [], "outputs": []}


def work(questions: list[list[dict]]) -> pa.Table:
    return pa.table(
        {
            "work_key": [f"k{row}" for row in range(len(questions))],
            "question": ["?"] * len(questions),
            "demands": pa.array(questions, schemas.DEMANDS.schema.field("demands").type),
        }
    )


CONFIGS = {
    "bm25": {"retrievers": ["bm25"]},
    "dense": {"retrievers": ["dense"]},
    "hybrid": {"retrievers": ["hybrid"]},
    "rrf": {"retrievers": ["bm25", "dense"], "list_depth": 10},
    "hipporag2": {"retrievers": ["ppr"]},
    "embedded": {
        "retrievers": ["ppr"],
        "ppr": {
            "view": {"graph": "governed", "weights": {"passage_name": 3.0}},
            "name_weight": 0.3, "passage_scores": "hybrid", "passage_weight": 0.2, "passage_power": 8,
            "walk_without_entities": True,
        },
    },
}  # fmt: skip


@pytest.fixture(params=CONFIGS)
def config(request) -> RetrieveConfig:
    return RetrieveConfig.model_validate(CONFIGS[request.param] | {"depth": 7})


def test_hits_are_ranked_by_score_then_id_and_name_their_retrievers(repository, encoder, config):
    result = retrieve(work([[demand(1, "nero fire rome")]]), config=config, repository=repository, encoder=encoder)
    assert result.schema.names == STAGE.result_schema.names
    assert result.column("state").to_pylist() == ["ok"]
    (entry,) = result.column("lists").to_pylist()[0]
    hits = entry["hits"]
    assert len(hits) == 7
    assert [hit["rank"] for hit in hits] == list(range(1, 8))
    assert [(-hit["score"], hit["chunk_id"]) for hit in hits] == sorted((-hit["score"], hit["chunk_id"]) for hit in hits)
    assert len({hit["chunk_id"] for hit in hits}) == 7
    assert {item["name"] for hit in hits for item in hit["retrievers"]} == set(config.retrievers)


def test_result_of_a_query_does_not_depend_on_its_batch(repository, encoder, config):
    rng = np.random.default_rng(5)
    questions = [[demand(1, " ".join(rng.choice(WORDS, 4)))] for _ in range(100)]
    together = retrieve(work(questions), config=config, repository=repository, encoder=encoder)
    lists = together.column("lists").to_pylist()
    for row in range(0, 100, 7):
        alone = retrieve(work(questions[row : row + 1]), config=config, repository=repository, encoder=encoder)
        assert alone.column("lists").to_pylist()[0] == lists[row]
    tiny = config.model_copy(update={"tile_bytes": 1})
    assert retrieve(work(questions), config=tiny, repository=repository, encoder=encoder).equals(together)
    assert len({entry[0]["hits"][0]["chunk_id"] for entry in lists}) > 10


def test_depth_above_the_corpus_gives_each_chunk_at_most_once(repository, encoder, config):
    deep = config.model_copy(update={"depth": 5000, "list_depth": 5000})
    result = retrieve(work([[demand(1, "nero rome")]]), config=deep, repository=repository, encoder=encoder)
    ids = [hit["chunk_id"] for hit in result.column("lists").to_pylist()[0][0]["hits"]]
    assert len(ids) == len(set(ids)) <= 40
    assert set(ids) <= set(repository.chunk_ids)


def test_equal_queries_are_encoded_once_and_every_demand_keeps_its_list(repository, encoder):
    asked = []

    class Counting:
        def encode(self, texts, *, kind="passage"):
            asked.extend(texts)
            return encoder.encode(texts)

    questions = [[demand(1, "nero"), demand(2, "rome")], [demand(1, "rome"), demand(2, "rome")]]
    result = retrieve(work(questions), config=RetrieveConfig(), repository=repository, encoder=Counting())
    assert sorted(asked) == ["nero", "rome"]
    first, second = result.column("lists").to_pylist()
    assert [entry["demand_id"] for entry in first] == ["D1", "D2"]
    assert first[1]["hits"] == second[0]["hits"] == second[1]["hits"] != first[0]["hits"]


def test_question_without_a_query_is_an_error_row_and_the_others_are_served(repository, encoder, config):
    questions = [[demand(1, "nero")], [demand(1, " \u200b")], [], [demand(1, "rome"), demand(2, "")]]
    result = retrieve(work(questions), config=config, repository=repository, encoder=encoder)
    assert result.column("state").to_pylist() == ["ok", "error", "error", "error"]
    assert result.column("reason").to_pylist()[1:] == [
        "demand D1 has an empty query", "no demand", "demand D2 has an empty query",
    ]  # fmt: skip
    assert result.column("lists").to_pylist()[1:] == [None, None, None]


def test_query_vector_that_is_not_finite_raises_instead_of_ranking(repository, encoder):
    class Broken:
        def encode(self, texts, *, kind="passage"):
            return Encoded(np.full((len(texts), encoder.dim), np.nan, np.float32), None, None)

    for name in ("dense", "hybrid", "hipporag2"):
        config = RetrieveConfig.model_validate(CONFIGS[name])
        with pytest.raises(EngineError, match="not finite"):
            retrieve(work([[demand(1, "nero")]]), config=config, repository=repository, encoder=Broken())


def test_empty_index_gives_flagged_empty_lists(make_repository, encoder, config):
    result = retrieve(work([[demand(1, "nero")]]), config=config, repository=make_repository({}), encoder=encoder)
    assert result.column("state").to_pylist() == ["ok"]
    assert result.column("lists").to_pylist()[0] == [{"demand_id": "D1", "flags": ["empty_index"], "hits": []}]


def test_query_without_known_words_is_flagged(repository, encoder):
    config = RetrieveConfig(retrievers=("bm25",))
    result = retrieve(work([[demand(1, "zzzz")]]), config=config, repository=repository, encoder=encoder)
    assert result.column("lists").to_pylist()[0] == [{"demand_id": "D1", "flags": ["no_known_words"], "hits": []}]


def test_reciprocal_ranks_are_summed(repository, encoder):
    config = RetrieveConfig.model_validate(CONFIGS["rrf"])
    result = retrieve(work([[demand(1, "nero fire")]]), config=config, repository=repository, encoder=encoder)
    for hit in result.column("lists").to_pylist()[0][0]["hits"]:
        assert hit["score"] == pytest.approx(sum(1 / (60 + item["rank"]) for item in hit["retrievers"]), abs=1e-6)
        assert all(item["rank"] <= 10 for item in hit["retrievers"])


@pytest.mark.parametrize("config", [{"retrievers": []}, {"retrievers": ["nope"]}, {"depht": 3}, {"ppr": {"damping": 1.0}}])
def test_wrong_config_is_refused(config):
    with pytest.raises(ValidationError):
        RetrieveConfig.model_validate(config)
