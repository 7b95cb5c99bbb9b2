"""Title links: passages whose text names another passage's title.

A text names a title where a link of an entity stands whose name is the title, with or without a parenthesis at its end.
Titles that are no entity are looked for together with the names of entities, in a scan of their own, so that a longer known
name hides a title within it there too.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gpu_rag.index.coding import Ints, coded, codes_of, distinct_pairs
from gpu_rag.index.links import Names, distinct_rows, find_names
from gpu_rag.names import without_parenthesis
from gpu_rag.schemas import TEXT
from gpu_rag.spans import is_blank, normal_form

_WEIGHT = 4.0


class TitleLinks(NamedTuple):
    """Pairs of rows of chunks, sorted, first < second.

    Attributes:
        first: int64 (P,).
        second: int64 (P,).
        num_places: int64 (P,), places where one of the two names the other's title.
        weight: float64 (P,).
    """

    first: Ints
    second: Ints
    num_places: Ints
    weight: NDArray[np.float64]


class _Titles(NamedTuple):
    """Distinct titles by normal form.

    Attributes:
        surfaces: One title of each of T forms.
        of_chunk: int64 (C,), -1 where a chunk has no title.
        keys: Distinct normal forms that name a title: its own, and that without a parenthesis.
        key_indptr: int64 (K + 1,): key k names the titles `key_titles[key_indptr[k]:key_indptr[k + 1]]`.
        key_titles: int64.
    """

    surfaces: list[str]
    of_chunk: Ints
    keys: pa.Array
    key_indptr: Ints
    key_titles: Ints


def title_links(chunks: pa.Table, entities: pa.Table, names: Names, links: pa.Table, max_pairs: int) -> TitleLinks:
    """Return the links between chunks of different documents.

    A title that a chunk names weighs 4 / (df * passages): the chunks that name it, its own among them, and the chunks that have
    it. Where both ends name the other's title the weights add up.

    Args:
        chunks: `schemas.CHUNKS`, sorted by id.
        entities: `schemas.ENTITIES`, likewise.
        names: Names of entities that are looked for, those that are titles among them.
        links: `schemas.LINKS`.
        max_pairs: A title with more pairs, df * passages, joins none: such a title tells nothing. 0: no title does.
    """
    if not max_pairs:
        none = np.empty(0, np.int64)
        return TitleLinks(none, none, none, np.empty(0, np.float64))
    titles = _titles(chunks)
    title, chunk, count = _namings(chunks, entities, names, links, titles)
    num_titles, num_chunks = len(titles.surfaces), max(chunks.num_rows, 1)
    passages = np.bincount(titles.of_chunk[titles.of_chunk >= 0], minlength=num_titles)
    num_pairs = np.bincount(title, minlength=num_titles) * passages
    telling = num_pairs[title] <= max_pairs
    title, chunk, count = title[telling], chunk[telling], count[telling]
    # Each naming meets each passage that has the title.
    by_title = np.argsort(titles.of_chunk, kind="stable")
    begins = np.searchsorted(titles.of_chunk[by_title], title)
    naming, target = _each(np.arange(len(title)), begins, begins + passages[title], by_title)
    source = chunk[naming]
    document = coded(chunks.column("doc_id")).codes
    apart = document[source] != document[target]
    naming, source, target = naming[apart], source[apart], target[apart]
    pairs, place = np.unique(np.minimum(source, target) * num_chunks + np.maximum(source, target), return_inverse=True)
    return TitleLinks(
        first=pairs // num_chunks,
        second=pairs % num_chunks,
        num_places=np.bincount(place, weights=count[naming], minlength=len(pairs)).astype(np.int64),
        weight=np.bincount(place, weights=_WEIGHT / num_pairs[title[naming]], minlength=len(pairs)).astype(np.float64),
    )


def _titles(chunks: pa.Table) -> _Titles:
    given = coded(chunks.column("title"))
    surfaces = given.values.to_pylist()
    forms = coded(_texts("" if is_blank(title) else normal_form(title) for title in surfaces))
    num_untitled = int(len(forms.values) > 0 and forms.values[0].as_py() == "")
    first_of_form = np.unique(forms.codes, return_index=True)[1][num_untitled:]
    surfaces = [surfaces[row] for row in first_of_form.tolist()]
    keys = coded(
        pa.chunked_array([forms.values[num_untitled:]]), _texts(normal_form(without_parenthesis(title)) for title in surfaces)
    )
    key, title, _ = distinct_pairs(keys.codes, np.tile(np.arange(len(surfaces)), 2), len(surfaces))
    return _Titles(
        surfaces=surfaces,
        of_chunk=forms.codes[given.codes] - num_untitled,
        keys=keys.values,
        key_indptr=np.searchsorted(key, np.arange(len(keys.values) + 1)),
        key_titles=title,
    )


def _namings(chunks: pa.Table, entities: pa.Table, names: Names, links: pa.Table, titles: _Titles) -> tuple[Ints, Ints, Ints]:
    """Return the distinct (title, chunk row) where the chunk's text names the title, and at how many places."""
    key_of_entity = codes_of(entities.column("normal_form"), titles.keys)
    key = key_of_entity[codes_of(links.column("entity_id"), entities.column("entity_id").combine_chunks())]
    link = np.flatnonzero(key >= 0)
    link, title = _each(link, titles.key_indptr[key[link]], titles.key_indptr[key[link] + 1], titles.key_titles)
    chunk = codes_of(links.column("chunk_id"), chunks.column("chunk_id").combine_chunks())[link]
    start = links.column("start").to_numpy()[link]
    known = key_of_entity[key_of_entity >= 0]
    named = _each(known, titles.key_indptr[known], titles.key_indptr[known + 1], titles.key_titles)[1]
    unknown = np.setdiff1d(np.arange(len(titles.surfaces)), named)
    if len(unknown):
        found = find_names(chunks, [*names.surfaces, *(titles.surfaces[row] for row in unknown.tolist())])
        of_title = found.names >= len(names.surfaces)
        title = np.concatenate([title, unknown[found.names[of_title] - len(names.surfaces)]])
        chunk = np.concatenate([chunk, found.chunks[of_title]])
        start = np.concatenate([start, found.starts[of_title]])
    title, chunk, _ = distinct_rows(title, chunk, start)
    return distinct_pairs(title, chunk, chunks.num_rows)


def _each(rows: Ints, begins: Ints, ends: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return each row as often as it has values, and the values: of row i those from begins[i] to ends[i]."""
    sizes = ends - begins
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(rows, sizes), values[np.repeat(begins, sizes) + within]


def _texts(values: Iterable[str]) -> pa.ChunkedArray:
    return pa.chunked_array([list(values)], TEXT)
