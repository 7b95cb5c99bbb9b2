"""The tables of a RUN folder, put together from what the query stages wrote."""

from typing import Any

import pyarrow as pa

from gpu_rag import schemas
from gpu_rag.stage import Tables


def answer_table(tables: Tables) -> pa.Table:
    """Return `schemas.ANSWERS`: an answer, a refusal with its reason, or the state that kept a row from either."""
    rows = []
    for row in tables["reply"].to_pylist():
        reply = row["reply"] or {}
        answered = reply.get("outcome") == "answered"
        rows.append(
            {
                "id": row["id"],
                "answer": reply["answer"] if answered else None,
                "explanation": reply["explanation"] if answered else None,
                "outcome": reply.get("outcome"),
                "reason": reply["refusal_reason"] if reply else row["reason"],
                "state": row["state"],
                "citations": reply.get("citations", []),
                "open_demands": reply.get("open_demands", []),
            }
        )
    return schemas.ANSWERS.from_rows(rows)


def ranking_table(tables: Tables) -> pa.Table:
    """Return `schemas.RANKINGS`: the selected passages first, in pool order, then the rest of the pool."""
    selections = _column(tables, "selection")
    rows: list[dict[str, Any]] = []
    for question, pool in _column(tables, "pool").items():
        selected = {item["chunk_id"] for item in selections.get(question) or []}
        ordered = sorted(pool or [], key=lambda candidate: candidate["chunk_id"] not in selected)
        rows += [
            {
                "id": question,
                "doc_id": candidate["doc_id"],
                "chunk_id": candidate["chunk_id"],
                "rank": rank,
                "score": candidate["score"],
                "selected": candidate["chunk_id"] in selected,
            }
            for rank, candidate in enumerate(ordered, start=1)
        ]
    return schemas.RANKINGS.from_rows(rows)


def lineage_table(tables: Tables) -> pa.Table:
    """Return `schemas.LINEAGES`: per question, all that leads from demands to quoted spans."""
    columns = {name: _column(tables, name) for name in ("demands", "pool", "selection", "annotations", "sufficiency")}
    return schemas.LINEAGES.from_rows(
        [
            {"id": question}
            | {name: columns[name][question] or [] for name in ("demands", "pool", "selection", "annotations")}
            | {"sufficiency": columns["sufficiency"][question]}
            for question in tables["questions"].column("id").to_pylist()
        ]
    )


def _column(tables: Tables, name: str) -> dict[str, Any]:
    table = tables[name]
    return dict(zip(table.column("id").to_pylist(), table.column(name).to_pylist(), strict=True))
