"""Columns of arrow tables as numpy arrays; ids become row numbers, in whole columns at a time."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.errors import InputError

_log = logging.getLogger(__name__)


def rows_of(table: pa.Table, table_name: str, column_name: str, ids: list[str] | pa.ChunkedArray) -> np.ndarray:
    """Return the row among `ids` of each value of a column, int64.

    Raises:
        InputError: Naming the first value that is not among them.
    """
    values = table.column(column_name)
    known = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else pa.array(ids, schemas.STRING)
    rows = pc.index_in(values, value_set=known)
    if rows.null_count:
        bad = values[pc.index(pc.is_null(rows), True).as_py()].as_py()
        raise InputError(f"table {table_name}, column {column_name}: {bad!r} is in no row of the table it refers to")
    return np.asarray(rows.to_numpy(), dtype=np.int64)


def int64_column(table: pa.Table, column_name: str) -> np.ndarray:
    """Return a column of integers as int64."""
    return np.asarray(table.column(column_name).to_numpy(), dtype=np.int64)


def flags(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return booleans as a bool array."""
    bits = values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    return np.asarray(bits, dtype=bool)


def offsets(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Return CSR offsets int64 (num_rows + 1,) of sorted row numbers."""
    indptr = np.zeros(num_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
    return indptr


def item_vectors(embeddings: pa.Table, vectors: pa.Table, kind: str, item_ids: list[str]) -> np.ndarray:
    """Return the embeddings of items of one kind, float32 (n, D), in the order of their ids.

    An item whose embedding failed has a zero vector, which is similar to nothing; how many there are is logged.

    Raises:
        InputError: If items of this kind were not embedded at all, or if vectors differ in length.
    """
    embeddings = embeddings.filter(pc.equal(embeddings.column("kind"), kind))
    if item_ids and not embeddings.num_rows:
        raise InputError(f"table embeddings holds none of kind {kind!r}; index with it in embed.kinds")
    lengths = pc.unique(pc.list_value_length(vectors.column("vector"))).to_pylist()
    if len(lengths) > 1:
        raise InputError(f"table vectors, column vector: lengths {sorted(lengths)}, expected one length")
    dim = lengths[0] if lengths else 0
    flat = [part.flatten().to_numpy() for part in vectors.column("vector").chunks]
    values = flat[0] if len(flat) == 1 else np.concatenate([np.empty(0, np.float32), *flat])
    vector_rows = rows_of(embeddings, "embeddings", "vector_id", vectors.column("vector_id"))
    wanted = pa.array(item_ids, schemas.STRING)
    embedded = pc.index_in(wanted, value_set=embeddings.column("item_id").combine_chunks())
    missing = flags(embedded.is_null())
    rows = vector_rows[embedded.fill_null(0).to_numpy()] if len(vector_rows) else np.empty(0, np.int64)
    items: np.ndarray = values.reshape(-1, dim or 1)[rows].reshape(len(item_ids), dim)
    if missing.any():
        _log.warning("%d of %d %s embeddings are missing; they count as zero", missing.sum(), len(items), kind)
        items[missing] = 0
    return items
