"""Senses: homonyms that the corpus itself tells apart.

One name is one entity unless two documents say of it what cannot be true of one thing. What counts as evidence, per document:
the qualifier of its title (Mercury (planet)), the extractors' types where they agree (a person, a place), and the value of a
role that nobody holds twice (CFO of Alpha, born 1950), read in the text right beside the name or in a given description.
Without a conflict there is one entity: a false split costs recall. Documents without evidence of their own keep the unmarked
entity. Only what a document says of the present counts against another, and two values are in no conflict once any document
with the name gives both, or names both organisations (CEO of Tesla, CEO of SpaceX).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.coding import Ints, coded, codes_of, distinct_pairs
from gpu_rag.names import without_parenthesis
from gpu_rag.spans import normal_form
from gpu_rag.words import FUNCTION_WORDS

_MAX_BIRTH_GAP = 2  # years; sources differ by that much about one person
_REACH = 120  # characters after a name in which its role may be said
_QUALIFIER = re.compile(r"\(([^()]+)\)\s*$")
_CLASSES = {
    "person": "person", "people": "person", "character": "person", "human": "person", "per": "person",
    "place": "place", "location": "place", "city": "place", "country": "place", "gpe": "place", "loc": "place",
    "organization": "organization", "organisation": "organization", "company": "organization", "org": "organization",
}  # fmt: skip
_APART = {frozenset(("person", "place")), frozenset(("person", "organization"))}

_OFFICES = {
    "ceo": "ceo", "chief executive": "ceo", "chief executive officer": "ceo", "cfo": "cfo", "chief financial officer": "cfo",
    "cto": "cto", "chief technology officer": "cto", "coo": "coo", "chief operating officer": "coo", "cio": "cio",
    "chief information officer": "cio", "cmo": "cmo", "chief marketing officer": "cmo", "mayor": "mayor",
}  # fmt: skip
_OFFICE = "|".join(sorted(_OFFICES, key=lambda office: (-len(office), office)))
_ORG = r"(?P<org>[^\W\d_a-z][\w&'\u2019-]*(?:\.(?=\w))?(?: (?:of |the |and )?[^\W_a-z][\w&'\u2019-]*){0,5})"
_AFTER = re.compile(
    rf"(?:,? (?:who )?(?P<verb>is|was|serves as|served as|works as|became)|,) (?:the |a |its |current |then )*"
    rf"(?P<office>(?i:{_OFFICE})) (?:of|at) (?:the )?{_ORG}"
)
_BEFORE = re.compile(rf"{_ORG}(?:['\u2019]s)? (?P<office>(?i:{_OFFICE})),? $")
_ALONE = re.compile(rf"\b(?P<office>(?i:{_OFFICE})) (?:of|at) (?:the )?{_ORG}")
_PAST = re.compile(r"(?i)\b(?:former|formerly|ex-|previous|previously|retired|until|outgoing)\W*$")
_PAST_VERBS = ("was", "served as", "became")
_EVER = "?"  # after a dimension: at some time, so it may stand beside another value
_CAPITAL = re.compile(rf" is the capital(?: city)? of (?:the )?{_ORG}")
_BORN = re.compile(
    r"(?:,? (?:was|is) born\b[^.;()]{0,60}?|,? \((?:[^()]{0,60}?\b)?born\b[^()]{0,40}?|, born\b[^.;()]{0,40}?)"
    r"\b(1\d{3}|20\d{2})\b"
)
_BORN_ALONE = re.compile(r"\bborn\b[^.;()]{0,40}?\b(1\d{3}|20\d{2})\b")
_CUE = re.compile(rf"\bborn\b|\bcapital\b|\b(?i:{_OFFICE})\b")
_SUFFIXES = "inc incorporated ltd limited llc plc corp corporation co company gmbh ag group holdings the of and"
_LEGAL = frozenset(_SUFFIXES.split())


class Named(NamedTuple):
    """The names of mentions by code.

    Attributes:
        forms: Distinct normal forms, sorted.
        documents: Distinct document ids, sorted.
        form_of_mention: int64, row in `forms`.
        doc_of_mention: int64, row in `documents`.
    """

    forms: pa.Array
    documents: pa.Array
    form_of_mention: Ints
    doc_of_mention: Ints


Place = tuple[int, int]  # form, document
Evidence = dict[str, set[str]]  # dimension -> values


def document_senses(chunks: pa.Table, unit_mentions: pa.Table, named: Named) -> dict[Place, str]:
    """Return the sense of a form in a document, for the forms whose documents are in conflict and the documents that say which.

    A sense is what the documents in conflict say, in words: "planet", "cfo of alpha", "born 1950".
    """
    evidence: dict[Place, Evidence] = defaultdict(lambda: defaultdict(set))
    for place, dimension, value in _evidence(chunks, unit_mentions, named):
        evidence[place][dimension].add(value)
    by_form: dict[int, dict[int, Evidence]] = defaultdict(dict)
    for (form, document), found in evidence.items():
        by_form[form][document] = found
    senses: dict[Place, str] = {}
    together = _Together(named)
    for form in sorted(by_form):
        if len(by_form[form]) > 1:
            documents = by_form[form]
            of_form = _senses(documents, together.values(form, documents.values()))
            senses |= {(form, document): sense for document, sense in of_form.items()}
    return senses


class _Together:
    """Which organisations the documents of a name speak of together, sought only where their values differ."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._by_document: Ints | None = None

    def values(self, form: int, found: Iterable[Evidence]) -> list[Evidence]:
        """Return, per document of the form, the values of a role whose organisations it names, where these are several."""
        roles: dict[str, set[str]] = defaultdict(set)
        for evidence in found:
            for dimension, values in evidence.items():
                if dimension.endswith(" of"):
                    roles[dimension].update(values)
        roles = {dimension: values for dimension, values in roles.items() if len(values) > 1}
        if not roles:
            return []
        united = []
        for document in np.unique(self._named.doc_of_mention[self._named.form_of_mention == form]).tolist():
            names = {_organization(name) for name in self._names(document)}
            for dimension, values in roles.items():
                both = {value for value in values if value in names}
                if len(both) > 1:
                    united.append({dimension + _EVER: both})
        return united

    def _names(self, document: int) -> list[str]:
        if self._by_document is None:
            self._by_document = np.argsort(self._named.doc_of_mention, kind="stable")
        order = self._by_document
        begin, end = np.searchsorted(self._named.doc_of_mention[order], [document, document + 1])
        names: list[str] = self._named.forms.take(
            pa.array(np.unique(self._named.form_of_mention[order[begin:end]]))
        ).to_pylist()
        return names


def _evidence(chunks: pa.Table, unit_mentions: pa.Table, named: Named) -> Iterator[tuple[Place, str, str]]:
    yield from _of_titles(chunks, named)
    yield from _of_types(unit_mentions, named)
    forms, _, _ = distinct_pairs(named.form_of_mention, named.doc_of_mention, len(named.documents))
    shared = np.bincount(forms, minlength=len(named.forms)) > 1  # a form of one document has nothing to conflict with
    yield from _of_texts(chunks, unit_mentions, named, shared)
    yield from _of_descriptions(unit_mentions, named, shared)


def _of_titles(chunks: pa.Table, named: Named) -> Iterator[tuple[Place, str, str]]:
    titles = chunks.select(["doc_id", "title"]).filter(pc.match_substring(chunks.column("title"), "("))
    titles = titles.group_by(["doc_id", "title"]).aggregate([])
    bases = pa.array(
        [normal_form(without_parenthesis(title)) for title in titles.column("title").to_pylist()], named.forms.type
    )
    forms = codes_of(pa.chunked_array([bases], named.forms.type), named.forms).tolist()
    documents = codes_of(titles.column("doc_id"), named.documents).tolist()
    for form, document, title in zip(forms, documents, titles.column("title").to_pylist(), strict=True):
        qualifier = _QUALIFIER.search(title)
        if form >= 0 and qualifier and normal_form(qualifier[1]) != "disambiguation":
            yield (form, document), "title", normal_form(qualifier[1])


def _of_types(unit_mentions: pa.Table, named: Named) -> Iterator[tuple[Place, str, str]]:
    """Yield the class of a form in a document where all of its types there are of one class."""
    types = coded(pc.fill_null(unit_mentions.column("type"), ""))
    class_of_type = [_CLASSES.get(value.lower(), "") for value in types.values.to_pylist()]
    known = np.array([bool(value) for value in class_of_type], bool)
    rows = np.flatnonzero(known[types.codes]) if len(types.codes) else np.empty(0, np.int64)
    places = named.form_of_mention[rows] * max(len(named.documents), 1) + named.doc_of_mention[rows]
    keys, codes, _ = distinct_pairs(places, types.codes[rows], max(len(class_of_type), 1))
    classes: dict[int, set[str]] = defaultdict(set)
    for key, code in zip(keys.tolist(), codes.tolist(), strict=True):
        classes[key].add(class_of_type[code])
    for key, found in classes.items():
        if len(found) == 1:
            yield divmod(key, max(len(named.documents), 1)), "class", next(iter(found))


def _of_texts(chunks: pa.Table, unit_mentions: pa.Table, named: Named, shared: np.ndarray) -> Iterator[tuple[Place, str, str]]:
    """Yield roles and births said right beside a name, in the chunks that hold such words at all."""
    texts = chunks.column("text")
    cued = [row for row, text in enumerate(texts) if _CUE.search(text.as_py())]
    chosen = chunks.column("chunk_id").take(pa.array(cued, pa.int64())).combine_chunks()
    chunk_of_mention = codes_of(unit_mentions.column("chunk_id"), chosen)
    rows = (
        np.flatnonzero((chunk_of_mention >= 0) & shared[named.form_of_mention])
        if len(chunk_of_mention)
        else np.empty(0, np.int64)
    )
    names: dict[int, dict[tuple[str, int], int]] = defaultdict(dict)
    columns = (unit_mentions.column("name").take(pa.array(rows)).to_pylist(), chunk_of_mention[rows].tolist())
    codes = (named.form_of_mention[rows].tolist(), named.doc_of_mention[rows].tolist())
    for name, chunk, form, document in zip(*columns, *codes, strict=True):
        names[chunk][name, form] = document
    for chunk in sorted(names):
        text = texts[cued[chunk]].as_py()
        for (name, form), document in names[chunk].items():
            for dimension, value in _said_of(name, text):
                yield (form, document), dimension, value


def _said_of(name: str, text: str) -> Iterator[tuple[str, str]]:
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        after, before = text[end : end + _REACH], text[max(at - _REACH, 0) : at]
        whole = not (at and text[at - 1].isalnum()) and not (end < len(text) and text[end].isalnum())
        if whole:
            yield from _roles(_AFTER.match(after), after)
            yield from _roles(_BEFORE.search(before), before)
            capital, born = _CAPITAL.match(after), _BORN.match(after)
            if capital:
                yield "capital of", _organization(capital["org"])
            if born:
                yield "born", born[1]
        at = text.find(name, end)


def _of_descriptions(unit_mentions: pa.Table, named: Named, shared: np.ndarray) -> Iterator[tuple[Place, str, str]]:
    described = np.asarray(pc.fill_null(pc.greater(pc.utf8_length(unit_mentions.column("description")), 0), False))
    rows = np.flatnonzero(described & shared[named.form_of_mention]) if len(described) else np.empty(0, np.int64)
    texts = unit_mentions.column("description").take(pa.array(rows)).to_pylist()
    for row, text in zip(rows.tolist(), texts, strict=True):
        place = (int(named.form_of_mention[row]), int(named.doc_of_mention[row]))
        born = _BORN_ALONE.search(text)
        for dimension, value in [*_roles(_ALONE.search(text), text), *([("born", born[1])] if born else [])]:
            yield place, dimension, value


def _roles(match: re.Match[str] | None, text: str) -> Iterator[tuple[str, str]]:
    if match is None or _PAST.search(text[: match.start("office")]):
        return
    value = _organization(match["org"])
    ever = _EVER if match.groupdict().get("verb") in _PAST_VERBS else ""
    if value:
        yield f"{_OFFICES[match['office'].lower()]} of{ever}", value


def _organization(name: str) -> str:
    """Return the words that tell an organisation: no legal suffix, no possessive."""
    words = re.findall(r"[^\W_]+", re.sub(r"['\u2019]s\b", "", normal_form(name)))
    return " ".join([word for word in words if word not in _LEGAL] or words)


def _senses(documents: dict[int, Evidence], together: list[Evidence]) -> dict[int, str]:
    """Return the sense of each document that is in a cluster in conflict with another; the others have none."""
    documents = _united(documents, together)
    signatures: dict[tuple[tuple[str, tuple[str, ...]], ...], list[int]] = defaultdict(list)
    for document, evidence in documents.items():
        signatures[tuple((dimension, tuple(sorted(evidence[dimension]))) for dimension in sorted(evidence))].append(document)
    clusters: list[Evidence] = []
    members: list[list[int]] = []
    # The most telling first: what fits several clusters tells nothing about which.
    for signature in sorted(signatures, key=lambda s: (-len(s), -sum(len(word) for _, words in s for word in words), s)):
        evidence = {dimension: set(values) for dimension, values in signature}
        fits = [
            place for place, cluster in enumerate(clusters) if not _conflicts(evidence, cluster) and _shares(evidence, cluster)
        ]
        if len(fits) == 1:
            members[fits[0]] += signatures[signature]
            for dimension, values in evidence.items():
                clusters[fits[0]].setdefault(dimension, set()).update(values)
        elif not fits:
            clusters.append(evidence)
            members.append(list(signatures[signature]))
    senses = {}
    for cluster, found in zip(clusters, members, strict=True):
        told = {dimension for other in clusters for dimension in _conflicts(cluster, other)}
        label = "; ".join(_label(dimension, cluster[dimension]) for dimension in sorted(told))
        senses.update(dict.fromkeys(found, label) if label else {})
    return senses


def _label(dimension: str, values: Iterable[str]) -> str:
    words = ", ".join(sorted(values))
    return words if dimension in ("title", "class") else f"{dimension} {words}"


def _united(documents: dict[int, Evidence], together: list[Evidence]) -> dict[int, Evidence]:
    """Return what the documents say of the present, each value replaced by the smallest of those given with it anywhere."""
    root: dict[tuple[str, str], str] = {}

    def top(dimension: str, value: str) -> str:
        while root.get((dimension, value), value) != value:
            value = root[dimension, value]
        return value

    for evidence in [*documents.values(), *together]:
        for dimension in sorted({dimension.rstrip(_EVER) for dimension in evidence}):
            values = evidence.get(dimension, set()) | evidence.get(dimension + _EVER, set())
            tops = sorted({top(dimension, value) for value in values})
            for value in tops[1:]:
                root[dimension, value] = tops[0]
    present = {}
    for document, evidence in documents.items():
        kept = {d: {top(d, value) for value in values} for d, values in evidence.items() if not d.endswith(_EVER)}
        if kept:
            present[document] = kept
    return present


def _conflicts(one: Evidence, other: Evidence) -> list[str]:
    """Return the dimensions in which no value of one may stand beside a value of the other."""
    return [
        dimension
        for dimension in one
        if one is not other
        and dimension in other
        and not any(_may_be_one(dimension, first, second) for first in one[dimension] for second in other[dimension])
    ]


def _shares(one: Evidence, other: Evidence) -> bool:
    return any(
        _may_be_one(dimension, first, second)
        for dimension in one
        if dimension in other
        for first in one[dimension]
        for second in other[dimension]
    )


def _may_be_one(dimension: str, first: str, second: str) -> bool:
    if first == second:
        return True
    if dimension == "born":
        return abs(int(first) - int(second)) <= _MAX_BIRTH_GAP
    if dimension == "class":
        return frozenset((first, second)) not in _APART
    words = [{word for word in re.findall(r"[^\W_]+", value) if word not in FUNCTION_WORDS} for value in (first, second)]
    if dimension == "title":  # "film" may be the "1997 film"; "1943 film" is not
        return not all(words) or words[0] <= words[1] or words[1] <= words[0]
    return not all(words) or bool(words[0] & words[1])


def linked_in_sense(links: pa.Table, entities: pa.Table, mentions: pa.Table) -> pa.Table:
    """Return `schemas.LINKS` without the links of a name to a homonym that its document does not speak of.

    A document speaks of the entity that its mentions of the name have, else of the unmarked one, if there is one.
    """
    forms = coded(entities.column("normal_form"))
    homonymous = np.bincount(forms.codes, minlength=len(forms.values)) > 1
    if not homonymous.any():
        return links
    ids = entities.column("entity_id").combine_chunks()
    entity = codes_of(links.column("entity_id"), ids)
    questioned = np.flatnonzero(homonymous[forms.codes[entity]])
    if not len(questioned):
        return links
    spoken: dict[tuple[int, str], set[int]] = defaultdict(set)
    of_mention = codes_of(mentions.column("entity_id"), ids)
    for row in np.flatnonzero(homonymous[forms.codes[of_mention]]).tolist():
        spoken[int(forms.codes[of_mention[row]]), mentions.column("doc_id")[row].as_py()].add(int(of_mention[row]))
    senses = entities.column("sense").to_pylist()
    unmarked = {int(forms.codes[row]): row for row, sense in enumerate(senses) if not sense}
    keep = np.ones(links.num_rows, bool)
    for row, document in zip(questioned.tolist(), links.column("doc_id").take(pa.array(questioned)).to_pylist(), strict=True):
        form, one = int(forms.codes[entity[row]]), int(entity[row])
        meant = spoken.get((form, document)) or ({unmarked[form]} if form in unmarked else {one})
        keep[row] = one in meant
    return links.filter(pa.array(keep))
