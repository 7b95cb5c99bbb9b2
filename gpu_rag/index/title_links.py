"""Title links: passages whose text names another passage's title.

The places are those of the scan that makes the links of entities, so that a longer known name hides a title within it. Titles
that are no entity are looked for together with the names of entities, in a scan of their own.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gpu_rag.index.coding import Ints, coded, codes_of, distinct_pairs
from gpu_rag.index.links import Names, Places, distinct_rows, find_names
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
    """Distinct normal forms of titles, sorted, one title of each, and the form of each chunk's title, -1 if it has none."""

    forms: pa.Array
    surfaces: list[str]
    of_chunk: Ints


def title_links(chunks: pa.Table, entities: pa.Table, names: Names, places: Places, max_pairs: int) -> TitleLinks:
    """Return the links between chunks of different documents.

    A title that a chunk names weighs 4 / (df * passages): the chunks that name it, its own among them, and the chunks that have
    it. Where both ends name the other's title the weights add up.

    Args:
        chunks: `schemas.CHUNKS`, sorted by id.
        entities: `schemas.ENTITIES`.
        names: Names of entities, those that are titles among them.
        places: Where these stand.
        max_pairs: A title with more pairs, df * passages, joins none: such a title tells nothing. 0: no title does.
    """
    if not max_pairs:
        none = np.empty(0, np.int64)
        return TitleLinks(none, none, none, np.empty(0, np.float64))
    titles = _titles(chunks)
    title, chunk, count = _namings(chunks, entities, names, places, titles)
    num_titles, num_chunks = len(titles.forms), max(chunks.num_rows, 1)
    passages = np.bincount(titles.of_chunk[titles.of_chunk >= 0], minlength=num_titles)
    num_pairs = np.bincount(title, minlength=num_titles) * passages
    telling = num_pairs[title] <= max_pairs
    title, chunk, count = title[telling], chunk[telling], count[telling]
    # Each naming meets each passage that has the title.
    by_title = np.argsort(titles.of_chunk, kind="stable")
    begins = np.searchsorted(titles.of_chunk[by_title], title)
    sizes = passages[title]
    naming = np.repeat(np.arange(len(title)), sizes)
    within = np.arange(len(naming)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    source, target = chunk[naming], by_title[begins[naming] + within]
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
    forms = coded(pa.chunked_array([["" if is_blank(title) else normal_form(title) for title in surfaces]], TEXT))
    num_untitled = int(len(forms.values) > 0 and forms.values[0].as_py() == "")
    first_of_form = np.unique(forms.codes, return_index=True)[1]
    return _Titles(
        forms=forms.values[num_untitled:],
        surfaces=[surfaces[row] for row in first_of_form[num_untitled:].tolist()],
        of_chunk=forms.codes[given.codes] - num_untitled,
    )


def _namings(chunks: pa.Table, entities: pa.Table, names: Names, places: Places, titles: _Titles) -> tuple[Ints, Ints, Ints]:
    """Return the distinct (title, chunk row) where the chunk's text names the title, and at how many places."""
    title_of_name = codes_of(entities.column("normal_form"), titles.forms)[names.entities]
    unknown = np.setdiff1d(np.arange(len(titles.forms)), title_of_name)
    if len(unknown):
        places = find_names(chunks, [*names.surfaces, *(titles.surfaces[title] for title in unknown.tolist())])
        title_of_name = np.concatenate([title_of_name, unknown])
    title = title_of_name[places.names]
    named = title >= 0
    title, chunk, _ = distinct_rows(title[named], places.chunks[named], places.starts[named])
    return distinct_pairs(title, chunk, chunks.num_rows)
