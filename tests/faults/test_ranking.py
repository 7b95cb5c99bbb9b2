"""Rankings: no fake ids, no shifted ones, none that is the same for every question, none out of step with its question."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gpu_rag.errors import EngineError

PLACES = ["Harl", "Orme", "Pell", "Sall", "Verrin", "Dorn", "Lund", "Morvane", "Askel", "Brone", "Cray", "Dunmor", "Elst", "Farne",
          "Gelt", "Hoss", "Ister", "Jarrow", "Kell", "Loth"]  # fmt: skip
TRADES = ["glass", "salt", "copper", "wool", "honey"]
ASKS = [
    "Who founded {}?",
    "When was {} founded?",
    "What is made in {}?",
    "Which river runs through {}?",
    "How many people live in {}?",
]
CORPUS = [
    {"doc_id": f"d{n:02d}", "title": place,
     "text": f"{place} was founded by Anna {place}son in {1500 + n}. It makes {TRADES[n % 5]}. The river {place}a runs through it. "
             f"About {1000 + n} people live there."}
    for n, place in enumerate(PLACES)
]  # fmt: skip
HUNDRED = [
    {"id": f"{n:02d}-{k}", "question": ask.format(place), "supporting_doc_ids": [f"d{n:02d}"]}
    for n, place in enumerate(PLACES)
    for k, ask in enumerate(ASKS)
]
DEEP = ("retrieve.depth=5000", "retrieve.list_depth=5000", "merge.depth=5000")


@pytest.fixture(scope="module")
def towns(new_job: Callable[[], Any]) -> Any:
    """A job with runs over a hundred questions by every system that ranks in its own way."""
    job = new_job()
    job.index(CORPUS)
    for system, k in (("embedded", 3), ("dense", 1), ("bm25", 1)):
        job.answer(HUNDRED, *DEEP, f"select.k={k}", system=system, run=system)
    return job


def rows(job: Any, run: str, table: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(job.folder / run / f"{table}.parquet").to_pylist():
        found.setdefault(row["id"], []).append(row)
    return found


@pytest.mark.parametrize("system", ["embedded", "dense", "bm25"])
def test_a_depth_beyond_the_corpus_gives_each_document_at_most_once_and_no_other(towns: Any, system: str) -> None:
    known = {row["doc_id"] for row in CORPUS}
    for ranking in rows(towns, system, "rankings").values():
        found = [row["doc_id"] for row in ranking]
        assert len(found) == len(set(found)) <= len(CORPUS)
        assert set(found) <= known
        assert [row["rank"] for row in ranking] == list(range(1, len(ranking) + 1))
        assert np.isfinite([row["score"] for row in ranking]).all()
        assert system == "bm25" or set(found) == known


@pytest.mark.parametrize("system", ["embedded", "dense", "bm25"])
def test_different_questions_have_different_first_documents(towns: Any, system: str) -> None:
    first = {question: found[0] for question, found in towns.ranked(system).items()}
    assert len(set(first.values())) >= 15
    assert sum(first[row["id"]] == row["supporting_doc_ids"][0] for row in HUNDRED) >= 90


@pytest.mark.parametrize("system", ["embedded", "dense"])
def test_rankings_of_unrelated_questions_are_not_alike(towns: Any, system: str) -> None:
    names = sorted(row["doc_id"] for row in CORPUS)
    orders = {question: [found.index(name) for name in names] for question, found in towns.ranked(system).items()}
    chosen = [orders[f"{n:02d}-0"] for n in range(len(PLACES))]
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in itertools.combinations(chosen, 2)]
    assert np.mean(correlations) < 0.8
    assert max(correlations) < 0.99


def test_a_question_alone_in_its_shard_is_answered_as_among_a_hundred(towns: Any) -> None:
    few = [HUNDRED[n] for n in (57, 3, 99)]
    towns.answer(few, *DEEP, "select.k=3", "run.shard_rows=1", run="few")
    for table in ("answers", "rankings", "lineages"):
        alone, among = rows(towns, "few", table), rows(towns, "embedded", table)
        assert alone == {row["id"]: among[row["id"]] for row in few}


def test_a_question_file_in_another_order_goes_on_with_the_same_run(towns: Any) -> None:
    before = {path.name: path.read_bytes() for path in (towns.folder / "bm25").glob("*.parquet")}
    towns.answer(HUNDRED[::-1], *DEEP, "select.k=1", "run.shard_rows=7", system="bm25", run="bm25")
    assert towns.recomputed() == {}
    assert {path.name: path.read_bytes() for path in (towns.folder / "bm25").glob("*.parquet")} == before


def test_every_stage_hands_on_every_question(towns: Any) -> None:
    from gpu_rag.store import read_json

    for stage in read_json(towns.folder / "embedded" / "report.json")["stages"]:
        assert stage["rows"] == len(HUNDRED) == sum(stage["states"].values())
    for table in ("answers", "lineages"):
        assert set(rows(towns, "embedded", table)) == {row["id"] for row in HUNDRED}


def test_documents_that_share_the_one_word_of_a_question_all_score(job: Any) -> None:
    job.index(
        [{"doc_id": f"d{n}", "text": text} for n, text in enumerate(("Copper", "Copper kettle", "Copper, salt", "!", "Wool"))]
    )
    job.answer([{"id": "q", "question": "copper?"}, {"id": "none", "question": "zinc"}, {"id": "no word", "question": "?!"}],
               "select.k=50", system="bm25")  # fmt: skip
    found = rows(job, "run", "rankings")
    assert {row["doc_id"] for row in found["q"]} == {"d0", "d1", "d2"}
    assert min(row["score"] for row in found["q"]) > 0
    assert set(found) == {"q"}
    answers = job.answers()
    assert [(answers[i]["state"], answers[i]["reason"]) for i in ("none", "no word")] == [("ok", "no_evidence")] * 2


def test_an_index_of_nothing_refuses_one_question_and_sixty_four(job: Any) -> None:
    job.index([])
    for num in (1, 64):
        asked = [{"id": str(n), "question": f"Who built house {n}?"} for n in range(num)]
        result = job.answer(asked, system="dense", run=str(num))
        assert [row["reason"] for row in result.answers.to_pylist()] == ["no_evidence"] * num
        assert result.rankings.num_rows == 0
        assert result.num_unfinished() == 0


def test_a_model_that_gives_no_numbers_ends_the_run_and_publishes_nothing(job: Any, tiny_model: Callable[..., Path]) -> None:
    before = job.index(CORPUS[:2], f"embed.encoder.model={tiny_model(3)}").generation.content_hash
    for _ in range(2):  # tried again, not taken for done
        with pytest.raises(EngineError, match=r"05_embed: all .* rows failed, .*not finite"):
            job.index(CORPUS[:2], f"embed.encoder.model={tiny_model(4, 'nan')}", "embed.kinds=[chunk]")
    assert job.hash() == before
