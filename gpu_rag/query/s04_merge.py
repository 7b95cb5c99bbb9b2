"""Query stage 04, merge: unite the demands' ranked lists into one pool, keeping who retrieved what.

Input:  `lists`, one ranked list L_j per demand.
Output: `schemas.POOLS`, 1:1.
Device: CPU.
Source: LineageRAG, "Demand-Conditioned Lineage Expansion" (eq. 4 to 6).
"""

from collections import Counter
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag import schemas
from gpu_rag.query.frame import query_stage, result_table
from gpu_rag.query.repository import Repository
from gpu_rag.spans import normal_form


class MergeConfig(BaseModel):
    """Depth h of each list that is merged."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    depth: PositiveInt = 20


def merge(work: pa.Table, *, config: MergeConfig, repository: Repository) -> pa.Table:
    """Return each question's pool.

    Lists are merged by depth and, within a depth, in demand order; a passage enters at its first occurrence. Every (demand,
    rank) at which a list shows it stays in `events`.
    """
    values = [merge_lists(lists, config.depth, repository) for lists in work.column("lists").to_pylist()]
    return result_table(work, schemas.POOLS.schema.field("pool"), values)


def merge_lists(lists: list[dict[str, Any]], depth: int, repository: Repository) -> list[dict[str, Any]]:
    """Return the candidates of one question in pool order, with A_q, n, rho and g (the last over the whole pool)."""
    pool: dict[str, dict[str, Any]] = {}
    for level in range(depth):
        for demand in lists:
            if level < len(demand["hits"]):
                hit = demand["hits"][level]
                candidate = pool.setdefault(hit["chunk_id"], _new_candidate(hit["chunk_id"], repository))
                candidate["events"].append({"demand_id": demand["demand_id"], "rank": hit["rank"]})
                candidate["score"] = max(candidate["score"], hit["score"])
    titles = {chunk: normal_form(repository.chunk_titles[repository.chunk_index[chunk]]) for chunk in pool}
    with_title = Counter(titles.values())
    for chunk, candidate in pool.items():
        candidate["num_events"] = len(candidate["events"])
        candidate["best_rank"] = min(event["rank"] for event in candidate["events"])
        candidate["same_title"] = with_title[titles[chunk]] if titles[chunk] else 1
    return list(pool.values())


def _new_candidate(chunk_id: str, repository: Repository) -> dict[str, Any]:
    doc_id = repository.chunk_doc_ids[repository.chunk_index[chunk_id]]
    return {"chunk_id": chunk_id, "doc_id": doc_id, "events": [], "score": float("-inf")}


STAGE = query_stage(
    number=4,
    name="merge",
    version=1,
    reads=("question", "lists"),
    after=schemas.LISTS,
    writes=schemas.POOLS,
    run=merge,
    engines=("repository",),
)
