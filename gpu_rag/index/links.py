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
_HALF, _LOW = 32, 2**32 - 1  # of a packed pair


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
    """Return `schemas.LINKS`: every place of an entity's name that was found, and every accepted mention, once each.

    Entities and chunks come sorted by id.
    """
    entity_ids, chunk_ids = entities.column("entity_id").combine_chunks(), chunks.column("chunk_id").combine_chunks()
    accepted = np.asarray(pc.equal(mentions.column("decision"), "accept"), bool)
    owners = codes_of(mentions.column("entity_id"), entity_ids), codes_of(mentions.column("chunk_id"), chunk_ids)
    spans = (np.asarray(pc.fill_null(mentions.column(name), 0).to_numpy(), np.int64) for name in ("start", "end"))
    owner, span = distinct_rows(
        np.concatenate([_packed(names.entities[places.names], places.chunks), _packed(*owners)[accepted]]),
        np.concatenate([_packed(places.starts, places.ends), _packed(*spans)[accepted]]),
    )
    entity, chunk = pa.array(owner >> _HALF), pa.array(owner & _LOW)
    columns = [entity_ids.take(entity), chunk_ids.take(chunk), chunks.column("doc_id").combine_chunks().take(chunk)]
    return pa.table([*columns, pa.array(span >> _HALF), pa.array(span & _LOW)], schema=schemas.LINKS.schema)


def distinct_rows(*columns: Ints) -> tuple[Ints, ...]:
    """Return the distinct rows, sorted by the columns."""
    order = np.lexsort(columns[::-1])
    first = np.ones(len(order), bool)
    first[1:] = False
    for column in columns:
        ordered = column[order]
        first[1:] |= ordered[1:] != ordered[:-1]
    order = order[first]
    return tuple(column[order] for column in columns)


def _packed(high: Ints, low: Ints) -> Ints:
    """Return two numbers below 2**31 as one: half the memory and time of two columns to sort."""
    return high << _HALF | low
