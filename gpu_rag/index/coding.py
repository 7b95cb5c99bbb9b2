"""Codes: columns of strings as whole numbers, so that a million units are handled as arrays.

Codes are ranks among the distinct values, sorted by code point, so nothing depends on the order of rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpu_rag.schemas import TEXT

Ints = NDArray[np.int64]


class Coded(NamedTuple):
    """Columns by code: `values[codes[i]]` is the value of row i, over all rows of all columns, one after the other."""

    values: pa.Array
    codes: Ints


def coded(*columns: pa.ChunkedArray) -> Coded:
    """Return the distinct values of the columns together, sorted, and the code of every row."""
    rows = pa.chunked_array([part.cast(TEXT) for column in columns for part in column.chunks], TEXT)
    encoded = rows.combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return Coded(encoded.dictionary.take(order), rank[encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)])


def codes_of(column: pa.ChunkedArray, values: pa.Array) -> Ints:
    """Return the place of each row's value among the distinct `values`, -1 where it is not there."""
    found = pc.index_in(column.cast(values.type), value_set=values)
    return np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)


def distinct_pairs(first: Ints, second: Ints, num_second: int) -> tuple[Ints, Ints, Ints]:
    """Return the distinct pairs sorted, as (first, second, how often)."""
    keys, counts = np.unique(first * max(num_second, 1) + second, return_counts=True)
    return keys // max(num_second, 1), keys % max(num_second, 1), counts


def lists_by(group: Ints, num_groups: int, values: pa.Array, item: pa.DataType) -> pa.Array:
    """Return one list per group from values sorted by group."""
    offsets = np.zeros(num_groups + 1, np.int32)
    np.cumsum(np.bincount(group, minlength=num_groups), out=offsets[1:])
    type_ = pa.list_(pa.field("item", item, nullable=False))
    return pa.ListArray.from_arrays(pa.array(offsets), values.cast(item), type=type_)


def first_by(group: Ints, *keys: Ints) -> Ints:
    """Return the row that comes first in each group by the keys (the first key decides first), in group order."""
    order = np.lexsort((*reversed(keys), group))
    sorted_groups = group[order]
    first = np.r_[True, sorted_groups[1:] != sorted_groups[:-1]] if len(order) else np.empty(0, bool)
    return order[first]


def text_list(values: Sequence[str]) -> pa.Array:
    """Return the strings as an array of 64-bit offsets."""
    return pa.array(values, TEXT)
