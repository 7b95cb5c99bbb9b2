"""How work is cut into shards."""

import pyarrow as pa
import pytest

from gpu_rag.pipeline import _cut
from gpu_rag.stage_run import row_bytes


def work(*texts: str) -> pa.Table:
    return pa.table({"work_key": [str(n) for n in range(len(texts))], "text": pa.array(texts, pa.large_string())})


@pytest.mark.parametrize(
    ("rows", "max_bytes", "sizes"),
    [(10, 100, [3, 2]), (2, 100, [2, 1, 2]), (10, 23, [2, 1, 1, 1]), (10, 1, [1, 1, 1, 1, 1]), (10, 10_000, [5])],
)
def test_a_shard_holds_so_many_rows_and_bytes_and_a_large_row_is_alone(rows: int, max_bytes: int, sizes: list[int]) -> None:
    table = work("a" * 10, "b" * 10, "c" * 60, "d" * 50, "e" * 20)
    shards = list(_cut(table, rows, max_bytes))
    assert [shard.num_rows for shard in shards] == sizes
    assert pa.concat_tables(shards).equals(table)
    assert all(shard.num_rows == 1 or int(row_bytes(shard).sum()) <= max_bytes for shard in shards)


def test_no_work_is_no_shard() -> None:
    assert list(_cut(work(), 10, 10)) == []
