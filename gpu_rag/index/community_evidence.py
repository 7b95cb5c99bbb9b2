"""The evidence of communities: which sentences name their members.

A sentence names an entity where a link of it begins in the sentence, or where an accepted relation of it does. Sentences of
equal text are one piece of evidence with several places, so that what many documents repeat is weighed and shown once.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpu_rag.schemas import STRING
from gpu_rag.stage import Tables

Ints = NDArray[np.int64]
_MAX_PLACES = 8  # of one sentence text that a summary shows; the first ones by document and offset


class Evidence(NamedTuple):
    """Evidence of all communities, community by community, the best first.

    Attributes:
        community: int64 (V,), row of the community, rising.
        text: int64 (V,), row in `texts`.
        texts: Distinct sentence texts, sorted.
        entity_indptr: int64 (V + 1,): evidence v names the entities `entities[entity_indptr[v]:entity_indptr[v + 1]]`.
        entities: int64, rows of canonical entities, rising within a piece of evidence.
    """

    community: Ints
    text: Ints
    texts: pa.Array
    entity_indptr: Ints
    entities: Ints


def collect_evidence(tables: Tables, max_evidence: int) -> Evidence:
    """Return the evidence of each community: sentences that name two members or more, else one, most members first.

    Args:
        tables: `communities, entities, links, relations, sentences`.
        max_evidence: Pieces of evidence per community, at most.
    """
    entity_ids = tables["entities"].column("entity_id").combine_chunks()
    canonical = _rows(tables["entities"].column("canonical_id"), entity_ids)
    texts, text_of = sentence_texts(tables["sentences"])
    sentence, entity = _named(tables, entity_ids)
    pairs = np.unique(text_of[sentence] * max(len(entity_ids), 1) + canonical[entity])
    text, entity = pairs // max(len(entity_ids), 1), pairs % max(len(entity_ids), 1)
    community, member = _members(tables["communities"], entity_ids)
    # Every (entity, text) meets every community of the entity, of which there is one a level.
    order = np.argsort(member, kind="stable")
    begins, ends = (np.searchsorted(member[order], entity, side=side) for side in ("left", "right"))
    counts = ends - begins
    at = np.repeat(begins - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
    found = community[order][at] if len(at) else np.empty(0, np.int64)
    keys = found * max(len(texts), 1) + np.repeat(text, counts)
    entity = np.repeat(entity, counts)
    by_key = np.lexsort((entity, keys))
    keys, entity = keys[by_key], entity[by_key]
    distinct, first, sizes = np.unique(keys, return_index=True, return_counts=True)
    kept = _best(distinct // max(len(texts), 1), distinct % max(len(texts), 1), sizes, max_evidence)
    spans = [entity[first[v] : first[v] + sizes[v]] for v in kept]
    return Evidence(
        community=distinct[kept] // max(len(texts), 1),
        text=distinct[kept] % max(len(texts), 1),
        texts=texts,
        entity_indptr=np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.int64),
        entities=np.concatenate(spans) if spans else np.empty(0, np.int64),
    )


def sentence_texts(sentences: pa.Table) -> tuple[pa.Array, Ints]:
    """Return the distinct texts of sentences, sorted, and the row among them of each sentence."""
    encoded = sentences.column("text").combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy().astype(np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return encoded.dictionary.take(pa.array(order)), rank[encoded.indices.to_numpy().astype(np.int64)]


class Places:
    """Where sentence texts stand."""

    def __init__(self, sentences: pa.Table) -> None:
        """Look up places among these sentences."""
        self._texts, text_of = sentence_texts(sentences)
        starts = sentences.column("start").to_numpy()
        documents = sentences.column("doc_id").combine_chunks().dictionary_encode()
        order_of_doc = pc.rank(documents.dictionary, tiebreaker="dense").to_numpy() if len(documents.dictionary) else starts
        document = order_of_doc[documents.indices.to_numpy()] if len(documents) else starts
        self._order = np.lexsort((starts, document, text_of))
        self._text_of = text_of[self._order]
        self._sentences = sentences.select(["chunk_id", "doc_id", "start", "end"])

    def of(self, text: str) -> list[dict[str, Any]]:
        """Return the first places of a text, by document and offset: `schemas.SPAN`."""
        row = pc.index(self._texts, text).as_py()
        begin, end = (int(np.searchsorted(self._text_of, row, side=side)) for side in ("left", "right"))
        rows: list[dict[str, Any]] = self._sentences.take(
            pa.array(self._order[begin : min(end, begin + _MAX_PLACES)])
        ).to_pylist()
        return rows


def _named(tables: Tables, entity_ids: pa.Array) -> tuple[Ints, Ints]:
    """Return (sentence row, entity row) of every place where a sentence names an entity; a pair may come twice."""
    accepted = tables["relations"].filter(pc.equal(tables["relations"].column("decision"), "accept"))
    links = tables["links"]
    chunk_ids = pc.unique(tables["sentences"].column("chunk_id"))
    chunks = [_rows(table.column("chunk_id"), chunk_ids) for table in (links, accepted)]
    starts = [table.column("start").to_numpy().astype(np.int64) for table in (links, accepted)]
    ends = [_rows(accepted.column(name), entity_ids) for name in ("subject_id", "object_id")]
    entity = np.concatenate([_rows(links.column("entity_id"), entity_ids), *ends])
    sentence = _sentence_at(
        tables["sentences"],
        chunk_ids,
        np.concatenate([chunks[0], *[chunks[1]] * 2]),
        np.concatenate([starts[0], *[starts[1]] * 2]),
    )
    inside = sentence >= 0
    return sentence[inside], entity[inside]


def _sentence_at(sentences: pa.Table, chunk_ids: pa.Array, chunk: Ints, start: Ints) -> Ints:
    """Return the row of the sentence of a chunk that holds an offset, -1 where none does (in a title)."""
    of_chunk = _rows(sentences.column("chunk_id"), chunk_ids)
    starts, ends = (sentences.column(name).to_numpy().astype(np.int64) for name in ("start", "end"))
    if not len(starts):
        return np.full(len(chunk), -1, np.int64)
    order = np.lexsort((starts, of_chunk))
    width = int(max(ends.max(), start.max(initial=0))) + 1
    at = np.searchsorted(of_chunk[order] * width + starts[order], chunk * width + start, side="right") - 1
    found = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (of_chunk[found] == chunk) & (chunk >= 0) & (start < ends[found]), found, -1)


def _members(communities: pa.Table, entity_ids: pa.Array) -> tuple[Ints, Ints]:
    """Return (community row, entity row) of every membership."""
    members = communities.column("members").combine_chunks()
    rows = _rows(members.flatten(), entity_ids)
    return np.repeat(np.arange(len(members)), members.value_lengths().to_numpy()), rows


def _best(community: Ints, text: Ints, num_named: Ints, max_evidence: int) -> Ints:
    """Return which pieces of evidence stay, by community, then most members, then text."""
    joins = np.zeros(int(community.max(initial=-1)) + 1, bool)
    joins[community[num_named > 1]] = True
    usable = np.flatnonzero((num_named > 1) | ~joins[community]) if len(community) else np.empty(0, np.int64)
    order = usable[np.lexsort((text[usable], -num_named[usable], community[usable]))]
    begins = np.searchsorted(community[order], community[order], side="left")
    return order[np.arange(len(order)) - begins < max_evidence]


def _rows(values: pa.ChunkedArray | pa.Array, ids: pa.Array) -> Ints:
    rows = pc.fill_null(pc.index_in(values.cast(STRING), value_set=ids), -1)
    return np.asarray(rows.to_numpy(zero_copy_only=False), dtype=np.int64)
