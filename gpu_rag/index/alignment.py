"""Conservative entity alignment: which entities of the governed graph are one.

Candidates come from aliases that extractors gave, from variants of one name, from short names beside the one full name that
fits in their documents (`index.person_names`), and from spellings whose vectors are close. Every pair of a cluster must be
such a candidate (complete linkage), so a chain A~B~C never merges A with an unlike C. Types must agree, numbers, directions,
ordinals and gender words too; homonyms and the two ends of a causal relation never merge. Clusters grow by falling score,
then by id.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from gpu_rag.index.coding import Ints
from gpu_rag.index.name_rules import Parts, initials_of, malformed, parts
from gpu_rag.index.person_names import PersonNames, short_name_pairs
from gpu_rag.index.relation_rules import class_of
from gpu_rag.names import without_parenthesis
from gpu_rag.spans import normal_form

_MAX_BLOCK = 64  # entities of one key that are compared with one another; more of them is a word, not a name
_MIN_SPELLED = 6  # letters of a word whose spelling may vary
_MAX_EDITS = 2
_NAMES_THAT_DIFFER = frozenset((frozenset(("francis", "frances")), frozenset(("marian", "marion"))))
_PATRONYMS = ("sen", "son", "ssen", "sson")
_ALIAS, _VARIANT, _SPELLING = 1.0, 0.95, 0.7


class AlignConfig(BaseModel):
    """What may align two entities.

    Attributes:
        enabled: Off: every entity is its own.
        aliases: Other names that extractors gave, where these are entities themselves.
        variants: Marks, punctuation, possessive, article, honorific and legal suffix.
        short_names: A person's given name or surname beside the full name.
        spellings: Names that differ within one word and whose vectors are close.
        min_cosine: Of two spellings' vectors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    enabled: bool = True
    aliases: bool = True
    variants: bool = True
    short_names: bool = True
    spellings: bool = True
    min_cosine: float = Field(default=0.85, gt=0, le=1)


class Documents:
    """The documents of each entity, as sorted codes."""

    def __init__(self, entities: Ints, documents: Ints, num_entities: int) -> None:
        """Hold the distinct (entity, document) pairs, sorted by entity, then document."""
        self._documents = documents
        self._indptr = np.zeros(num_entities + 1, np.int64)
        np.cumsum(np.bincount(entities, minlength=num_entities), out=self._indptr[1:])

    def of(self, entity: int) -> Ints:
        """Return the documents of one entity."""
        return self._documents[self._indptr[entity] : self._indptr[entity + 1]]

    def num(self, entity: int) -> int:
        """Return how many there are."""
        return int(self._indptr[entity + 1] - self._indptr[entity])

    def within(self, one: int, other: int) -> bool:
        """Return whether one entity is named only in documents that name the other too."""
        return 0 < self.num(one) <= self.num(other) and self.num_shared(one, other) == self.num(one)

    def meet(self, one: int, other: int) -> bool:
        """Return whether some document names both."""
        return self.num_shared(one, other) > 0

    def num_shared(self, one: int, other: int) -> int:
        """Return how many documents name both."""
        small, large = sorted((one, other), key=self.num)
        found = self.of(large)
        if not len(found):
            return 0
        at = np.minimum(np.searchsorted(found, self.of(small)), len(found) - 1)
        return int((found[at] == self.of(small)).sum())


class Candidate(NamedTuple):
    """Two entities that may be one, first < second."""

    first: int
    second: int
    score: float


class Aligner(NamedTuple):
    """What decides over a pair.

    Attributes:
        names: Of each entity.
        forms: Normal forms; `senses`, `classes` likewise.
        cased: Whether some surface form is written as names are: with a capital, or in a script without case.
        admitted: bool (M,), entities of the governed graph; the others align with nothing.
        documents: Of each entity.
        apart: Pairs (first < second) that must stay apart.
    """

    names: list[str]
    forms: list[str]
    senses: list[str]
    kinds: list[str]
    classes: list[str]
    cased: list[bool]
    capitals: list[bool]
    admitted: NDArray[np.bool_]
    documents: Documents
    apart: frozenset[tuple[int, int]]

    def parts(self, entity: int) -> Parts:
        """Return the entity's name taken apart."""
        return parts(self.names[entity])

    def may_align(self, entity: int) -> bool:
        """Return whether an entity takes part at all: admitted, no claim, no date, with letters in its name."""
        return (
            bool(self.admitted[entity])
            and self.kinds[entity] != "claim"
            and self.classes[entity] not in ("claim", "date")
            and any(c.isalpha() for c in self.forms[entity])
            and not malformed(self.names[entity])
        )

    def compatible(self, first: int, second: int) -> bool:
        """Return whether nothing known of two entities speaks against their being one; unknown classes agree with all."""
        one, other = self.classes[first], self.classes[second]
        return (
            (not one or not other or one == other)
            and (self.kinds[first] == "event") == (self.kinds[second] == "event")
            and (min(first, second), max(first, second)) not in self.apart
            and self.forms[first] != self.forms[second]
        )


def aligner(
    entities: pa.Table, admitted: NDArray[np.bool_], documents: Documents, apart: frozenset[tuple[int, int]]
) -> Aligner:
    """Return what decides over pairs of these entities."""
    columns = {name: entities.column(name).to_pylist() for name in ("name", "normal_form", "sense", "kind", "type")}
    cased, capitals = [], []
    for names in entities.column("names"):
        surfaces = names.as_py()
        cased.append(any(not c.islower() and c.isalpha() for name in surfaces for c in name))
        capitals.append(any(name.isupper() for name in surfaces))
    classes = [class_of(kind, type_) for kind, type_ in zip(columns["kind"], columns["type"], strict=True)]
    forms = columns["normal_form"]
    return Aligner(
        columns["name"], forms, columns["sense"], columns["kind"], classes, cased, capitals, admitted, documents, apart
    )


def align(
    judge: Aligner,
    *,
    aliases: Sequence[tuple[int, Sequence[int]]],
    persons: PersonNames,
    vectors: "NameVectors",
    config: AlignConfig,
) -> Ints:
    """Return the representative of each entity, int64 (M,): the member of its cluster with most documents, of equals the first.

    Args:
        judge: The entities.
        aliases: (entity, entities that an extractor says are other names of it), one per mention.
        persons: What the texts say of persons' names.
        vectors: Of the entities' names.
        config: Which candidates count.
    """
    representative = np.arange(len(judge.names), dtype=np.int64)
    if not config.enabled:
        return representative
    found: dict[tuple[int, int], float] = {}
    for first, second, score in _candidates(judge, aliases, persons, vectors, config):
        pair = (min(first, second), max(first, second))
        if pair[0] != pair[1] and judge.compatible(*pair):
            found[pair] = max(found.get(pair, 0.0), score)
    for cluster in complete_linkage(found):
        best = min(cluster, key=lambda entity: (-judge.documents.num(entity), entity))
        representative[list(cluster)] = best
    return representative


def complete_linkage(candidates: dict[tuple[int, int], float]) -> list[tuple[int, ...]]:
    """Return the clusters of two and more: merged by falling score, then by pair, as long as every pair is a candidate."""
    members: dict[int, list[int]] = {}
    for (first, second), _ in sorted(candidates.items(), key=lambda item: (-item[1], item[0])):
        one, other = members.setdefault(first, [first]), members.setdefault(second, [second])
        if one is not other and all((min(a, b), max(a, b)) in candidates for a in one for b in other):
            one += other
            for entity in other:
                members[entity] = one
    return sorted({tuple(sorted(cluster)) for cluster in members.values() if len(cluster) > 1})


def _candidates(
    judge: Aligner,
    aliases: Sequence[tuple[int, Sequence[int]]],
    persons: PersonNames,
    vectors: "NameVectors",
    config: AlignConfig,
) -> Iterator[Candidate]:
    if config.aliases:
        yield from alias_pairs(judge, aliases)
    if config.variants:
        yield from variant_pairs(judge)
    if config.short_names:
        yield from (Candidate(*pair) for pair in short_name_pairs(judge, persons))
    if config.spellings:
        yield from spelling_pairs(judge, vectors, config.min_cosine)


def alias_pairs(judge: Aligner, aliases: Sequence[tuple[int, Sequence[int]]]) -> Iterator[Candidate]:
    """Yield each entity with the aliases given for it, and these with one another.

    An alias given for two entities that are not variants of one name tells nothing. It must stand only in documents that
    name the entity too, or, as its acronym of three letters and more, mostly in these: elsewhere it may mean another. A
    single word is no alias of a longer name as long as nothing says what either of them is.
    """
    owners: dict[int, set[int]] = defaultdict(set)
    for owner, others in aliases:
        for alias in others:
            if alias != owner:
                owners[alias].add(owner)
    for owner, others in aliases:
        group = [owner]
        for alias in sorted(set(others) - {owner}):
            alone = len({judge.parts(entity).key for entity in owners[alias]}) == 1
            if alone and _alias_holds(judge, owner, alias):
                group.append(alias)
        for first, second in combinations(sorted(group), 2):
            if not _marks_clash(judge.parts(first), judge.parts(second)):
                yield Candidate(first, second, _ALIAS)


def _alias_holds(judge: Aligner, owner: int, alias: int) -> bool:
    if not (judge.may_align(owner) and judge.may_align(alias) and judge.cased[alias]):
        return False
    for short, long in ((alias, owner), (owner, alias)):
        letters = judge.parts(short).key
        if len(letters) == 1 and letters[0] in initials_of(judge.parts(long).key) and judge.capitals[short]:
            mostly = 2 * judge.documents.num_shared(short, long) > judge.documents.num(short)
            return judge.documents.within(short, long) or (mostly and len(letters[0]) >= 3)
    if len(judge.parts(alias).key) == 1 < len(judge.parts(owner).key) and not (judge.classes[alias] or judge.classes[owner]):
        return False
    return judge.documents.within(alias, owner)


def _marks_clash(one: Parts, other: Parts) -> bool:
    """Return whether two names that share words differ in words that must agree: Henry IV, Henry V; or in numbers at all."""
    if one.marks == other.marks:
        return False
    numbers = [{mark for mark in found.marks if any(c.isdigit() for c in mark)} for found in (one, other)]
    return bool(set(one.key) & set(other.key) - set(one.marks)) or bool(numbers[0] and numbers[1] and numbers[0] != numbers[1])


def variant_pairs(judge: Aligner) -> Iterator[Candidate]:
    """Yield pairs whose names are the same but for marks, punctuation, possessive, article, honorific and legal suffix."""
    blocks: dict[tuple[str, ...], list[int]] = defaultdict(list)
    qualified: dict[str, list[int]] = defaultdict(list)
    split = {judge.forms[entity] for entity, sense in enumerate(judge.senses) if sense}
    for entity in range(len(judge.names)):
        if not judge.may_align(entity):
            continue
        base = without_parenthesis(judge.names[entity])
        if judge.senses[entity]:
            qualified[judge.forms[entity]].append(entity)
        elif base != judge.names[entity]:
            qualified[normal_form(base)].append(entity)
        elif judge.forms[entity] not in split and judge.parts(entity).key:
            blocks[judge.parts(entity).key].append(entity)
    for block in blocks.values():
        if 1 < len(block) <= _MAX_BLOCK:
            yield from (Candidate(*pair, _VARIANT) for pair in combinations(block, 2) if _are_variants(judge, *pair))
    for form, block in qualified.items():
        for first, second in combinations(block[:_MAX_BLOCK], 2):
            whole, sense = sorted((first, second), key=lambda entity: judge.senses[entity])
            if not judge.senses[whole] and judge.senses[sense] and judge.forms[whole] == f"{form} ({judge.senses[sense]})":
                yield Candidate(first, second, _VARIANT)


def _are_variants(judge: Aligner, first: int, second: int) -> bool:
    one, other = judge.parts(first), judge.parts(second)
    single = len(one.key) == 1
    if single and not (judge.cased[first] and judge.cased[second]):
        return False
    if one.legal and other.legal and one.legal != other.legal:
        return False
    if one.honorific and other.honorific and one.honorific != other.honorific:
        return False
    if single and one.initialism != other.initialism and not judge.capitals[second if one.initialism else first]:
        return False
    if one.possessive != other.possessive and not (judge.classes[first] and judge.documents.meet(first, second)):
        return False  # McDonald's is not McDonald, nor Trader Vic's the man, as long as no type says so
    if one.honorific != other.honorific:
        return not single and judge.documents.meet(first, second)  # of one word: `person_names` decides
    if one.legal != other.legal or (single and one.article != other.article):
        # Calvin Klein is Calvin Klein Inc., and Sun is The Sun, only where nothing but that is spoken of.
        bare, longer = (first, second) if (one.legal, one.article) < (other.legal, other.article) else (second, first)
        return judge.documents.within(bare, longer)
    return True


class NameVectors:
    """Vectors of the entities' names, looked up for the pairs that need them alone."""

    def __init__(self, rows: Ints, vectors: pa.ChunkedArray) -> None:
        """Hold the row among `vectors` of each entity, -1 where it has none."""
        self._rows, self._vectors = rows, vectors

    def cosine(self, first: int, second: int) -> float:
        """Return the cosine of two names, 0 where one has no vector."""
        rows = self._rows[[first, second]]
        if (rows < 0).any():
            return 0.0
        one, other = (self._vectors[int(row)].values.to_numpy() for row in rows)
        return float(one @ other)


def spelling_pairs(judge: Aligner, vectors: NameVectors, min_cosine: float) -> Iterator[Candidate]:
    """Yield pairs that differ in one word by vowels and doubled letters within it, and whose vectors are close."""
    blocks: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for entity in range(len(judge.names)):
        key = judge.parts(entity).key
        named = judge.cased[entity] and not judge.senses[entity] and not judge.parts(entity).honorific
        if named and any(len(word) >= _MIN_SPELLED for word in key) and judge.may_align(entity):
            blocks[tuple(_skeleton(word) for word in key)].append(entity)
    for block in blocks.values():
        if 1 < len(block) <= _MAX_BLOCK:
            for first, second in combinations(block, 2):
                if _are_spellings(judge.parts(first), judge.parts(second)) and vectors.cosine(first, second) >= min_cosine:
                    yield Candidate(first, second, _SPELLING)


def _are_spellings(one: Parts, other: Parts) -> bool:
    if one.marks != other.marks or (one.legal, one.article) != (other.legal, other.article) or len(one.key) != len(other.key):
        return False
    differing = [pair for pair in zip(one.key, other.key, strict=True) if pair[0] != pair[1]]
    return (
        bool(differing)
        and all(_same_word(*pair) for pair in differing)
        and sum(_edits(*pair) for pair in differing) <= _MAX_EDITS
    )


def _same_word(one: str, other: str) -> bool:
    """Return whether two words may be one word in two spellings: they begin and end alike, and none is the other's stem."""
    return (
        min(len(one), len(other)) >= _MIN_SPELLED
        and one[0] == other[0]
        and one[-1] == other[-1]
        and not one.startswith(other)
        and not other.startswith(one)
        and frozenset((one, other)) not in _NAMES_THAT_DIFFER
        and not (one.endswith(_PATRONYMS) and other.endswith(_PATRONYMS))
    )


def _skeleton(word: str) -> str:
    """Return the first letter and the consonants after it, doubled ones once."""
    kept = word[:1]
    for char in word[1:]:
        if char not in "aeiouyh" and char != kept[-1]:
            kept += char
    return kept


def _edits(one: str, other: str) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]


__all__ = ["AlignConfig", "Aligner", "Candidate", "Documents", "NameVectors", "align", "aligner", "complete_linkage"]
