"""The frame of query stages: one row per question, one column of results per stage.

A question whose state is not ok stops where it is: later stages do not compute it, and carry its state and reason on to the
answers. The content of a piece of work is the question's text and the columns the stage reads, without the question's id, so
the same question under two ids is answered once.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
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
    engines: tuple[str, ...] = (),
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
        engines: Keywords of `run`.
    """
    payload = writes.schema.field(writes.name)

    def content(tables: Tables, config: Any) -> pa.Table:
        before = tables[after.name]
        ready = before.filter(pc.equal(before.column("state"), "ok")).column("id")
        columns = {column_name: _aligned(tables, column_name, ready) for column_name in reads}
        return pa.table({"row_id": ready, **columns})

    def assemble(tables: Tables, results: pa.Table, config: Any) -> dict[str, pa.Table]:
        done = conform(results.rename_columns({"row_id": "id"}), writes.schema)
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
        payload=pa.schema([column(payload.name, payload.type, nullable=True)]),
        content=content,
        run=run,
        assemble=assemble,
    )


def result_table(
    work: pa.Table, stage_payload: pa.Field, values: list[Any], failures: dict[int, str] | None = None
) -> pa.Table:
    """Return a stage's results: `values` by row of `work`; a row in `failures` has state error and its reason instead."""
    failed = failures or {}
    rows = range(work.num_rows)
    return pa.table(
        {
            "work_key": work.column("work_key"),
            "state": pa.array(["error" if row in failed else "ok" for row in rows], schemas.STRING),
            "reason": pa.array([failed.get(row, "") for row in rows], schemas.STRING),
            stage_payload.name: pa.array([None if row in failed else values[row] for row in rows], stage_payload.type),
        }
    )


def _aligned(tables: Tables, column_name: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return one column in the order of `ids`, joined by id."""
    table = tables[_SOURCE[column_name].name]
    return table.column(column_name).take(pc.index_in(ids, value_set=table.column("id").combine_chunks()))
