"""Demand completion and verbatim citations."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.evaluation.metrics import evaluate_run

Build = Callable[..., Any]
Tables = tuple[pa.Table, pa.Table, pa.Table]


def _lineage(id_: str, demands: list[str], annotated: list[str]) -> dict[str, Any]:
    return {
        "id": id_,
        "demands": [{"demand_id": d, "description": d, "query": d, "inputs": [], "outputs": []} for d in demands],
        "pool": [],
        "selection": [],
        "annotations": [
            {"demand_id": d, "chunk_id": "c", "doc_id": "d", "start": 0, "end": 1, "quote": "x", "type": "t",
             "consumes": [], "produces": [], "score": 1.0}
            for d in annotated
        ],
        "sufficiency": None,
    }  # fmt: skip


@pytest.fixture
def three(question_row: Build, answer_row: Build, ranking_table: Build) -> Tables:
    ids = ("q1", "q2", "q3")
    return (
        schemas.QUESTIONS.from_rows([question_row(id_) for id_ in ids]),
        schemas.ANSWERS.from_rows([answer_row(id_, "x") for id_ in ids]),
        ranking_table({}),
    )


def test_completion_is_micro_over_demands_and_macro_over_questions(three: Tables) -> None:
    lineages = schemas.LINEAGES.from_rows(
        [
            _lineage("q1", ["a", "b"], ["b", "a", "a"]),
            _lineage("q2", ["a", "b", "c"], ["c"]),
            _lineage("q3", ["a"], []),
        ]
    )
    metrics = evaluate_run(*three, lineages=lineages)
    assert metrics["demands_completed"] == 3 / 6
    assert metrics["questions_all_completed"] == 1 / 3
    assert metrics["questions_any_completed"] == 2 / 3
    assert metrics["num_demands"] == 6


def test_questions_without_a_lineage_or_demand_are_not_averaged_over(three: Tables) -> None:
    metrics = evaluate_run(*three, lineages=schemas.LINEAGES.from_rows([_lineage("q2", ["a"], ["a"]), _lineage("q3", [], [])]))
    assert metrics["questions_all_completed"] == 1.0


def test_citations_are_verbatim_only_at_their_offsets(three: Tables, answer_row: Build) -> None:
    good = {"doc_id": "d", "start": 4, "end": 9, "quote": "quick"}
    bad = [good | {"start": 3}, good | {"quote": "Quick"}, good | {"doc_id": "gone"}, good | {"end": 4, "quote": ""}]
    answers = [answer_row("q1", "x", citations=[good, *bad]), answer_row("q2", "x"), answer_row("q3")]
    table = schemas.ANSWERS.from_rows(answers)
    metrics = evaluate_run(three[0], table, three[2], source_text={"d": "the quick fox"}.get)
    assert metrics["citations_verbatim"] == 1 / 5
    assert (metrics["num_citations"], metrics["answers_cited"]) == (5, 0.5)
