import multiprocessing
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_rag import schemas
from gpu_rag.errors import InputError, StoreError
from gpu_rag.schemas import STRING, TableSchema, check_table, column, list_of
from gpu_rag.stage import WORK_COLUMNS
from gpu_rag.store import (
    ArtifactStore,
    WorkStore,
    open_generation,
    publish_generation,
    table_hash,
    write_json,
    writer_lock,
)

RESULT = pa.schema([*WORK_COLUMNS, column("value", pa.int64(), nullable=True)])
ITEMS = TableSchema("items", 1, pa.schema([column("id", STRING), column("tags", list_of(STRING))]), key=("id",))
SCORED = TableSchema("scored", 1, pa.schema([column("id", STRING), column("x", pa.float32())]), ("id",), ("x",))


def results(**states: str) -> pa.Table:
    keys = sorted(states)
    columns = {
        "work_key": keys,
        "state": [states[key] for key in keys],
        "reason": ["" for _ in keys],
        "value": list(range(len(keys))),
    }
    return pa.table(columns, schema=RESULT)


def open_store(root: Path) -> WorkStore:
    return WorkStore(root, "04_extract", "f1", RESULT)


def publish(root: Path, tags: list[str]) -> None:
    table = ITEMS.build({"id": ["a", "b"], "tags": [tags, []]})
    artifact = ArtifactStore(root).write("04_extract", "-".join(tags) or "none", {"items": table}, (ITEMS,))
    publish_generation(
        root, {"04_extract": artifact}, config={}, encoder={"model": "m", "identity": "i"}, corpus_hash="c",
        counts={"items": 2}, code_version="0", unfinished={},
    )  # fmt: skip


def test_committed_keys_are_not_wanted_again_by_another_process(tmp_path: Path) -> None:
    open_store(tmp_path).commit(results(a="ok", b="empty"))
    assert open_store(tmp_path).wanted(["a", "b", "c", "c"], max_attempts=3) == ["c"]


def test_failed_rows_are_wanted_until_their_attempts_are_used_up(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for tries in (1, 2, 3):
        assert store.wanted(["a"], max_attempts=3) == ["a"]
        store.commit(results(a="error"))
        assert store.status["a"].attempts == tries
    assert open_store(tmp_path).wanted(["a"], max_attempts=3) == []


def test_the_latest_attempt_of_a_row_counts(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(results(a="error", b="ok"))
    store.commit(results(a="ok"))
    read = open_store(tmp_path).read(["a", "b"]).to_pylist()
    assert [(row["work_key"], row["state"], row["attempts"]) for row in read] == [("a", "ok", 2), ("b", "ok", 1)]


def test_another_fingerprint_sees_nothing_of_it(tmp_path: Path) -> None:
    open_store(tmp_path).commit(results(a="ok"))
    assert WorkStore(tmp_path, "04_extract", "f2", RESULT).wanted(["a"], 3) == ["a"]


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "cut entry"])
def test_a_damaged_shard_costs_its_own_rows_only(tmp_path: Path, damage: str) -> None:
    store = open_store(tmp_path)
    store.commit(results(a="ok", b="ok"))
    shard = next(store.folder.glob("*.parquet"))
    store.commit(results(c="ok"))
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-20])
    elif damage == "flip":
        shard.write_bytes(b"x" + shard.read_bytes()[1:])
    elif damage == "remove":
        shard.unlink()
    else:
        entry = shard.with_suffix(".json")
        entry.write_text(entry.read_text()[:25])
    again = open_store(tmp_path)
    assert len(again.damaged) == 1
    assert again.wanted(["a", "b", "c"], 3) == ["a", "b"]
    again.commit(results(a="ok", b="ok"))
    assert open_store(tmp_path).wanted(["a", "b", "c"], 3) == []


def test_rows_without_an_entry_are_not_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.folder.mkdir(parents=True)
    pq.write_table(results(a="ok"), store.folder / "feed.parquet")
    assert open_store(tmp_path).wanted(["a"], 3) == ["a"]


def test_leftovers_of_a_killed_writer_are_removed_by_the_next(tmp_path: Path) -> None:
    leftover = tmp_path / "work" / "x" / ".gpu-rag-tmp-shard.parquet"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    folder = tmp_path / "artifacts" / ".gpu-rag-tmp-07_graph-1"
    folder.mkdir(parents=True)
    with writer_lock(tmp_path):
        assert not leftover.exists()
        assert not folder.exists()


def _hold_lock(root: Path, ready: "multiprocessing.synchronize.Event") -> None:
    with writer_lock(root):
        ready.set()
        time.sleep(60)


def test_the_lock_excludes_a_second_writer_and_dies_with_its_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold_lock, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(10)
    with pytest.raises(StoreError, match=f"process {holder.pid}"), writer_lock(tmp_path):
        pass
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    with writer_lock(tmp_path):
        pass


def test_opening_before_anything_is_published_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no published index"):
        open_generation(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "remove"])
def test_a_damaged_artifact_is_named_and_the_index_not_opened(tmp_path: Path, damage: str) -> None:
    publish(tmp_path, ["x"])
    path = next((tmp_path / "artifacts").rglob("items.parquet"))
    path.unlink() if damage == "remove" else path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"items\.parquet.*stage 04_extract"):
        open_generation(tmp_path)


def test_a_damaged_artifact_is_built_again_when_looked_up(tmp_path: Path) -> None:
    publish(tmp_path, ["x"])
    next((tmp_path / "artifacts").rglob("items.parquet")).write_bytes(b"")
    assert ArtifactStore(tmp_path).find("04_extract", "x") is None
    publish(tmp_path, ["x"])
    assert open_generation(tmp_path).read(ITEMS).num_rows == 2


def test_readers_see_the_old_generation_until_the_new_one_is_published(tmp_path: Path) -> None:
    publish(tmp_path, ["x"])
    before = open_generation(tmp_path).content_hash
    table = ITEMS.build({"id": ["z"], "tags": [[]]})
    ArtifactStore(tmp_path).write("04_extract", "half", {"items": table}, (ITEMS,))
    assert open_generation(tmp_path).content_hash == before
    publish(tmp_path, ["y"])
    assert open_generation(tmp_path).content_hash != before


def test_an_older_table_version_is_refused_by_name(tmp_path: Path) -> None:
    publish(tmp_path, ["x"])
    newer = TableSchema("items", 2, ITEMS.schema, ITEMS.key)
    with pytest.raises(StoreError, match="version 1 of table items, this program reads version 2"):
        open_generation(tmp_path).read(newer)


def test_content_hash_sees_rows_not_their_order_nor_file_layout() -> None:
    one = ITEMS.build({"id": ["a", "b"], "tags": [["x", "y"], []]})
    other = pa.concat_tables([ITEMS.build({"id": ["b"], "tags": [[]]}), ITEMS.build({"id": ["a"], "tags": [["x", "y"]]})])
    assert table_hash(one, ITEMS) == table_hash(other, ITEMS)
    sliced = ITEMS.build({"id": ["0", "a", "b"], "tags": [["q"], ["x", "y"], []]}).slice(1)
    assert table_hash(one, ITEMS) == table_hash(sliced, ITEMS)


@pytest.mark.parametrize("tags", [[["x"], ["y"]], [["xy"], []], [[], ["x", "y"]], [["x", "y", ""], []]])
def test_content_hash_sees_every_value_and_its_place(tags: list[list[str]]) -> None:
    one = ITEMS.build({"id": ["a", "b"], "tags": [["x", "y"], []]})
    assert table_hash(one, ITEMS) != table_hash(ITEMS.build({"id": ["a", "b"], "tags": tags}), ITEMS)


def test_computed_columns_stay_out_of_the_content_hash() -> None:
    tables = [SCORED.build({"id": ["a"], "x": [value]}) for value in (0.5, 0.25)]
    assert table_hash(tables[0], SCORED) == table_hash(tables[1], SCORED)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"id": ["a"]}), r"table items: columns \['id'\]"),
        (pa.table({"id": [1], "tags": [["x"]]}), "table items, column id: type int64"),
        (pa.table({"id": ["a", None], "tags": [["x"], []]}, schema=pa.schema([pa.field("id", STRING), ITEMS.schema.field("tags")])),
         "table items, column id: null in row 1"),
        (pa.table({"id": ["a", "a"], "tags": [["x"], []]}, schema=ITEMS.schema), "table items: key repeats, first .*'a'"),
    ],
)  # fmt: skip
def test_a_table_that_breaks_its_schema_is_refused_by_name(table: pa.Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_table(table, ITEMS)


def test_every_table_schema_has_its_key_among_its_columns() -> None:
    tables = [value for value in vars(schemas).values() if isinstance(value, TableSchema)]
    assert len(tables) > 20
    for table in tables:
        assert set(table.key) <= set(table.schema.names)
        assert set(table.computed) <= set(table.schema.names)
        assert table.empty().num_rows == 0


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert path.read_text() == '{\n "a": 2\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_content_hash_is_the_same_after_parquet_which_renames_list_items(tmp_path: Path) -> None:
    table = ITEMS.build({"id": ["a", "b"], "tags": [["x", "y"], []]})
    pq.write_table(table, tmp_path / "items.parquet")
    assert table_hash(pq.read_table(tmp_path / "items.parquet"), ITEMS) == table_hash(table, ITEMS)


def test_a_folder_of_the_users_and_the_files_of_a_nested_run_are_left_alone(tmp_path: Path) -> None:
    kept = [tmp_path / ".tmp-mine" / "notes", tmp_path / "run" / ".gpu-rag-tmp-run.json", tmp_path / "a.gpu-rag-tmp-b"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    with writer_lock(tmp_path):
        assert all(path.exists() for path in kept)


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"generation": ', "\x00"])
@pytest.mark.parametrize("name", ["CURRENT", "generations", "artifacts"])
def test_json_of_another_shape_is_named(tmp_path: Path, name: str, content: str) -> None:
    publish(tmp_path, ["x"])
    path = {
        "CURRENT": tmp_path / "CURRENT",
        "generations": next((tmp_path / "generations").glob("*.json")),
        "artifacts": next((tmp_path / "artifacts").glob("*/manifest.json")),
    }[name]
    path.write_text(content)
    if name == "artifacts":  # readers go by the generation's manifest; the next index run builds the artifact again
        assert ArtifactStore(tmp_path).find("04_extract", "x") is None
    else:
        with pytest.raises(StoreError, match=path.name):
            open_generation(tmp_path)


def test_a_work_entry_of_another_shape_costs_its_own_rows_only(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(results(a="ok"))
    next(store.folder.glob("*.json")).write_text("[]")
    assert open_store(tmp_path).wanted(["a"], 3) == ["a"]


def test_an_altered_manifest_is_refused_and_the_hash_is_computed_from_the_rows(tmp_path: Path) -> None:
    publish(tmp_path, ["x"])
    generation = open_generation(tmp_path)
    assert generation.recompute_hash({"items": ITEMS}) == generation.content_hash
    path = next((tmp_path / "generations").glob("*.json"))
    path.write_text(path.read_text().replace('"items": 2', '"items": 999'))
    with pytest.raises(StoreError, match="does not match its checksum"):
        open_generation(tmp_path)


def test_an_earlier_generation_opens_by_its_id(tmp_path: Path) -> None:
    publish(tmp_path, ["x"])
    earlier = open_generation(tmp_path)
    publish(tmp_path, ["y"])
    assert open_generation(tmp_path, generation_id=earlier.manifest["id"]).content_hash == earlier.content_hash
