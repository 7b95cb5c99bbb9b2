"""Query stage 05, select: choose k passages of the pool jointly, so that every demand has evidence.

Input:  `question`, `demands` and `pool` (candidates with their demand-passage provenance A_q).
Output: `schemas.SELECTIONS`, 1:1; the selected passages in pool order.
Device: CPU; the language model's with `llm`.
Source: LineageRAG, "Set-wise selection" (eq. 7) and its provenance controls (Table 5).
"""

import random
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag import schemas
from gpu_rag.engines.generation import TextGenerator
from gpu_rag.ids import content_hash
from gpu_rag.query.frame import Failed, query_stage, result_table
from gpu_rag.query.prompted.ask import Asked, keyed_texts, not_keyed
from gpu_rag.query.prompted.select import (
    SELECT_VALUES,
    SelectPromptConfig,
    ask_selections,
    describe_provenance,
    select_schema,
)
from gpu_rag.query.repository import Repository

Events = list[list[dict[str, Any]]]  # per candidate of a pool, who retrieved it as the selector sees it


class SelectConfig(BaseModel):
    """How passages are chosen.

    Attributes:
        method: `coverage` (no LLM): the best unused passage of each demand, then by `fill`. `llm`: a language
            model's choice (`prompted.select`); `fill` is then not used.
        k: Passages to select; all of a smaller pool.
        provenance: What the selector sees of who retrieved a passage, and nothing else: the truth, nothing, as many
            events that say nothing, or the truth of another passage of the pool.
        fill: What decides the places that are left: the best fused `score`, or the merged order of the `pool`. With one
            demand both are the demand's own order.
        llm: How the language model is asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["coverage", "llm"] = "coverage"
    k: PositiveInt = 5
    provenance: Literal["correct", "removed", "neutral", "shuffled"] = "correct"
    fill: Literal["score", "pool"] = "score"
    llm: SelectPromptConfig = SelectPromptConfig()


def select(work: pa.Table, *, config: SelectConfig, repository: Repository, llm: TextGenerator | None = None) -> pa.Table:
    """Return the selection of each question; an empty pool gives an empty one."""
    payload = schemas.SELECTIONS.schema.field("selection")
    questions = work.select(["question", "demands", "pool"]).to_pylist()
    if config.method == "llm":
        assert llm is not None
        asked = _by_llm(questions, config, repository, llm)
        return result_table(work, payload, asked.values, asked.calls, asked.notes)
    values = []
    for question in questions:
        shown = shown_provenance(question["question"], question["pool"], config.provenance)
        proposed = _cover_then_fill(question["demands"], question["pool"], shown, config)
        values.append(admit(proposed, question["pool"], config.k))
    return result_table(work, payload, values)


def shown_provenance(question: str, pool: list[dict[str, Any]], mode: str) -> Events:
    """Return the events of each candidate as the selector sees them; `shuffled` is seeded by question and pool.

    `neutral` keeps their number and says nothing with them, so a selector that reads no text takes it as `removed`.
    """
    true = [candidate["events"] for candidate in pool]
    if mode == "correct":
        return true
    if mode == "removed":
        return [[] for _ in pool]
    if mode == "neutral":
        return [[{"demand_id": "", "rank": 0} for _ in events] for events in true]
    seed = content_hash("shuffled provenance", question, *(candidate["chunk_id"] for candidate in pool))
    order = list(range(len(pool)))
    random.Random(seed).shuffle(order)
    return [true[row] for row in order]


def admit(proposed: list[tuple[str, str]], pool: list[dict[str, Any]], k: int) -> list[dict[str, Any]]:
    """Return the proposed passages that are in the pool, each once, the first k, in pool order.

    Places left are filled with the earliest unselected candidates.

    Args:
        proposed: (chunk id, reason), in order of preference.
        pool: Candidates in pool order.
        k: Passages wanted.
    """
    ranks: dict[str, int] = {}
    for rank, candidate in enumerate(pool, start=1):
        ranks.setdefault(candidate["chunk_id"], rank)
    reasons: dict[str, str] = {}
    for chunk_id, reason in [*proposed, *((chunk_id, "fill") for chunk_id in ranks)]:
        if chunk_id in ranks and len(reasons) < k:
            reasons.setdefault(chunk_id, reason)
    return [
        {"chunk_id": chunk_id, "doc_id": pool[rank - 1]["doc_id"], "pool_rank": rank, "reason": reasons[chunk_id]}
        for chunk_id, rank in ranks.items()
        if chunk_id in reasons
    ]


def _cover_then_fill(
    demands: list[dict[str, Any]], pool: list[dict[str, Any]], shown: Events, config: SelectConfig
) -> list[tuple[str, str]]:
    """Return the best unused passage of each demand in demand order, then all by `fill`."""
    proposed: dict[str, str] = {}
    for demand in demands if len(demands) > 1 else ():
        ranked = [
            (event["rank"], row)
            for row, events in enumerate(shown)
            for event in events
            if event["demand_id"] == demand["demand_id"] and pool[row]["chunk_id"] not in proposed
        ]
        if ranked:
            proposed[pool[min(ranked)[1]]["chunk_id"]] = f"covers {demand['demand_id']}"
    by_score = config.fill == "score" and len(demands) > 1
    order = sorted(range(len(pool)), key=lambda row: (-pool[row]["score"] if by_score else 0, row))
    for row in order:
        proposed.setdefault(pool[row]["chunk_id"], "fill")
    return list(proposed.items())


def _by_llm(questions: list[dict[str, Any]], config: SelectConfig, repository: Repository, llm: TextGenerator) -> Asked:
    """Return the model's selections, admitted."""
    provenance = [_told_provenance(question["question"], question["pool"], config.provenance) for question in questions]
    asked = ask_selections(questions, provenance, repository, llm, config.llm, config.k)
    values = [
        proposed if isinstance(proposed, Failed) else admit(proposed, question["pool"], config.k)
        for question, proposed in zip(questions, asked.values, strict=True)
    ]
    return asked._replace(values=values)


def _told_provenance(question: str, pool: list[dict[str, Any]], mode: str) -> list[str]:
    """Return what a reader is told of each candidate's provenance; `neutral` is as long as the truth and says nothing."""
    shown = shown_provenance(question, pool, "correct" if mode == "neutral" else mode)
    return [
        describe_provenance(events, candidate["same_title"], masked=mode == "neutral")
        for events, candidate in zip(shown, pool, strict=True)
    ]


def _engines(config: SelectConfig) -> tuple[str, ...]:
    return ("llm", "repository") if config.method == "llm" else ("repository",)


def _texts(config: SelectConfig) -> Mapping[str, str]:
    if config.method != "llm":
        return {}
    return keyed_texts(select_schema(2, config.k), prompt=(config.llm.prompt, SELECT_VALUES))


STAGE = query_stage(
    number=5,
    name="select",
    version=1,
    reads=("question", "demands", "pool"),
    after=schemas.POOLS,
    writes=schemas.SELECTIONS,
    run=select,
    engines=_engines,
    texts=_texts,
    not_keyed=not_keyed("prompt"),
    uses_llm=True,
)
