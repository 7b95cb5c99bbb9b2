"""Metrics of a whole run: hand-computed values, joins by id, states, and what is undefined."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpu_rag import schemas
from gpu_rag.errors import InputError
from gpu_rag.evaluation.definitions import DEFINITIONS
from gpu_rag.evaluation.metrics import evaluate_run, per_question

Build = Callable[..., Any]
Tables = tuple[pa.Table, pa.Table, pa.Table]


@pytest.fixture
def small_run(question_row: Build, answer_row: Build, ranking_table: Build) -> Tables:
    """Three answers right and wrong, a false refusal, a failure, a right refusal, a false answer, one without label."""
    questions = [
        question_row("q1", answers=["63 days", "63"], supporting_doc_ids=["d1", "d2"]),
        question_row("q2", answers=["Stanley Hall"], supporting_doc_ids=["d3"]),
        question_row("q3", answers=["blue"], supporting_doc_ids=["d4", "d5", "d6", "d7"]),
        question_row("q4", answers=["red"], supporting_doc_ids=["d8"]),
        question_row("q5", answers=["green"]),
        question_row("q6", answerable=False),
        question_row("q7", answerable=False),
        question_row("q8", answerable=None, answers=["never compared"]),
    ]
    answers = [
        answer_row("q1", "63"),
        answer_row("q2", "G. Stanley Hall"),
        answer_row("q3", "red"),
        answer_row("q4", reason="below_threshold"),
        answer_row("q5", state="error", reason="engine died"),
        answer_row("q6", reason="no_evidence"),
        answer_row("q7", "something"),
        answer_row("q8", "something"),
    ]
    rankings = ranking_table(
        {"q1": ["d2", "d2", "x", "d1"], "q2": ["x", "y", "d3"], "q3": ["d4", "d5", "d6", "d7"], "q6": ["d1"]}
    )
    return schemas.QUESTIONS.from_rows(questions), schemas.ANSWERS.from_rows(answers), rankings


GOLDEN = {
    "recall@1": (0.5 + 0 + 0.25 + 0) / 4,
    "recall@2": (0.5 + 0 + 0.5 + 0) / 4,
    "recall@5": (1 + 1 + 1 + 0) / 4,
    "recall@10": 0.75,
    "recall@20": 0.75,
    "max_recall@1": (0.5 + 1 + 0.25 + 1) / 4,
    "max_recall@2": (1 + 1 + 0.5 + 1) / 4,
    "max_recall@5": 1.0,
    "max_recall@10": 1.0,
    "max_recall@20": 1.0,
    "num_with_supports": 4,
    "num_repeated_documents": 1,
    "exact_match": 1 / 5,
    "f1": (1 + 0.8 + 0 + 0 + 0) / 5,
    "strict": 1 / 5,
    "lenient": 2 / 5,
    "unicode_f1": 1.8 / 5,
    "num_with_gold": 5,
    "bbs": 2 * 0.4 * 0.5 / 0.9,
    "correct_refusal": 1 / 2,
    "false_answer": 1 / 2,
    "false_refusal": 1 / 5,
    "answered": 5 / 8,
    "refused": 2 / 8,
    "num_questions": 8,
    "num_answered": 5,
    "num_refused": 2,
    "num_answerable": 5,
    "num_unanswerable": 2,
    "num_unlabelled": 1,
    "answers_cited": 0.0,
    "num_citations": 0,
    **{f"rows_{state}": {"ok": 7, "error": 1}.get(state, 0) for state in schemas.STATES},
}


def test_every_metric_equals_its_hand_computed_value(small_run: Tables) -> None:
    assert evaluate_run(*small_run) == pytest.approx(GOLDEN, abs=1e-12)


def test_every_metric_has_a_definition_and_survives_json(small_run: Tables) -> None:
    metrics = evaluate_run(*small_run)
    assert set(metrics) <= set(DEFINITIONS)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_rows_are_classified_one_by_one(small_run: Tables) -> None:
    rows = per_question(*small_run)
    assert [row["class"] for row in rows] == [
        "correct", "correct", "wrong", "false_refusal", "error", "correct_refusal", "false_answer", "answered",
    ]  # fmt: skip
    assert rows[4]["f1"] == 0.0
    assert rows[5]["f1"] is None and rows[7]["lenient"] is None
    assert pa.Table.from_pylist(rows).num_rows == 8


def test_joins_are_by_id_whatever_the_order_of_the_rows(small_run: Tables) -> None:
    shuffled = [
        table.take(pc.sort_indices(pa.array([hash_ * 7 % 11 for hash_ in range(table.num_rows)]))) for table in small_run
    ]
    assert shuffled[1].column("id").to_pylist() != small_run[1].column("id").to_pylist()
    assert evaluate_run(*shuffled) == evaluate_run(*small_run)
    assert per_question(*shuffled) == per_question(*small_run)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (0, r"answers has 2 id\(s\) that are not in the questions: 'q1', 'q2'"),
        (1, r"no row for 2 question\(s\): 'q1', 'q2'"),
    ],
)
def test_questions_and_answers_that_do_not_match_are_refused_naming_ids(small_run: Tables, table: int, message: str) -> None:
    tables = list(small_run)
    tables[table] = tables[table].slice(2)
    with pytest.raises(InputError, match=message):
        evaluate_run(*tables)


def test_a_ranking_of_an_unknown_question_is_refused_naming_it(small_run: Tables, ranking_table: Build) -> None:
    with pytest.raises(InputError, match=r"rankings.*'other'"):
        evaluate_run(small_run[0], small_run[1], ranking_table({"other": ["d1"]}))


def test_a_question_given_twice_is_refused(small_run: Tables) -> None:
    twice = pa.concat_tables([small_run[0], small_run[0].slice(0, 1)])
    with pytest.raises(InputError, match=r"questions: key repeats.*q1"):
        evaluate_run(twice, *small_run[1:])


@pytest.mark.parametrize("blank", ["", "  ", "\u200b"])
def test_a_blank_gold_answer_is_refused_naming_the_question(
    question_row: Build, answer_row: Build, ranking_table: Build, blank: str
) -> None:
    questions = schemas.QUESTIONS.from_rows([question_row("q1", answers=["x", blank])])
    with pytest.raises(InputError, match=r"'q1'.*blank gold answer"):
        evaluate_run(questions, schemas.ANSWERS.from_rows([answer_row("q1", "x")]), ranking_table({}))


def test_an_unknown_state_is_refused_so_that_the_counts_add_up(
    question_row: Build, answer_row: Build, ranking_table: Build
) -> None:
    questions = schemas.QUESTIONS.from_rows([question_row("q1")])
    with pytest.raises(InputError, match=r"'q1'.*'lost'"):
        evaluate_run(questions, schemas.ANSWERS.from_rows([answer_row("q1", state="lost")]), ranking_table({}))


def test_a_failure_on_an_unanswerable_question_is_no_correct_refusal(
    question_row: Build, answer_row: Build, ranking_table: Build
) -> None:
    questions = schemas.QUESTIONS.from_rows([question_row(id_, answerable=False) for id_ in ("q1", "q2")])
    answers = schemas.ANSWERS.from_rows([answer_row("q1"), answer_row("q2", state="declined", reason="filter")])
    metrics = evaluate_run(questions, answers, ranking_table({}))
    assert (metrics["correct_refusal"], metrics["false_answer"], metrics["refused"]) == (0.5, 0.0, 0.5)
    assert metrics["rows_declined"] == 1


def test_metrics_without_anything_to_average_over_are_none(
    question_row: Build, answer_row: Build, ranking_table: Build
) -> None:
    questions = schemas.QUESTIONS.from_rows([question_row("q1"), question_row("q2")])
    answers = schemas.ANSWERS.from_rows([answer_row("q1", "x"), answer_row("q2")])
    metrics = evaluate_run(questions, answers, ranking_table({}))
    names = ("recall@5", "exact_match", "f1", "lenient", "bbs", "correct_refusal", "false_answer")
    assert [metrics[name] for name in names] == [None] * len(names)
    assert (metrics["false_refusal"], metrics["answered"], metrics["num_with_gold"]) == (0.5, 0.5, 0)


def test_no_question_at_all_gives_counts_of_zero() -> None:
    tables = (schemas.QUESTIONS.empty(), schemas.ANSWERS.empty(), schemas.RANKINGS.empty(), schemas.LINEAGES.empty())
    metrics = evaluate_run(*tables)
    assert metrics["num_questions"] == 0 and metrics["answered"] is None and metrics["demands_completed"] is None


def test_the_short_answer_is_scored_not_the_explanation(question_row: Build, answer_row: Build, ranking_table: Build) -> None:
    questions = schemas.QUESTIONS.from_rows([question_row("q1", answers=["Paris"])])
    answers = [answer_row("q1", "Paris", explanation="It was Paris, where she was born in 1867. [1]")]
    metrics = evaluate_run(questions, schemas.ANSWERS.from_rows(answers), ranking_table({}))
    assert metrics["exact_match"] == metrics["f1"] == metrics["strict"] == 1.0


def test_skipped_questions_count_as_wrong_and_as_neither_outcome(
    question_row: Build, answer_row: Build, ranking_table: Build
) -> None:
    rows = [question_row("q1", question="", answers=["x"], state="skipped", reason="empty question")]
    answers = [answer_row("q1", state="skipped", reason="empty question")]
    metrics = evaluate_run(schemas.QUESTIONS.from_rows(rows), schemas.ANSWERS.from_rows(answers), ranking_table({}))
    assert (metrics["exact_match"], metrics["answered"], metrics["refused"], metrics["rows_skipped"]) == (
        0.0,
        0.0,
        0.0,
        1,
    )
