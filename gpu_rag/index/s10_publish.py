"""Stage 10, publish: check every reference, then let the driver write the generation.

Input:  all tables of the index.
Output: `schemas.COUNTS`: rows per table.
Device: CPU.
"""

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.errors import StoreError
from gpu_rag.stage import Cardinality, NoConfig, Tables, TableStage

_REFERENCES = (
    ("chunks", "doc_id", "documents", "doc_id"),
    ("sentences", "chunk_id", "chunks", "chunk_id"),
    ("mentions", "entity_id", "entities", "entity_id"),
    ("mentions", "chunk_id", "chunks", "chunk_id"),
    ("relations", "subject_id", "entities", "entity_id"),
    ("relations", "object_id", "entities", "entity_id"),
    ("relations", "chunk_id", "chunks", "chunk_id"),
    ("links", "entity_id", "entities", "entity_id"),
    ("links", "chunk_id", "chunks", "chunk_id"),
    ("edges", "source_id", "nodes", "node_id"),
    ("edges", "target_id", "nodes", "node_id"),
    ("embeddings", "vector_id", "vectors", "vector_id"),
    ("entities", "canonical_id", "entities", "entity_id"),
    ("descriptions", "entity_id", "entities", "entity_id"),
    ("descriptions", "mention_id", "mentions", "mention_id"),
    ("profiles", "doc_id", "documents", "doc_id"),
    ("communities", "parent_id", "communities", "community_id"),
    ("communities", "members", "entities", "entity_id"),
    ("summaries", "community_id", "communities", "community_id"),
    ("summary_vectors", "community_id", "communities", "community_id"),
)
_TABLES = (
    "documents", "chunks", "sentences", "entities", "mentions", "relations", "facts", "links", "nodes", "edges", "vectors",
    "embeddings", "profiles", "descriptions", "communities", "summaries", "summary_vectors",
)  # fmt: skip


def publish(tables: Tables, *, config: NoConfig) -> dict[str, pa.Table]:
    """Return the row counts of a repository whose references all resolve.

    Raises:
        StoreError: Naming table, column and the first id that stands nowhere.
    """
    for table, name, target, target_name in _REFERENCES:
        known = tables[target].column(target_name).combine_chunks()
        values = tables[table].column(name).drop_null()
        if pa.types.is_list(values.type):
            values = pc.list_flatten(values)
        dangling = values.filter(pc.invert(pc.is_in(values, value_set=known)))
        if len(dangling):
            raise StoreError(f"table {table}, column {name}: {len(dangling)} ids not in {target}, first {dangling[0]}")
    rows = [tables[name].num_rows for name in _TABLES]
    return {"counts": schemas.COUNTS.build({"table": list(_TABLES), "rows": rows})}


def references_of(name: str, table: pa.Table) -> pa.Table:
    """Return the columns of a table that are checked: those that refer, and those that are referred to."""
    columns = {column for source, column, _, _ in _REFERENCES if source == name}
    columns |= {column for _, _, target, column in _REFERENCES if target == name}
    return table.select([column for column in table.column_names if column in columns] or table.column_names[:1])


def _narrow(tables: Tables) -> Tables:
    return {name: references_of(name, table) for name, table in tables.items()}


STAGE = TableStage(
    number=10,
    name="publish",
    version=2,
    reads=_TABLES,
    writes=(schemas.COUNTS,),
    cardinality=Cardinality.MANY_TO_MANY,
    run=publish,
    narrow=_narrow,
)
