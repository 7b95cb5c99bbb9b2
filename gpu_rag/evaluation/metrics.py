"""Metrics of a whole run: one row per question, and their flat summary.

Questions, answers and rankings are joined by question id. A row whose state is not ok counts as wrong in the answer
metrics, is neither answered nor refused, and stands in `rows_<state>`, so the states add up to the questions. A metric
without anything to average over is None. Each metric is defined in `definitions.DEFINITIONS`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from gpu_rag.errors import InputError
from gpu_rag.evaluation import text_metrics
from gpu_rag.evaluation.boundary import boundary_balanced_score, outcome_class
from gpu_rag.evaluation.grounding import SourceText, completed_demands, verbatim_citations
from gpu_rag.evaluation.retrieval import RECALL_DEPTHS, distinct, max_recall_at_k, recall_at_k
from gpu_rag.schemas import ANSWERS, LINEAGES, QUESTIONS, RANKINGS, STATES, check_table
from gpu_rag.spans import is_blank

_TEXT_METRICS: dict[str, Callable[[str, str], float]] = {
    "exact_match": text_metrics.exact_match,
    "f1": text_metrics.f1,
    "strict": text_metrics.unicode_exact_match,
    "lenient": text_metrics.contains,
    "unicode_f1": text_metrics.unicode_f1,
}
_NAMED_IDS = 5


def evaluate_run(
    questions: pa.Table,
    answers: pa.Table,
    rankings: pa.Table,
    lineages: pa.Table | None = None,
    source_text: SourceText | None = None,
) -> dict[str, float | None]:
    """Return the flat metrics of a run, JSON-safe; shares in [0, 1], counts as integers, None where undefined.

    Args:
        questions: `schemas.QUESTIONS` with gold labels, one row per question.
        answers: `schemas.ANSWERS`, one row per question.
        rankings: `schemas.RANKINGS`; a question without rows has recall 0.
        lineages: `schemas.LINEAGES`, for demand completion.
        source_text: Source text of a document by id, for verbatim citations.

    Raises:
        InputError: Naming ids that stand in one table only, a blank gold answer, an unknown state or outcome, or a
            table that does not fit its schema.
    """
    rows = per_question(questions, answers, rankings, lineages)
    metrics: dict[str, float | None] = {}
    metrics |= _retrieval(rows)
    with_gold = [row for row in rows if row["exact_match"] is not None]
    metrics |= {name: _mean(row[name] for row in with_gold) for name in _TEXT_METRICS}
    metrics["num_with_gold"] = len(with_gold)
    metrics |= _boundary(rows, metrics["lenient"])
    if lineages is not None:
        metrics |= _demands(rows)
    metrics["answers_cited"] = _mean(row["num_citations"] > 0 for row in rows if row["outcome"] == "answered")
    metrics["num_citations"] = sum(row["num_citations"] for row in rows)
    if source_text is not None:
        num_verbatim, num_citations = verbatim_citations(answers, source_text)
        metrics["citations_verbatim"] = num_verbatim / num_citations if num_citations else None
    states = Counter(row["state"] for row in rows)
    metrics |= {f"rows_{state}": states[state] for state in STATES}
    return metrics


def per_question(
    questions: pa.Table, answers: pa.Table, rankings: pa.Table, lineages: pa.Table | None = None
) -> list[dict[str, Any]]:
    """Return one row per question, by id.

    Columns: `id, question, type, answerable, state, outcome, reason, class` (`boundary.CLASSES`), `answer`;
    `exact_match, f1, strict, lenient, unicode_f1` (None unless answerable with a gold answer); `recall@k, max_recall@k`
    (None without gold documents); `num_repeated_documents, num_citations`; `num_demands, num_completed` (None without
    lineages).

    Raises:
        InputError: As `evaluate_run`.
    """
    golds = _by_id(check_table(questions, QUESTIONS))
    given = _by_id(check_table(answers, ANSWERS))
    _same_ids(golds, given)
    ranked = _ranked_documents(check_table(rankings, RANKINGS))
    _known_ids("rankings", ranked, golds)
    traces = {}
    if lineages is not None:
        traces = _by_id(check_table(lineages, LINEAGES).select(["id", "demands", "annotations"]))
    _known_ids("lineages", traces, golds)
    rows = []
    for id_ in sorted(golds):
        demands = completed_demands(traces[id_]) if id_ in traces else []
        counts = {"num_demands": len(demands), "num_completed": sum(demands)}
        rows.append(
            _score(golds[id_], given[id_], ranked.get(id_, [])) | (counts if lineages is not None else dict.fromkeys(counts))
        )
    return rows


def _score(gold: dict[str, Any], given: dict[str, Any], ranking: list[str]) -> dict[str, Any]:
    id_ = gold["id"]
    if any(is_blank(answer) for answer in gold["answers"]):
        raise InputError(f"table questions, id {id_!r}, column answers: blank gold answer; no answers is []")
    if given["state"] not in STATES:
        raise InputError(f"table answers, id {id_!r}, column state: {given['state']!r}, expected one of {STATES}")
    processed = given["state"] == "ok"
    outcome = given["outcome"] if processed else None
    scores: dict[str, float | None] = dict.fromkeys(_TEXT_METRICS)
    if gold["answerable"] and gold["answers"]:
        answer = (given["answer"] or "") if outcome == "answered" else None
        for name, metric in _TEXT_METRICS.items():
            scores[name] = 0.0 if answer is None else max(metric(answer, text) for text in gold["answers"])
    supports = set(gold["supporting_doc_ids"])
    documents = distinct(ranking)
    return {
        "id": id_,
        "question": gold["question"],
        "type": gold["type"],
        "answerable": gold["answerable"],
        "state": given["state"],
        "outcome": outcome,
        "reason": given["reason"],
        "class": outcome_class(
            state=given["state"],
            outcome=outcome,
            answerable=gold["answerable"],
            lenient=scores["lenient"],
            question_id=id_,
        ),
        "answer": given["answer"],
        **scores,
        **{f"recall@{k}": recall_at_k(documents, supports, k) if supports else None for k in RECALL_DEPTHS},
        **{f"max_recall@{k}": max_recall_at_k(supports, k) if supports else None for k in RECALL_DEPTHS},
        "num_repeated_documents": len(ranking) - len(documents),
        "num_citations": len(given["citations"]),
    }


def _retrieval(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    with_supports = [row for row in rows if row["recall@1"] is not None]
    names = [f"{prefix}@{k}" for prefix in ("recall", "max_recall") for k in RECALL_DEPTHS]
    return {
        **{name: _mean(row[name] for row in with_supports) for name in names},
        "num_with_supports": len(with_supports),
        "num_repeated_documents": sum(row["num_repeated_documents"] for row in rows),
    }


def _boundary(rows: list[dict[str, Any]], lenient: float | None) -> dict[str, float | None]:
    unanswerable = [row["class"] for row in rows if row["answerable"] is False]
    answerable = [row["class"] for row in rows if row["answerable"]]
    outcomes = Counter(row["outcome"] for row in rows)
    correct_refusal = _mean(class_ == "correct_refusal" for class_ in unanswerable)
    return {
        "bbs": boundary_balanced_score(lenient, correct_refusal),
        "correct_refusal": correct_refusal,
        "false_answer": _mean(class_ == "false_answer" for class_ in unanswerable),
        "false_refusal": _mean(class_ == "false_refusal" for class_ in answerable),
        "answered": _mean(row["outcome"] == "answered" for row in rows),
        "refused": _mean(row["outcome"] == "refused" for row in rows),
        "num_questions": len(rows),
        "num_answered": outcomes["answered"],
        "num_refused": outcomes["refused"],
        "num_answerable": len(answerable),
        "num_unanswerable": len(unanswerable),
        "num_unlabelled": len(rows) - len(answerable) - len(unanswerable),
    }


def _demands(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    posed = [row for row in rows if row["num_demands"]]
    num_demands = sum(row["num_demands"] for row in posed)
    return {
        "demands_completed": sum(row["num_completed"] for row in posed) / num_demands if num_demands else None,
        "questions_all_completed": _mean(row["num_completed"] == row["num_demands"] for row in posed),
        "questions_any_completed": _mean(row["num_completed"] > 0 for row in posed),
        "num_demands": num_demands,
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def _by_id(table: pa.Table) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in table.to_pylist()}


def _ranked_documents(rankings: pa.Table) -> dict[str, list[str]]:
    """Return the document ids of each question in rank order, repeated ones included, however the rows are ordered."""
    ranked: dict[str, list[str]] = {}
    ordered = RANKINGS.sort(rankings)
    for id_, doc_id in zip(ordered.column("id").to_pylist(), ordered.column("doc_id").to_pylist(), strict=True):
        ranked.setdefault(id_, []).append(doc_id)
    return ranked


def _same_ids(golds: dict[str, Any], given: dict[str, Any]) -> None:
    _known_ids("answers", given, golds)
    missing = sorted(golds.keys() - given.keys())
    if missing:
        raise InputError(f"table answers has no row for {len(missing)} question(s): {_listed(missing)}")


def _known_ids(table: str, ids: dict[str, Any], golds: dict[str, Any]) -> None:
    unknown = sorted(ids.keys() - golds.keys())
    if unknown:
        raise InputError(f"table {table} has {len(unknown)} id(s) that are not in the questions: {_listed(unknown)}")


def _listed(ids: list[str]) -> str:
    shown = ", ".join(repr(id_) for id_ in ids[:_NAMED_IDS])
    return f"{shown}, ..." if len(ids) > _NAMED_IDS else shown
