"""What the prompted query stages would send for a sample of questions, without an index.

There is no retrieval here: passages of the corpus stand in for what would be retrieved, as many and as long. The stages' own
functions write the prompts.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.config import Config
from gpu_rag.evaluation.dry_llm import DryEngine, Sent
from gpu_rag.ids import content_hash
from gpu_rag.query import s01_demand, s05_select, s06_ground, s07_suffice, s08_answer
from gpu_rag.query.frame import Failed
from gpu_rag.query.prompted.answer import ask_answers
from gpu_rag.query.prompted.ask import Asked
from gpu_rag.query.prompted.demand import ask_demands
from gpu_rag.query.prompted.ground import ask_spans
from gpu_rag.query.prompted.select import ask_selections, describe_provenance
from gpu_rag.query.prompted.suffice import ask_verdicts
from gpu_rag.query.repository import TABLES, Repository

SAMPLE_QUESTIONS = 200
_DEMANDS = 2  # of a question, where a model or the question file gives them

Row = dict[str, Any]


class Sample(NamedTuple):
    """What one stage sent for the sample, and how many of its rows did not fit the context."""

    sent: list[Sent]
    too_long: int


def distinct_questions(questions: pa.Table) -> list[str]:
    """Return the different questions that are asked, in an order that their texts alone decide."""
    ready = questions.filter(pc.equal(questions.column("state"), "ok")).column("question").to_pylist()
    return sorted(set(ready), key=lambda question: content_hash("estimate", question))


def ask_sample(
    questions: Sequence[str], tables: dict[str, pa.Table], config: Config, engine: DryEngine, *, quantile: float | None
) -> dict[str, Sample]:
    """Return what each stage with the method `llm` sends for the first questions, by its label, in the order of the stages.

    Args:
        questions: Distinct ones.
        tables: Documents, chunks and sentences; there is a chunk.
        config: Sections of the query stages.
        engine: Counts.
        quantile: Passages around this quantile of length; None: of all lengths alike.
    """
    num_demands = 1 if config.demand.method == "whole" else _DEMANDS
    pool = _passages(tables["chunks"], config.merge.depth * num_demands, quantile)
    repository = _repository(tables, pool)
    # Each question begins at another passage, so that no more than the prompts' own text is shared between questions.
    turns = [place % len(pool) if quantile is None else 0 for place in range(min(len(questions), SAMPLE_QUESTIONS))]
    rows = [
        _row(question, [*pool[turn:], *pool[:turn]], num_demands, config.select.k, spread=quantile is None)
        for question, turn in zip(questions, turns, strict=False)
    ]
    llm = engine.llm

    def demands() -> Asked:
        return ask_demands(
            [row["question"] for row in rows], llm, config.demand.llm, s01_demand.MAX_DEMANDS, lambda *_: "", lambda _: []
        )

    def selections() -> Asked:
        told = config.select.provenance != "removed"
        provenance = [[describe_provenance(c["events"], c["same_title"]) if told else "" for c in row["pool"]] for row in rows]
        return ask_selections(rows, provenance, repository, llm, config.select.llm, config.select.k)

    def spans() -> Asked:
        asked = ask_spans(rows, repository, llm, config.ground.llm, config.ground.max_spans)
        for row, found in zip(rows, asked.values, strict=True):
            row["annotations"] = [] if isinstance(found, Failed) else found
        return asked

    asking: list[tuple[Any, bool, Callable[[], Asked]]] = [
        (s01_demand.STAGE, config.demand.method == "llm", demands),
        (s05_select.STAGE, config.select.method == "llm", selections),
        (s06_ground.STAGE, config.ground.method == "llm", spans),
        (s07_suffice.STAGE, config.suffice.method == "llm", lambda: ask_verdicts(rows, repository, llm, config.suffice.llm)),
        (s08_answer.STAGE, config.answer.method == "llm", lambda: ask_answers(rows, repository, llm, config.answer.llm)),
    ]
    samples = {}
    for stage, asks, ask in asking:
        if asks:
            failed = sum(isinstance(value, Failed) for value in ask().values)
            samples[stage.label] = Sample(engine.take(), failed)
    return samples


def _passages(chunks: pa.Table, count: int, quantile: float | None) -> list[Row]:
    """Return so many chunks, fewer of a small corpus: spread evenly over all lengths, or those nearest to a quantile."""
    lengths = pc.utf8_length(chunks.column("text")).to_pylist()
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    count = min(count, len(order))
    if quantile is None:
        taken = [order[(2 * place + 1) * len(order) // (2 * count)] for place in range(count)]
    else:
        middle = quantile * len(order)
        taken = [order[place] for place in sorted(range(len(order)), key=lambda place: abs(place - middle))[:count]]
    return list(chunks.select(["chunk_id", "doc_id"]).take(taken).to_pylist())


def _repository(tables: dict[str, pa.Table], passages: Sequence[Row]) -> Repository:
    """Return a repository of these passages and their sentences, and nothing else."""
    kept = pa.array([passage["chunk_id"] for passage in passages], schemas.STRING)
    of_passages = {
        name: tables[name].filter(pc.is_in(tables[name].column("chunk_id"), kept)) for name in ("chunks", "sentences")
    }
    return Repository.from_tables(
        {schema.name: schema.empty() for schema in TABLES} | {"documents": tables["documents"]} | of_passages
    )


def _row(question: str, passages: Sequence[Row], num_demands: int, k: int, *, spread: bool) -> Row:
    """Return one question with what the earlier stages would have found for it; `spread`: a selection from all of the pool."""
    pool = [
        passage
        | {"events": [{"demand_id": f"D{number % num_demands + 1}", "rank": number // num_demands + 1}]}
        | {"same_title": 1}
        for number, passage in enumerate(passages)
    ]
    k = min(k, len(pool))
    demands = [
        {"demand_id": f"D{number}", "description": question, "query": question, "inputs": [], "outputs": [f"x{number}"]}
        for number in range(1, num_demands + 1)
    ]
    selection = [pool[(2 * number + 1) * len(pool) // (2 * k)] for number in range(k)] if spread else pool[:k]
    return {"question": question, "demands": demands, "pool": pool, "selection": selection, "annotations": []}


__all__ = ["SAMPLE_QUESTIONS", "Sample", "ask_sample", "distinct_questions"]
