"""Stage 01, ingest: read a corpus of any supported format into one table.

Input:  a file or folder of the user (`readers.find_corpus` says which).
Output: `schemas.DOCUMENTS`; recorded chunks and extraction where the folder has them; a report of what was read.
Device: CPU.

Ingest is the entry of the pipeline: it turns files, not tables, into a table and reads everything each time, so it
has no `STAGE` and no work cache; the hash of its table is what later stages are keyed by.

Outcomes. Every document gives one row, whatever it looks like:
- without title and text (white space and invisible characters count as nothing): `skipped`, reason "empty";
- same title and text as another: both kept, `duplicate_of` names the smallest id (empty ones aside);
- the same id twice: one row if title, text and labels are the same too (counted as `repeated`), else an error naming
  both;
- lone surrogates become U+FFFD, one for one; all other characters stay, control characters too.
A malformed line is an error that names it: a corpus is the user's to mend, and half of one is not what was asked for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, field_validator

from gpu_rag import schemas
from gpu_rag.errors import InputError
from gpu_rag.ids import content_hash
from gpu_rag.index.readers import CorpusFiles, Format, SourceDocument, find_corpus, read_documents, text_files
from gpu_rag.index.recorded import read_recorded_chunks, read_recorded_extraction
from gpu_rag.schemas import STRING, TEXT, list_of
from gpu_rag.spans import is_blank

_BATCH_ROWS = 1024


class IngestConfig(BaseModel):
    """Format and encoding of the corpus files; `auto` goes by file name."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Format = "auto"
    encoding: str = "utf-8"

    @field_validator("encoding")
    @classmethod
    def _is_a_text_encoding(cls, name: str) -> str:
        try:
            "a".encode(name)
        except (LookupError, UnicodeError) as error:
            raise ValueError(f"no text encoding: {error}") from error
        return name


@dataclass(frozen=True)
class Corpus:
    """What was read.

    Attributes:
        documents: `schemas.DOCUMENTS`.
        recorded_chunks: `schemas.RECORDED_CHUNKS`, empty where there is no chunks.jsonl.
        recorded_extraction: `schemas.RECORDED_EXTRACTION`, empty where there is no openie.jsonl.
        report: Counts; `rows` = `ok` + `skipped` + `repeated`.
    """

    documents: pa.Table
    recorded_chunks: pa.Table
    recorded_extraction: pa.Table
    report: dict[str, int]


def read_corpus(path: Path, config: IngestConfig, limit: int | None = None) -> Corpus:
    """Return the corpus at `path`.

    Args:
        path: File or folder.
        config: Format and encoding.
        limit: Read only the first documents in file order.

    Raises:
        InputError: On anything malformed, naming file and line.
    """
    files = find_corpus(path, config.format)
    documents, report = _collect(islice(read_documents(files, config.encoding), limit))
    if files.format == "folder":
        report["other_files"] = text_files(files.documents)[1]
    return _with_recorded(files, config.encoding, documents, report)


@dataclass
class _Columns:
    """Documents so far: short columns as lists, texts in Arrow batches, so that no text is held twice."""

    ids: list[str] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    blank: list[bool] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    pending: list[SourceDocument] = field(default_factory=list)

    def add(self, document: SourceDocument, content: str) -> None:
        self.ids.append(document.doc_id)
        self.hashes.append(content)
        self.blank.append(is_blank(document.title) and is_blank(document.text))
        self.pending.append(document)
        if len(self.pending) == _BATCH_ROWS:
            self._flush()

    def texts(self) -> pa.Table:
        """Return title, text and labels of all documents, one Arrow chunk each: sorting then copies them only once."""
        self._flush()
        table = pa.Table.from_batches(self.batches)
        self.batches = []
        return table.combine_chunks()

    def _flush(self) -> None:
        arrays = [
            pa.array([document.title for document in self.pending], TEXT),
            pa.array([document.text for document in self.pending], TEXT),
            pa.array([list(document.access) for document in self.pending], list_of(STRING)),
        ]
        self.batches.append(pa.record_batch(arrays, names=["title", "text", "access"]))
        self.pending = []


def _collect(documents: Iterable[SourceDocument]) -> tuple[pa.Table, dict[str, int]]:
    columns = _Columns()
    seen: dict[str, tuple[str, str]] = {}  # id -> hash of the whole document, place
    num_repeated = 0
    for document in documents:
        content = content_hash("document", document.title, document.text)
        whole = content_hash(content, *document.access) if document.access else content
        if document.doc_id in seen:
            known, where = seen[document.doc_id]
            if known != whole:
                message = f"document {document.doc_id} stands at {where} already, with other content"
                raise InputError(f"{document.where}: {message}")
            num_repeated += 1
            continue
        seen[document.doc_id] = (whole, document.where)
        columns.add(document, content)
    texts = columns.texts()
    originals = _originals(columns.ids, columns.hashes, columns.blank)
    table = schemas.DOCUMENTS.build(
        {
            "doc_id": pa.array(columns.ids, STRING),
            **{name: texts.column(name) for name in texts.column_names},
            "duplicate_of": pa.array(originals, STRING),
            "state": pa.array(["skipped" if blank else "ok" for blank in columns.blank], STRING),
            "reason": pa.array(["empty" if blank else "" for blank in columns.blank], STRING),
        }
    )
    num_skipped = sum(columns.blank)
    report = {
        "rows": len(columns.ids) + num_repeated,
        "ok": len(columns.ids) - num_skipped,
        "skipped": num_skipped,
        "repeated": num_repeated,
        "duplicates": len(originals) - originals.count(None),
    }
    return table, report


def mark_duplicates(documents: pa.Table) -> pa.Table:
    """Return `schemas.DOCUMENTS` with `duplicate_of` as it is among these documents."""
    columns = (documents.column(name).to_pylist() for name in ("title", "text"))
    hashes = [content_hash("document", title, text) for title, text in zip(*columns, strict=True)]
    blank = [state == "skipped" for state in documents.column("state").to_pylist()]
    originals = pa.array(_originals(documents.column("doc_id").to_pylist(), hashes, blank), STRING)
    at = documents.schema.get_field_index("duplicate_of")
    return schemas.DOCUMENTS.sort(documents.set_column(at, documents.schema.field(at), originals))


def _originals(ids: Sequence[str], hashes: Sequence[str], blank: Sequence[bool]) -> list[str | None]:
    """Return for each document the smallest id of another one with its content, None if its own is that or it is blank."""
    smallest: dict[str, str] = {}
    for doc_id, content in sorted(zip(ids, hashes, strict=True)):
        smallest.setdefault(content, doc_id)
    return [
        None if empty or smallest[content] == doc_id else smallest[content]
        for doc_id, content, empty in zip(ids, hashes, blank, strict=True)
    ]


def _with_recorded(files: CorpusFiles, encoding: str, documents: pa.Table, report: dict[str, int]) -> Corpus:
    """Return the corpus with what was recorded for its documents; of others nothing is kept, their text is not indexed."""
    chunks, extraction = schemas.RECORDED_CHUNKS.empty(), schemas.RECORDED_EXTRACTION.empty()
    known = set(documents.column("doc_id").to_pylist())
    if files.recorded_chunks is not None:
        chunks = read_recorded_chunks(files.recorded_chunks, encoding)
        parents = chunks.column("doc_id").to_pylist()
        report["recorded_chunks"] = len(parents)
        report["recorded_chunks_without_document"] = sum(parent not in known for parent in parents)
        chunks = _of(chunks, "doc_id", known)
        known.update(chunks.column("chunk_id").to_pylist())
    if files.recorded_extraction is not None:
        extraction, num_left_out = read_recorded_extraction(files.recorded_extraction, encoding)
        items = extraction.column("item_id").to_pylist()
        report["recorded_extraction"] = len(items)
        report["recorded_extraction_without_item"] = sum(item not in known for item in items)
        report["recorded_extraction_left_out"] = num_left_out
        extraction = _of(extraction, "item_id", known)
    return Corpus(documents, chunks, extraction, report)


def _of(table: pa.Table, name: str, values: set[str]) -> pa.Table:
    """Return the rows whose column holds one of the values."""
    return table.filter(pc.is_in(table.column(name), value_set=pa.array(sorted(values), STRING)))
