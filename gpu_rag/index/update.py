"""Updates: documents added, changed and deleted, as another build over all documents there are then.

The documents of the current generation, less those that are deleted, plus those that come: what an index of the same corpus
built from nothing would read. The build finds the work of unchanged documents done, so update equals rebuild because there is
no second way to build, and costs what changed.

`purge_documents` goes further than a deletion: it also removes the generations that hold a document, and all work that the
generations left were not made from, since that is where the document's text still stands.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.config import Config
from gpu_rag.engines.workers import WorkerPool
from gpu_rag.errors import InputError, StoreError
from gpu_rag.ids import content_hash
from gpu_rag.index.build import RECORDED, IndexResult, build_generation
from gpu_rag.index.s01_ingest import Corpus, mark_duplicates, read_corpus
from gpu_rag.spans import is_blank
from gpu_rag.stage_report import Progress
from gpu_rag.store import (
    Cleaned,
    Generation,
    history,
    open_generation,
    read_json,
    read_manifest,
    remove_generations,
    remove_unnamed_artifacts,
    remove_unneeded_work,
    write_json,
    writer_lock,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateResult:
    """A generation made from an earlier one, and how their documents differ.

    Attributes:
        index: The new generation and its stages.
        previous: Id of the generation before.
        added: Documents that are new.
        changed: Documents whose title, text or labels differ.
        deleted: Documents that are gone.
        unknown: Ids to delete that were not there.
    """

    index: IndexResult
    previous: str
    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    unknown: tuple[str, ...]

    def summary(self) -> str:
        """Return one line about the documents."""
        counts = {"added": self.added, "changed": self.changed, "deleted": self.deleted}
        text = ", ".join(f"{len(ids)} {name}" for name, ids in counts.items())
        return text + (f", {len(self.unknown)} to delete were not there" if self.unknown else "")


@dataclass(frozen=True)
class PurgeResult:
    """What a purge did.

    Attributes:
        update: The update that took the documents out, None if they were out already.
        cleaned: What was removed.
        unknown: Ids that stood in no generation.
    """

    update: UpdateResult | None
    cleaned: Cleaned
    unknown: tuple[str, ...]


def read_ids(path: Path) -> list[str]:
    """Return the document ids of a file, one a line; blank lines are none.

    An id is the whole line, with blanks at its ends and odd separators in it: a near one may be that of another document.

    Raises:
        InputError: If the file cannot be read as UTF-8, with or without a byte order mark.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return sorted({line for line in lines if not is_blank(line)})


def update_index(
    corpus: Path | None,
    index: Path,
    config: Config,
    *,
    delete: Collection[str] = (),
    progress: Progress,
    address: str | None = None,
    limit: int | None = None,
    retry_listed: bool = False,
) -> UpdateResult:
    """Add, change and delete documents of an index and publish the next generation.

    Args:
        corpus: Added and changed documents, None if there are none. A document whose id is known takes the place of the old
            one, and of what was recorded for it.
        index: INDEX folder with a published generation.
        config: As `build_index`; the generation's own unless something is to change.
        delete: Ids of documents to take out.
        progress: As `build_index`.
        address: As `build_index`.
        limit: Read only the first documents of `corpus`.
        retry_listed: As `build_index`.

    Raises:
        InputError: On a malformed corpus, or a document that is to be both changed and deleted.
        StoreError: If nothing is published there, it is damaged, or another process writes it.
    """
    with writer_lock(index):
        return update_locked(
            corpus, index, config,
            delete=delete, progress=progress, address=address, limit=limit, retry_listed=retry_listed,
        )  # fmt: skip


def update_locked(
    corpus: Path | None,
    index: Path,
    config: Config,
    *,
    delete: Collection[str] = (),
    progress: Progress,
    address: str | None = None,
    limit: int | None = None,
    retry_listed: bool = False,
    pool: WorkerPool | None = None,
) -> UpdateResult:
    """Do what `update_index` does for a caller who holds the writer lock of `index`, and may have workers (`index_pool`)."""
    previous = open_generation(index)
    coming = read_corpus(corpus, config.ingest, limit) if corpus is not None else _nothing()
    earlier = corpus_of(previous)
    known = _digests(earlier.documents)
    new = _digests(coming.documents)
    unwanted = set(delete)
    if both := sorted(unwanted & new.keys()):
        raise InputError(f"document {both[0]} is to be deleted and stands in {corpus}; it can only be one of the two")
    unknown = tuple(sorted(unwanted - known.keys()))
    if unknown:
        _log.warning("%d documents to delete are not in the index, first %s", len(unknown), unknown[0])
    result = build_generation(
        _merged(earlier, coming, unwanted), index, config,
        progress=progress, address=address, retry_listed=retry_listed, pool=pool,
    )  # fmt: skip
    return UpdateResult(
        index=result,
        previous=previous.id,
        added=tuple(sorted(new.keys() - known.keys())),
        changed=tuple(sorted(doc_id for doc_id in new.keys() & known.keys() if new[doc_id] != known[doc_id])),
        deleted=tuple(sorted(unwanted & known.keys())),
        unknown=unknown,
    )


def purge_documents(
    index: Path, doc_ids: Collection[str], config: Config, *, progress: Progress, address: str | None = None
) -> PurgeResult:
    """Remove documents and every trace of them: from the current generation, from older ones, and from the work cache.

    Older generations that hold one of them are removed whole. The work cache keeps what the remaining generations were made
    from: work of trials under other configs may hold the text, and goes.

    Args:
        index: INDEX folder.
        doc_ids: Documents; those that are nowhere are passed over.
        config: As `update_index`.
        progress: As `update_index`.
        address: As `update_index`.

    Raises:
        StoreError: If a generation that holds one of them is open in another process: then it and what it needs stay, all
            else is done, and the same call finishes it later.
    """
    unwanted = set(doc_ids)
    with writer_lock(index):
        current = open_generation(index, verify=False)
        held = {known: unwanted & _doc_ids(_generation(index, known)) for known in history(index)}
        update = None
        if held[current.id]:
            update = update_locked(None, index, config, delete=held[current.id], progress=progress, address=address)
            current = update.index.generation
        holding = [known for known, doc_ids in held.items() if doc_ids]
        removed, in_use = remove_generations(index, holding)
        artifacts, freed = remove_unnamed_artifacts(index)
        rows, freed_work = remove_unneeded_work(index)
        _forget_reports(index, current)
        if in_use:
            raise StoreError(
                f"generations {', '.join(in_use)} of {index} hold purged documents and are open in another process; "
                "all else is purged, run the same command again when it has ended"
            )
    unknown = tuple(sorted(unwanted.difference(*held.values())))
    return PurgeResult(update, Cleaned(tuple(removed), (), artifacts, rows, freed + freed_work), unknown)


def corpus_of(generation: Generation) -> Corpus:
    """Return the corpus that a generation was made from."""
    recorded = generation.artifact(RECORDED)
    return _corpus(
        generation.read(schemas.DOCUMENTS),
        recorded.read(schemas.RECORDED_CHUNKS),
        recorded.read(schemas.RECORDED_EXTRACTION),
        {"repeated": 0},
    )


def _merged(earlier: Corpus, coming: Corpus, delete: set[str]) -> Corpus:
    """Return the corpus as it is after the update; whatever was recorded for a document goes with it."""
    replaced = pa.array(sorted(delete.union(coming.documents.column("doc_id").to_pylist())), schemas.STRING)
    documents = _without(earlier.documents, "doc_id", replaced)
    chunks = _without(earlier.recorded_chunks, "doc_id", replaced)
    of_replaced = _without(earlier.recorded_chunks, "chunk_id", chunks.column("chunk_id")).column("chunk_id")
    extraction = earlier.recorded_extraction
    for items in (replaced, of_replaced, coming.recorded_extraction.column("item_id")):
        extraction = _without(extraction, "item_id", items)
    return _corpus(
        mark_duplicates(pa.concat_tables([documents, coming.documents])),
        schemas.RECORDED_CHUNKS.sort(pa.concat_tables([chunks, coming.recorded_chunks])),
        schemas.RECORDED_EXTRACTION.sort(pa.concat_tables([extraction, coming.recorded_extraction])),
        coming.report,
    )


def _corpus(documents: pa.Table, chunks: pa.Table, extraction: pa.Table, report: dict[str, int]) -> Corpus:
    rows = documents.num_rows
    num_skipped = documents.column("state").to_pylist().count("skipped")
    counts = {"rows": rows, "ok": rows - num_skipped, "skipped": num_skipped}
    return Corpus(documents, chunks, extraction, report | counts)


def _without(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return table.filter(pc.invert(pc.is_in(table.column(name), value_set=values)))


def _digests(documents: pa.Table) -> dict[str, str]:
    """Return the hash of each document's title, text and labels, by its id."""
    columns = (documents.column(name) for name in ("doc_id", "title", "text", "access"))
    rows = zip(*columns, strict=True)  # scalars, so that one text at a time becomes a Python string
    return {
        doc_id.as_py(): content_hash("document", title.as_py(), text.as_py(), *access.as_py())
        for doc_id, title, text, access in rows
    }


def _nothing() -> Corpus:
    empty = (schemas.DOCUMENTS.empty(), schemas.RECORDED_CHUNKS.empty(), schemas.RECORDED_EXTRACTION.empty())
    return Corpus(*empty, {"repeated": 0})


def _generation(index: Path, generation_id: str) -> Generation:
    return Generation(index, read_manifest(index, generation_id))


def _doc_ids(generation: Generation) -> set[str]:
    return set(generation.read(schemas.DOCUMENTS, ["doc_id"]).column("doc_id").to_pylist())


def _forget_reports(index: Path, current: Generation) -> None:
    """Remove the rows that an earlier run listed by name; the counts stay."""
    (index / "unfinished.jsonl").unlink(missing_ok=True)
    report = read_json(index / "report.json") if (index / "report.json").exists() else {}
    if report.get("generation") != current.id:
        stages = [stage | {"listed": []} for stage in report.get("stages", ())]
        write_json(index / "report.json", report | {"stages": stages})
