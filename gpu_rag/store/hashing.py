"""Content hashes of tables: over rows in key order, not over file bytes, and without computed floats."""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.schemas import TableSchema


def table_hash(table: pa.Table, schema: TableSchema) -> str:
    """Return the hash of the table's rows in key order, without its computed columns; file bytes do not enter."""
    table = schema.sort(table).combine_chunks()
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{schema.name}:{schema.version}:{table.num_rows}".encode())
    for name in schema.schema.names:
        if name not in schema.computed:
            digest.update(name.encode())
            values = table.column(name).combine_chunks()
            _hash_array(values, digest)
    return digest.hexdigest()


def _text_bytes(array: pa.LargeStringArray) -> memoryview:
    """Return the bytes of all texts of an array without nulls, one after the other, without a copy."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("q")
    return memoryview(data)[bounds[array.offset] : bounds[array.offset + len(array)]]


def _hash_array(array: pa.Array, digest: "hashlib.blake2b") -> None:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    kind = array.type
    # Parquet renames the items of a list, which Arrow's equality of types does not see and its text does.
    label = "list" if pa.types.is_list(kind) else "struct" if pa.types.is_struct(kind) else str(kind)
    digest.update(f"{label}:{len(array)}:{array.null_count}".encode())
    if array.null_count:
        digest.update(pc.is_valid(array).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        array = (pc.fill_null(array, "") if array.null_count else array).cast(pa.large_string())
        digest.update(pc.binary_length(array).to_numpy(zero_copy_only=False).tobytes())
        digest.update(_text_bytes(array))
    elif pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        digest.update(lengths.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())
        _hash_array(array.flatten(), digest)
    elif pa.types.is_struct(kind):
        for index, field in enumerate(kind):
            digest.update(field.name.encode())
            _hash_array(pc.struct_field(array, [index]), digest)
    else:
        filled = pc.fill_null(array, False if pa.types.is_boolean(kind) else 0) if array.null_count else array
        digest.update(filled.to_numpy(zero_copy_only=False).tobytes())
