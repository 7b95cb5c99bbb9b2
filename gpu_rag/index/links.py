"""Name linking: where the known names stand in the whole corpus."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.index.coding import Ints, codes_of
from gpu_rag.index.entities import NormalForms
from gpu_rag.names import Gazetteer, without_parenthesis

_CHUNKS_AT_ONCE = 4096  # whose texts are held beside the table


class Names(NamedTuple):
    """Names that are looked for: `surfaces[i]` names the entity in row `entities[i]`."""

    entities: Ints
    surfaces: list[str]


class Places(NamedTuple):
    """Where names stand, chunk by chunk in reading order: rows of chunks, offsets in the source text, and which name."""

    chunks: Ints
    starts: Ints
    ends: Ints
    names: Ints


def known_names(chunks: pa.Table, entities: pa.Table) -> Names:
    """Return the names that are looked for in every chunk.

    They are those of the entities that are titles, the names of two or more words, and the one-word names of two or more
    chunks: a single word that one chunk alone has is as often a capitalised common word as a name.
    """
    forms = NormalForms()
    titles = pc.unique(chunks.column("title")).to_pylist()
    titled = {forms[form] for title in titles for form in (title, without_parenthesis(title))}
    columns = (entities.column(name).to_pylist() for name in ("normal_form", "names", "num_chunks"))
    rows: list[int] = []
    surfaces: list[str] = []
    for row, (form, names, num_chunks) in enumerate(zip(*columns, strict=True)):
        if form in titled or num_chunks > 1 or len(form.split()) > 1:
            rows += [row] * len(names)
            surfaces += names
    return Names(np.array(rows, np.int64), surfaces)


def find_names(chunks: pa.Table, names: Sequence[str]) -> Places:
    """Return every place of a chunk's text that the gazetteer of the names finds."""
    gazetteer = Gazetteer(names)
    rows, starts, ends, found = array("q"), array("q"), array("q"), array("q")
    for begin in range(0, chunks.num_rows, _CHUNKS_AT_ONCE):
        part = chunks.slice(begin, _CHUNKS_AT_ONCE)
        columns = (part.column("start").to_pylist(), part.column("text").to_pylist())
        for row, (shift, text) in enumerate(zip(*columns, strict=True), start=begin):
            for start, end, name in gazetteer.find(text):
                rows.append(row)
                starts.append(shift + start)
                ends.append(shift + end)
                found.append(name)
    return Places(
        *(np.frombuffer(column, np.int64) if column else np.empty(0, np.int64) for column in (rows, starts, ends, found))
    )


def link_table(chunks: pa.Table, entities: pa.Table, mentions: pa.Table, names: Names, places: Places) -> pa.Table:
    """Return `schemas.LINKS`: every place of an entity's name that was found, and every accepted mention, once each."""
    accepted = mentions.filter(pc.equal(mentions.column("decision"), "accept"))
    entity_ids, chunk_ids = (
        table.column(f"{of}_id").combine_chunks() for table, of in ((entities, "entity"), (chunks, "chunk"))
    )
    columns = (
        np.concatenate([names.entities[places.names], codes_of(accepted.column("entity_id"), entity_ids)]),
        np.concatenate([places.chunks, codes_of(accepted.column("chunk_id"), chunk_ids)]),
        np.concatenate([places.starts, np.asarray(accepted.column("start").to_numpy(), np.int64)]),
        np.concatenate([places.ends, np.asarray(accepted.column("end").to_numpy(), np.int64)]),
    )
    entity, chunk, start, end = distinct_rows(*columns)
    return schemas.LINKS.build(
        {
            "entity_id": entity_ids.take(pa.array(entity)),
            "chunk_id": chunk_ids.take(pa.array(chunk)),
            "doc_id": chunks.column("doc_id").take(pa.array(chunk)),
            "start": pa.array(start),
            "end": pa.array(end),
        }
    )


def distinct_rows(*columns: Ints) -> tuple[Ints, ...]:
    """Return the distinct rows, sorted by the columns."""
    order = np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    first = np.ones(len(order), bool)
    if len(order):
        first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in ordered])
    return tuple(column[first] for column in ordered)
