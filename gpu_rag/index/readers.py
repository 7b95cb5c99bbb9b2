"""Where a corpus is and what its files mean: which file of a folder, which key is the id, which files are recorded.

Everything comes out as `SourceDocument`, in file order, one at a time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpu_rag.errors import InputError
from gpu_rag.ids import content_hash
from gpu_rag.records import JSONL_SUFFIXES, Record, read_json_list, read_records, read_text
from gpu_rag.spans import clean_text

Format = Literal["auto", "jsonl", "parquet", "folder", "beir", "hipporag"]

_CORPUS_FILES = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.parquet", "corpus.json")
_MARKDOWN_SUFFIXES = (".md", ".markdown")
_TEXT_SUFFIXES = (".txt", *_MARKDOWN_SUFFIXES)
_HEADING = re.compile(r"\s{0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """One document as the user wrote it; `where` is its place for error messages."""

    where: str
    doc_id: str
    title: str
    text: str
    access: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus: `documents` is one file or, for a tree of text files, the folder."""

    format: Format
    documents: Path
    recorded_chunks: Path | None
    recorded_extraction: Path | None


def find_corpus(path: Path, wanted: Format) -> CorpusFiles:
    """Return the files of the corpus at `path`.

    Of a folder, corpus.jsonl, corpus.parquet or corpus.json is the corpus, and chunks.jsonl and openie.jsonl beside
    it are recorded results; a folder without one is a tree of text files. Of a file, nothing beside it is read.

    Raises:
        InputError: If there is nothing, if it is ambiguous, or if it is not of the format the config names.
    """
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: is neither a file nor a folder")
    if path.is_file():
        return CorpusFiles(_file_format(path, wanted), path, None, None)
    found = [path / name for name in _CORPUS_FILES if (path / name).is_file()]
    if wanted == "folder" or (wanted == "auto" and not found):
        return CorpusFiles("folder", path, None, None)
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise InputError(f"{path}: expected one of {', '.join(_CORPUS_FILES)}, found {names}")
    recorded = [path / name for name in ("chunks.jsonl", "openie.jsonl")]
    chunks, extraction = (file if file.is_file() else None for file in recorded)
    return CorpusFiles(_file_format(found[0], wanted), found[0], chunks, extraction)


def read_documents(files: CorpusFiles, encoding: str) -> Iterator[SourceDocument]:
    """Return the documents in file order, files of a tree in order of their paths."""
    if files.format == "folder":
        return _read_tree(files.documents, encoding)
    if files.format == "hipporag":
        return (_from_hipporag(record) for record in read_json_list(files.documents, encoding))
    return (_from_record(record) for record in read_records(files.documents, encoding))


def text_files(folder: Path) -> tuple[list[Path], int]:
    """Return the text and Markdown files below `folder`, sorted, and the number of other files; hidden ones aside."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    texts = [file for file in files if file.suffix.lower() in _TEXT_SUFFIXES]
    return texts, len(files) - len(texts)


def _file_format(path: Path, wanted: Format) -> Format:
    name = path.name.lower()
    actual: Format
    if name.endswith(JSONL_SUFFIXES):
        actual = "beir" if wanted == "beir" else "jsonl"
    elif name.endswith(".parquet"):
        actual = "parquet"
    elif name.endswith(".json"):
        actual = "hipporag"
    else:
        known = ", ".join((*JSONL_SUFFIXES, ".parquet", ".json"))
        raise InputError(f"{path}: unknown file type, expected {known} or a folder")
    if wanted not in ("auto", actual):
        raise InputError(f"{path}: looks like {actual}, but ingest.format is {wanted}")
    return actual


def _from_record(record: Record) -> SourceDocument:
    return SourceDocument(
        record.where,
        record.identifier("doc_id", "_id"),
        record.optional_text("title") or "",
        record.text("text"),
        tuple(sorted(set(record.texts("access")))),
    )


def _from_hipporag(record: Record) -> SourceDocument:
    """Return a passage of HippoRAG's list; without `idx` its id is the hash of title and text, never its place."""
    title, text = record.optional_text("title") or "", record.text("text")
    doc_id = record.identifier("idx") if record.values.get("idx") is not None else content_hash("document", title, text)
    return SourceDocument(record.where, doc_id, title, text)


def _read_tree(folder: Path, encoding: str) -> Iterator[SourceDocument]:
    files, num_others = text_files(folder)
    if not files:  # an unmounted folder would replace a good index by an empty one
        raise InputError(f"{folder}: holds no {', '.join(_TEXT_SUFFIXES)} file, only {num_others} others")
    for file in files:
        text = clean_text(read_text(file, encoding))
        title = _first_heading(text) if file.suffix.lower() in _MARKDOWN_SUFFIXES else ""
        yield SourceDocument(str(file), clean_text(file.relative_to(folder).as_posix()), title, text)


def _first_heading(text: str) -> str:
    """Return the text of the first `#` heading outside a code fence, or nothing."""
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and (match := _HEADING.match(line)):
            return match.group(1)
    return ""
