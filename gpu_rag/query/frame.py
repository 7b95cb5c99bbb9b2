"""The frame of query stages: one row per question, one column of results per stage.

A question whose state is not ok stops where it is: later stages do not compute it, and carry its state and reason on to the
answers. The content of a piece of work is the question's text and the columns the stage reads, without the question's id, so
the same question under two ids is answered once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.engines.generation import Generation
from gpu_rag.engines.usage import usage_columns
from gpu_rag.schemas import TableSchema, column, conform
from gpu_rag.stage import Cardinality, RowStage, Tables

_OF_QUESTIONS = ("question", "decomposition")  # columns of the questions table that stages read
_OUTPUTS = (
    schemas.DEMANDS, schemas.LISTS, schemas.POOLS, schemas.SELECTIONS, schemas.ANNOTATIONS, schemas.SUFFICIENCIES,
    schemas.REPLIES,
)  # fmt: skip
_SOURCE = dict.fromkeys(_OF_QUESTIONS, schemas.QUESTIONS) | {schema.name: schema for schema in _OUTPUTS}


def query_stage(
    *,
    number: int,
    name: str,
    version: int,
    reads: tuple[str, ...],
    after: TableSchema,
    writes: TableSchema,
    run: Callable[..., pa.Table],
    engines: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = (),
    texts: Callable[[Any], Mapping[str, str]] | None = None,
    not_keyed: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] = MappingProxyType({}),
    uses_llm: bool = False,
) -> RowStage:
    """Return the row stage that computes one column per question.

    Args:
        number: Stage number.
        name: Stage name.
        version: Raised by hand when the code changes what it produces.
        reads: Columns that `run` reads, `question` among them.
        after: Output of the stage before, whose state decides which questions are computed.
        writes: Output table; its last column is the stage's payload.
        run: (work, *, config, **engines) -> `work_key, state, reason` and the payload column.
        engines: Keywords of `run`, or a function from the config to them.
        texts: Prompts and schemas that decide the output, by name.
        not_keyed: Of the config, what does not decide the output or what `texts` stand for, as pydantic's `exclude`.
        uses_llm: Whether a method of the stage asks a language model; its results then have the usage columns.
    """
    payload = writes.schema.field(writes.name)

    def content(tables: Tables, config: Any) -> pa.Table:
        before = tables[after.name]
        ready = before.filter(pc.equal(before.column("state"), "ok")).column("id")
        columns = {column_name: _aligned(tables, column_name, ready) for column_name in reads}
        return pa.table({"row_id": ready, **columns})

    def assemble(tables: Tables, results: pa.Table, config: Any) -> dict[str, pa.Table]:
        done = conform(results.rename_columns({"row_id": "id"}).select(writes.schema.names), writes.schema)
        before = tables[after.name]
        stopped = before.filter(pc.not_equal(before.column("state"), "ok")).select(["id", "state", "reason"])
        carried = stopped.append_column(payload, pa.nulls(stopped.num_rows, payload.type))
        return {writes.name: writes.sort(pa.concat_tables([done, conform(carried, writes.schema)]))}

    return RowStage(
        number=number,
        name=name,
        version=version,
        reads=tuple(sorted({after.name, *(_SOURCE[column_name].name for column_name in reads)})),
        writes=(writes,),
        cardinality=Cardinality.ONE_TO_ONE,
        engines=engines,
        texts=texts,
        not_keyed=not_keyed,
        uses_llm=uses_llm,
        payload=pa.schema([column(payload.name, payload.type, nullable=True)]),
        content=content,
        run=run,
        assemble=assemble,
    )


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for the value of a row that has none: its state and why."""

    state: str
    reason: str


def result_table(
    work: pa.Table,
    stage_payload: pa.Field,
    values: Sequence[Any],
    calls: Sequence[Sequence[Generation]] | None = None,
    notes: Sequence[str] | None = None,
) -> pa.Table:
    """Return a stage's results, one row per row of `work`.

    Args:
        work: The rows of work, in order.
        stage_payload: The payload column.
        values: Its values; a `Failed` stands for the value of a row that has none.
        calls: The generations of each row, where a language model was asked.
        notes: Reasons of rows that have a value: what was left out of it.
    """
    failed = [value if isinstance(value, Failed) else None for value in values]
    remarks = notes or [""] * work.num_rows
    columns = {
        "work_key": work.column("work_key"),
        "state": pa.array(["ok" if failure is None else failure.state for failure in failed], schemas.STRING),
        "reason": pa.array([note if f is None else f.reason for f, note in zip(failed, remarks, strict=True)], schemas.STRING),
        stage_payload.name: pa.array([None if isinstance(value, Failed) else value for value in values], stage_payload.type),
    }
    return pa.table(columns | (usage_columns(calls) if calls is not None else {}))


def _aligned(tables: Tables, column_name: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return one column in the order of `ids`, joined by id."""
    table = tables[_SOURCE[column_name].name]
    return table.column(column_name).take(pc.index_in(ids, value_set=table.column("id").combine_chunks()))
