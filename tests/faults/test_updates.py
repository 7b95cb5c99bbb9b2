"""Updates, deletions, purges and old generations: what nightly runs lean on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from gpu_rag import schemas
from gpu_rag.cli import main
from gpu_rag.config import load_config
from gpu_rag.errors import InputError, StoreError
from gpu_rag.index.update import PurgeResult, UpdateResult, purge_documents, read_ids, update_index
from gpu_rag.schemas import TABLES
from gpu_rag.store import collect_garbage, history, open_generation, writer_lock
from tests.faults.conftest import DOCUMENTS, QUESTIONS, Job, Row

OBELISK: Row = {
    "doc_id": "obelisk",
    "title": "Zandrine Obelisk",
    "text": "The Zandrine Obelisk stands in Pell. Quorra Blythe raised it in 1844.",
}
VILLAGE: Row = {**next(row for row in DOCUMENTS if row["doc_id"] == "village"), "text": "Pell is a town. Its fair is in May."}


def update(job: Job, coming: list[Row] | None = None, delete: tuple[str, ...] = (), *settings: str) -> UpdateResult:
    corpus = job.write("coming.jsonl", coming) if coming is not None else None
    job.computed.clear()
    return update_index(corpus, job.root, config_of(job, *settings), delete=delete, progress=job)


def config_of(job: Job, *settings: str) -> object:
    return load_config(settings=("run.num_workers=1", *settings), base=job.generation().manifest["config"])


def purge(job: Job, *doc_ids: str) -> PurgeResult:
    job.computed.clear()
    return purge_documents(job.root, doc_ids, config_of(job), progress=job)


def rebuilt(job: Job, documents: list[Row], *settings: str) -> str:
    """The content hash of an index of these documents that is built from nothing."""
    fresh = Job(job.folder / "fresh")
    fresh.index(documents, *settings)
    return fresh.hash()


def all_strings(root: Path) -> Iterator[tuple[Path, str]]:
    """Every string in every file below a folder."""
    for path in sorted(root.rglob("*")):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            for column in table.columns:
                for value in _strings(column.combine_chunks()):
                    yield path, value
        elif path.is_file():
            yield path, path.read_bytes().decode("latin-1")


def _strings(array: pa.Array) -> Iterator[str]:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        yield from (value for value in array.to_pylist() if value)
    elif pa.types.is_list(array.type):
        yield from _strings(array.flatten())
    elif pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _strings(pc.struct_field(array, [index]))


def holding(root: Path, text: str) -> list[Path]:
    return [path for path, value in all_strings(root) if text.casefold() in value.casefold()]


@pytest.fixture
def job(copied: Job) -> Job:
    """A published index over `DOCUMENTS`."""
    return copied


def test_an_added_document_gives_what_a_rebuild_gives_and_costs_only_itself(job: Job) -> None:
    result = update(job, [OBELISK])
    assert (result.added, result.changed, result.deleted) == (("obelisk",), (), ())
    assert job.computed["03_chunk"] == job.computed["04_extract"] == 1
    assert job.hash() == rebuilt(job, [*DOCUMENTS, OBELISK])


def test_a_changed_document_leaves_nothing_of_the_old_one_in_the_new_generation(job: Job) -> None:
    result = update(job, [VILLAGE])
    assert result.changed == ("village",)
    assert job.computed["04_extract"] == 1
    texts = job.generation().read(schemas.CHUNKS).column("text").to_pylist()
    assert not any("300 people" in text for text in texts)
    assert job.hash() == rebuilt(job, [VILLAGE if row["doc_id"] == "village" else row for row in DOCUMENTS])
    job.answer(QUESTIONS, run="after")
    assert not any("300 people" in c["quote"] for row in job.answers("after").values() for c in row["citations"])


def test_only_deletions_nothing_at_all_and_unknown_ids_all_succeed(job: Job) -> None:
    before = job.hash()
    assert update(job).deleted == ()
    assert job.hash() == before
    assert job.recomputed() == {}
    assert update(job, None, ("never-there",)).unknown == ("never-there",)
    assert job.hash() == before
    assert update(job, None, ("bridge", "paper")).deleted == ("bridge", "paper")
    assert job.computed["04_extract"] == job.computed["05_embed"] == 0  # a hundred deletions are one build
    rest = [row for row in DOCUMENTS if row["doc_id"] not in ("bridge", "paper")]
    assert job.hash() == rebuilt(job, rest)


def test_a_deleted_document_leaves_no_trace_in_the_new_generation(job: Job) -> None:
    update(job, [OBELISK])
    update(job, None, ("obelisk",))
    generation = job.generation()
    names = {path.name for artifact in generation.manifest["artifacts"].values() for path in
             (job.root / "artifacts" / artifact["folder"]).rglob("*.parquet")}  # fmt: skip
    assert names >= {"chunks.parquet", "entities.parquet", "mentions.parquet", "edges.parquet"}
    for entry in generation.manifest["artifacts"].values():
        assert holding(job.root / "artifacts" / entry["folder"], "Zandrine") == []
        assert holding(job.root / "artifacts" / entry["folder"], "Quorra") == []
    assert holding(job.root, "Zandrine") != []  # the generation before still has it


def test_a_purged_document_leaves_no_trace_anywhere(job: Job) -> None:
    before = job.hash()
    update(job, [OBELISK])
    job.index([*DOCUMENTS, OBELISK], "chunk.preset=words-500-200")  # a trial under another config
    job.index([*DOCUMENTS, OBELISK])
    update(job, None, ("obelisk",))
    assert job.hash() == before
    result = purge(job, "obelisk")
    assert result.update is None
    assert len(result.cleaned.generations) == 2
    assert result.cleaned.work_rows > 0
    for word in ("Zandrine", "Quorra", "obelisk"):
        assert holding(job.root, word) == []
    assert open_generation(job.root).content_hash == before
    update(job)
    assert job.recomputed() == {}  # the work of what is left is still there
    assert job.hash() == before


def test_purging_a_document_that_is_still_there_takes_it_out_first(job: Job) -> None:
    before = job.hash()
    update(job, [OBELISK])
    result = purge(job, "obelisk", "never-there")
    assert result.update is not None
    assert result.update.deleted == ("obelisk",)
    assert holding(job.root, "Zandrine") == []
    assert job.hash() == before


def test_rows_of_a_run_that_was_killed_before_it_listed_them_are_purged_too(job: Job) -> None:
    update(job, [OBELISK])
    for shard in holding(job.root / "work" / "04_extract", "Zandrine"):
        shard.with_suffix(".json").unlink(missing_ok=True)  # as a kill between a shard and its entry leaves it
    assert holding(job.root / "work" / "04_extract", "Zandrine") != []
    purge(job, "obelisk")
    assert holding(job.root, "Zandrine") == []
    update(job)
    assert job.recomputed() == {}  # listed rows of documents that stay are kept


def test_a_purge_says_which_ids_stood_nowhere(job: Job) -> None:
    update(job, [OBELISK])
    assert purge(job, "obelisk", "never-there").unknown == ("never-there",)
    assert purge(job, "obelisk").unknown == ("obelisk",)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("\ufeffriver\r\n\r\nmount\r\n".encode(), ["mount", "river"]),  # as Windows writes it
        (b"river\n \n river\n", [" river", "river"]),  # two documents
        ("a\u2028b\n\n".encode(), ["a\u2028b"]),
    ],
)
def test_ids_to_delete_are_whole_lines(tmp_path: Path, content: bytes, ids: list[str]) -> None:
    path = tmp_path / "gone.txt"
    path.write_bytes(content)
    assert read_ids(path) == ids


def test_a_text_that_another_document_has_too_survives_the_purge_of_one(job: Job) -> None:
    twin = {**OBELISK, "doc_id": "twin"}
    update(job, [OBELISK, twin])
    purge(job, "obelisk")
    documents = job.generation().read(schemas.DOCUMENTS).to_pylist()
    assert [row["duplicate_of"] for row in documents if row["doc_id"] == "twin"] == [None]
    assert any("Zandrine" in text for text in job.generation().read(schemas.CHUNKS).column("text").to_pylist())
    update(job)
    assert job.recomputed() == {}


def test_a_purge_under_a_reader_does_all_else_and_is_finished_by_the_next_one(job: Job) -> None:
    update(job, [OBELISK])
    reader = open_generation(job.root)
    with pytest.raises(StoreError, match=rf"{reader.id}.*open in another process"):
        purge(job, "obelisk")
    reader.verify()  # nothing was taken from under it
    assert "obelisk" in reader.read(schemas.DOCUMENTS).column("doc_id").to_pylist()
    assert reader.hold is not None
    reader.hold.close()
    purge(job, "obelisk")
    assert holding(job.root, "Zandrine") == []


def test_old_generations_are_kept_by_count_and_never_removed_under_a_reader(job: Job) -> None:
    ids = [job.generation().id]
    for number in range(3):
        update(job, [{**OBELISK, "text": f"The Zandrine Obelisk is {number} metres high."}])
        ids.append(job.generation().id)
    assert history(job.root) == ids
    reader = open_generation(job.root, generation_id=ids[0])
    with writer_lock(job.root):
        cleaned = collect_garbage(job.root, keep=2)
    assert (cleaned.generations, cleaned.in_use) == ((ids[1],), (ids[0],))
    reader.verify()
    assert reader.hold is not None
    reader.hold.close()
    with writer_lock(job.root):
        cleaned = collect_garbage(job.root, keep=2)
    assert cleaned.generations == (ids[0],)
    assert history(job.root) == ids[2:]
    for known in ids[2:]:
        assert open_generation(job.root, generation_id=known).recompute_hash(TABLES)
    with pytest.raises(StoreError, match=ids[0]):
        open_generation(job.root, generation_id=ids[0])


def test_going_back_to_an_earlier_corpus_makes_its_generation_the_last(job: Job) -> None:
    first = job.generation().id
    update(job, [OBELISK])
    second = job.generation().id
    update(job, None, ("obelisk",))
    assert job.generation().id == first
    assert history(job.root) == [second, first]
    with writer_lock(job.root):
        assert collect_garbage(job.root, keep=1).generations == (second,)


def test_garbage_collection_keeps_work_unless_told_otherwise(job: Job) -> None:
    update(job, [OBELISK])
    update(job, None, ("obelisk",))
    with writer_lock(job.root):
        assert collect_garbage(job.root, keep=1).work_rows == 0
    update(job, [OBELISK])
    assert job.computed["04_extract"] == 0
    update(job, None, ("obelisk",))
    with writer_lock(job.root):
        assert collect_garbage(job.root, keep=1, work=True).work_rows > 0
    update(job, [OBELISK])
    assert job.computed["04_extract"] == 1


def test_what_was_recorded_goes_with_its_document(new_job: Callable[[], Job], folder_corpus: Callable[..., Path]) -> None:
    job = new_job()
    recorded = {"river": [["Sall", "rises at", "Mount Verrin"]], "village": [["Pell", "holds", "fair"]]}
    job.index(folder_corpus("first", DOCUMENTS, recorded), "extract.methods=[recorded]")
    changed = folder_corpus("second", [VILLAGE], {"village": [["Pell", "is", "town"]]})
    update_index(changed, job.root, config_of(job), delete=("bridge",), progress=job)
    fresh = new_job()
    documents = [VILLAGE if row["doc_id"] == "village" else row for row in DOCUMENTS if row["doc_id"] != "bridge"]
    both = recorded | {"village": [["Pell", "is", "town"]]}
    fresh.index(folder_corpus("all", documents, both), "extract.methods=[recorded]")
    assert job.hash() == fresh.hash()
    update_index(changed, job.root, config_of(job), delete=("river",), progress=job)
    facts = job.generation().read(schemas.FACTS).column("text").to_pylist()
    assert facts == ["('pell', 'is', 'town')"]


def test_what_was_recorded_for_documents_that_are_not_indexed_is_kept_nowhere(
    job: Job, folder_corpus: Callable[..., Path]
) -> None:
    recorded = {"river": [["Sall", "rises at", "Mount Verrin"]], "obelisk": [["Quorra Blythe", "raised", "Zandrine Obelisk"]]}
    update_index(folder_corpus("more", DOCUMENTS, recorded), job.root, config_of(job), progress=job)
    assert holding(job.root, "rises at") != []
    assert holding(job.root, "Zandrine") == []


def test_a_document_is_not_changed_and_deleted_at_once(job: Job) -> None:
    before = job.hash()
    with pytest.raises(InputError, match="village"):
        update(job, [VILLAGE], ("village",))
    assert job.hash() == before


def test_garbage_collection_of_a_wrong_path_leaves_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gc", str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert not (tmp_path / "nowhere").exists()


def test_two_runs_at_once_exclude_each_other(job: Job) -> None:
    with writer_lock(job.root), pytest.raises(StoreError, match="is being written by process"):
        update(job, [OBELISK])


def test_nothing_is_updated_where_nothing_is_published(new_job: Callable[[], Job]) -> None:
    job = new_job()
    job.root.mkdir()
    with pytest.raises(StoreError, match="gpu-rag index"):
        update_index(None, job.root, load_config(), progress=job)


def test_a_run_that_ends_before_it_publishes_leaves_the_generation_before(job: Job) -> None:
    before = job.hash()
    for label in ("04_extract", "06_govern", "07_graph", "10_publish"):
        job.stop_before = label
        with pytest.raises(KeyboardInterrupt):
            update(job, [OBELISK], ("bridge",))
        assert open_generation(job.root).content_hash == before
    job.stop_before = ""
    update(job, [OBELISK], ("bridge",))
    assert job.hash() == rebuilt(job, [*(row for row in DOCUMENTS if row["doc_id"] != "bridge"), OBELISK])


@pytest.fixture
def folder_corpus(tmp_path: Path) -> Callable[..., Path]:
    """(name, documents, doc id -> triples) -> a folder with corpus.jsonl and openie.jsonl."""
    import json

    def write(name: str, documents: list[Row], triples: dict[str, list[list[str]]]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents), encoding="utf-8")
        entries = [
            {"doc_id": doc_id, "entities": sorted({end for s, _, o in found for end in (s, o)}), "triples": found}
            for doc_id, found in triples.items()
        ]
        (folder / "openie.jsonl").write_text("".join(json.dumps(row) + "\n" for row in entries), encoding="utf-8")
        return folder

    return write


def test_an_index_of_no_documents_is_a_normal_case_and_grows(new_job: Callable[[], Job]) -> None:
    job = new_job()
    job.index([])
    assert job.generation().read(schemas.DOCUMENTS).num_rows == 0
    update(job, DOCUMENTS)
    assert job.hash() == rebuilt(job, DOCUMENTS)
    update(job, None, tuple(str(row["doc_id"]) for row in DOCUMENTS))
    assert job.generation().read(schemas.CHUNKS).num_rows == 0
