"""Carrying answers from one generation of an index to the next, where their evidence is the same.

Retrieval, merging and selection run over the new generation for every question: a new document may be evidence for any of
them. What follows reads the selected passages, so a question whose demands, selected passages (title, text, place) and
demand-passage provenance are what they were keeps its spans, decision and answer, and no stage is asked again. Statistics over
the whole corpus (document frequencies in the sufficiency score) move with every document and do not count as evidence.

Answers that did not come about (states other than ok) are never carried.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag import schemas
from gpu_rag.errors import StoreError
from gpu_rag.ids import canonical_json, content_hash
from gpu_rag.schemas import STRING, TableSchema, check_table, column, conform
from gpu_rag.stage_report import StageReport
from gpu_rag.store import Generation, write_parquet

CARRIED = ("ground", "suffice", "answer")  # stages whose rows are carried, in order
_TABLES = (schemas.ANNOTATIONS, schemas.SUFFICIENCIES, schemas.REPLIES)
_LABELS = ("06_ground", "07_suffice", "08_answer")
_FOLDER = "carry"
EVIDENCE = TableSchema(
    "evidence", 1, pa.schema([column("id", STRING), column("evidence", STRING)]), key=("id",)
)  # hash of all that an answer rests on


@dataclass
class Carry:
    """What an earlier run knows, and which questions keep it.

    Attributes:
        known: Question id -> hash of its evidence in the earlier run, of answers that came about.
        tables: The rows of `_TABLES` in the earlier run.
        passages: Chunk id -> hash of a passage of the new generation.
        carried: Ids of the questions that are carried, once `rest` was called.
    """

    known: Mapping[str, str]
    tables: Mapping[str, pa.Table]
    passages: Mapping[str, str]
    carried: frozenset[str] = field(default=frozenset())

    def rest(self, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Return the tables without the questions that are carried."""
        found = _evidence(tables, self.passages)
        self.carried = frozenset(question for question, key in found.items() if self.known.get(question) == key)
        return {name: _filtered(table, self.carried, keep=False) for name, table in tables.items()}

    def add(self, tables: dict[str, pa.Table], reports: Sequence[StageReport]) -> None:
        """Add the carried rows to the tables and to the reports of their stages."""
        for schema in _TABLES:
            kept = _filtered(self.tables[schema.name], self.carried, keep=True)
            tables[schema.name] = check_table(schema.sort(pa.concat_tables([tables[schema.name], kept])), schema)
        for report in reports:
            if report.label in _LABELS:
                report.rows += len(self.carried)
                report.distinct += len(self.carried)
                report.cached += len(self.carried)
                report.states["ok"] = report.states.get("ok", 0) + len(self.carried)
                report.metrics["carried"] = float(len(self.carried))


def carry_from(earlier: Path, generation: Generation) -> Carry | None:
    """Return what a RUN folder offers to a run over another generation, None if it was not kept for that."""
    folder = earlier / _FOLDER
    if not (folder / "evidence.parquet").exists():
        return None
    evidence = _read(folder, EVIDENCE)
    known = dict(zip(*(evidence.column(name).to_pylist() for name in ("id", "evidence")), strict=True))
    return Carry(known, {schema.name: _read(folder, schema) for schema in _TABLES}, _passage_hashes(generation))


def keep_for_carry(out: Path, tables: Mapping[str, pa.Table], generation: Generation) -> None:
    """Keep in a RUN folder what a run over a later generation can carry; `evidence.parquet` is written last."""
    for schema in _TABLES:
        write_parquet(out / _FOLDER / f"{schema.name}.parquet", tables[schema.name])
    done = tables["reply"].filter(pc.equal(tables["reply"].column("state"), "ok")).column("id").to_pylist()
    found = _evidence(tables, _passage_hashes(generation))
    rows = [(question, found[question]) for question in done]
    table = EVIDENCE.build({"id": [question for question, _ in rows], "evidence": [key for _, key in rows]})
    write_parquet(out / _FOLDER / "evidence.parquet", table)


def _evidence(tables: Mapping[str, pa.Table], passages: Mapping[str, str]) -> dict[str, str]:
    """Return the hash of each question's evidence, of the questions that came as far as selection."""
    asked = dict(zip(*(tables["questions"].column(name).to_pylist() for name in ("id", "question")), strict=True))
    demands, pools = (dict(_values(tables[name], name)) for name in ("demands", "pool"))
    return {
        question: content_hash(
            "evidence",
            asked[question],
            canonical_json(demands[question]),
            *_passage_parts(selection, pools[question], passages),
        )
        for question, selection in _values(tables["selection"], "selection")
    }


def _passage_parts(selection: list[dict[str, Any]], pool: list[dict[str, Any]], passages: Mapping[str, str]) -> Iterable[str]:
    """Yield, for each selected passage in order, the hash of what it says and the demands that retrieved it."""
    retrieved_by = {row["chunk_id"]: sorted({event["demand_id"] for event in row["events"]}) for row in pool}
    for item in selection:
        yield passages[item["chunk_id"]]
        yield canonical_json(retrieved_by.get(item["chunk_id"], []))


def _values(table: pa.Table, name: str) -> Iterable[tuple[str, Any]]:
    rows = table.filter(pc.equal(table.column("state"), "ok"))
    return zip(rows.column("id").to_pylist(), rows.column(name).to_pylist(), strict=True)


def _passage_hashes(generation: Generation) -> dict[str, str]:
    names = ["chunk_id", "doc_id", "start", "title", "text"]
    columns = (generation.read(schemas.CHUNKS, names).column(name).to_pylist() for name in names)
    return {
        chunk_id: content_hash("passage", doc_id, str(start), title, text)
        for chunk_id, doc_id, start, title, text in zip(*columns, strict=True)
    }


def _filtered(table: pa.Table, ids: frozenset[str], *, keep: bool) -> pa.Table:
    among = pc.is_in(table.column("id"), value_set=pa.array(sorted(ids), STRING))
    return table.filter(among if keep else pc.invert(among))


def _read(folder: Path, schema: TableSchema) -> pa.Table:
    path = folder / f"{schema.name}.parquet"
    try:
        return check_table(conform(pq.read_table(path), schema.schema), schema)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read: {error}; delete the run folder, its questions are answered anew") from error
