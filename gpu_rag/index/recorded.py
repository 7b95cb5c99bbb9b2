"""Recorded results beside a corpus: chunks.jsonl (how it was cut) and openie.jsonl (what an LLM extracted from it).

They are looked up by id, so a file that covers more than the corpus does no harm; what it covers in excess is counted
by `s01_ingest`. An LLM's output is taken as it is where it can be: what is no text is left out and counted, not
refused.
"""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpu_rag import schemas
from gpu_rag.records import Record, read_records
from gpu_rag.spans import clean_text, is_blank

_NUMBERS = re.compile(r"(\d{1,18})")


def read_recorded_chunks(path: Path, encoding: str) -> pa.Table:
    """Return `schemas.RECORDED_CHUNKS`: keys `doc_id` (the chunk's own id), `text`, and the parent.

    The parent is `parent_doc_id`, else the id up to its last `#`. Chunks of one parent are ordered by id, numbers in
    it read as numbers, so the order of lines does not matter.

    Raises:
        InputError: On a chunk without a parent, a blank text, or an id that repeats, naming both lines.
    """
    places: dict[str, str] = {}
    by_parent: dict[str, list[tuple[str, str]]] = {}
    for record in read_records(path, encoding):
        chunk_id = _unique_id(record, places)
        if "parent_doc_id" in record.values:
            parent = record.identifier("parent_doc_id")
        else:
            parent, mark, _ = chunk_id.rpartition("#")
            if not mark:
                raise record.error(f"chunk {chunk_id} names no document: no key parent_doc_id, and no # in its id")
        text = record.text("text")
        if is_blank(text):
            raise record.error(f"chunk {chunk_id} has no text")
        by_parent.setdefault(parent, []).append((chunk_id, text))
    rows: list[dict[str, object]] = []
    for parent, chunks in by_parent.items():
        for order, (chunk_id, text) in enumerate(sorted(chunks, key=lambda chunk: (_natural(chunk[0]), chunk[0]))):
            rows.append({"doc_id": parent, "chunk_id": chunk_id, "order": order, "text": text})
    return schemas.RECORDED_CHUNKS.from_rows(rows)


def read_recorded_extraction(path: Path, encoding: str) -> tuple[pa.Table, int]:
    """Return `schemas.RECORDED_EXTRACTION`, and how many entities and triples were left out because a part is no text.

    Numbers are written out. A triple may have any number of parts; which ones make a relation, the extractor decides.

    Raises:
        InputError: If an id repeats, naming both lines, or `entities` or `triples` is no list.
    """
    places: dict[str, str] = {}
    rows: list[dict[str, object]] = []
    num_left_out = 0
    for record in read_records(path, encoding):
        item_id = _unique_id(record, places)
        entities = [_as_text(value) for value in record.items("entities")]
        triples = [_as_texts(value) for value in record.items("triples")]
        kept_entities = [name for name in entities if name is not None]
        kept_triples = [triple for triple in triples if triple is not None]
        num_left_out += len(entities) - len(kept_entities) + len(triples) - len(kept_triples)
        rows.append({"item_id": item_id, "entities": kept_entities, "triples": kept_triples})
    return schemas.RECORDED_EXTRACTION.from_rows(rows), num_left_out


def _unique_id(record: Record, places: dict[str, str]) -> str:
    """Return the record's id, noting its place."""
    identifier = record.identifier("doc_id", "_id")
    if identifier in places:
        raise record.error(f"id {identifier} stands at {places[identifier]} already")
    places[identifier] = record.where
    return identifier


def _natural(identifier: str) -> list[tuple[int, str]]:
    parts = _NUMBERS.split(identifier)
    return [(int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)]


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return clean_text(value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_texts(value: Any) -> list[str] | None:
    parts = [_as_text(part) for part in value] if isinstance(value, list) else [None]
    return None if None in parts else [part for part in parts if part is not None]
