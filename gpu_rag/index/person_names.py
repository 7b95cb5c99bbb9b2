"""Short names of persons: Sherlock, Holmes and Mr. Holmes beside Sherlock Holmes.

A short name is a full one's only if every document that has it has the full name too and no other name there fits, and only
for persons: New is not New York, Manchester not Manchester United. Who is a person is told by the extractors' types, an
honorific, or words that go with persons alone (was born, his wife). Mr. Bennet is not Elizabeth Bennet: pronouns beside the
full name must agree with the honorific.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from gpu_rag.index.name_rules import HONORIFICS

if TYPE_CHECKING:
    from gpu_rag.index.alignment import Aligner

_FULL, _SHORT = 0.9, 0.8
_MAX_RIVALS = 200  # names with the same word; more of them, and it is not one person's
_NOBILIARY = "von van de der den del della di da du la le el al bin ibn ben st"
_PARTICLES = frozenset(_NOBILIARY.split())
_PERSONAL = re.compile(
    r"(?:,? (?:was |is )?born\b| \((?:[^()]{0,40}\b)?born\b| died\b| married\b"
    r"|['\u2019]s? (?:wife|husband|son|daughter|mother|father|brother|sister|widow|uncle|aunt|nephew|niece)\b)"
)
_HE, _SHE = re.compile(r"\b(?:he|his|him|himself)\b", re.IGNORECASE), re.compile(r"\b(?:she|her|hers|herself)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")


class PersonNames(NamedTuple):
    """What the texts say beside names.

    Attributes:
        after: Entity -> what follows its mentions, some of them, up to the end of the sentence.
    """

    after: Callable[[int], list[str]]


def short_name_pairs(judge: "Aligner", persons: PersonNames) -> Iterator[tuple[int, int, float]]:
    """Yield (first, second, score) of full names with their short ones, and of these with one another."""
    singles, titled, full = _by_word(judge)
    for word in sorted(set(singles) | set(titled)):
        of_word = full.get(word, [])
        if not of_word or len(of_word) > _MAX_RIVALS:
            yield from _without_full(judge, singles.get(word, []), titled.get(word, []), of_word)
            continue
        shorts = [*singles.get(word, []), *titled.get(word, [])]
        linked: dict[int, list[int]] = defaultdict(list)
        for short in shorts:
            owner = _owner(judge, short, of_word, persons)
            if owner is not None:
                linked[owner].append(short)
        for owner, found in linked.items():
            honoured = [entity for entity in titled.get(word, []) if judge.documents.meet(entity, owner)]
            is_surname = judge.parts(owner).key[-1] == word
            if is_surname and any(entity not in found for entity in honoured):
                # Someone else bears the surname there: the bare one may be either's.
                found = [short for short in found if judge.parts(short).honorific]
            for place, short in enumerate(found):
                yield from ((other, short, _FULL) for other in _same_key(judge, owner, of_word))
                yield from ((other, short, _SHORT) for other in found[:place])
    yield from _given_beside_surname(judge, singles, titled, full, persons)


def _same_key(judge: "Aligner", owner: int, of_word: list[int]) -> list[int]:
    """Return the forms of one full name: with an honorific, in the possessive."""
    return [entity for entity in of_word if judge.parts(entity).key == judge.parts(owner).key]


def _by_word(judge: "Aligner") -> tuple[dict[str, list[int]], dict[str, list[int]], dict[str, list[int]]]:
    """Return the entities by word: of that word alone, with an honorific, and the longer names that have it."""
    singles: dict[str, list[int]] = defaultdict(list)
    titled: dict[str, list[int]] = defaultdict(list)
    longer: list[tuple[int, tuple[str, ...]]] = []
    for entity in range(len(judge.names)):
        found = judge.parts(entity)
        if judge.kinds[entity] != "entity" or judge.senses[entity] or not judge.may_align(entity) or not judge.cased[entity]:
            continue
        if len(found.key) == 1 and not (found.marks or found.legal or found.article or found.possessive):
            (titled if found.honorific else singles)[found.key[0]].append(entity)
        elif len(found.key) > 1:
            longer.append((entity, found.key))
    full: dict[str, list[int]] = defaultdict(list)
    for entity, key in longer:
        for word in dict.fromkeys(key):
            if word in singles or word in titled:
                full[word].append(entity)
    return singles, titled, full


def _owner(judge: "Aligner", short: int, of_word: list[int], persons: PersonNames) -> int | None:
    """Return the one full name that a short one can stand for, None if there is none or several."""
    if judge.classes[short] not in ("", "person"):
        return None
    word = judge.parts(short).key[0]
    if all(judge.documents.num(entity) < judge.documents.num(short) for entity in of_word):
        return None
    near = [entity for entity in of_word if judge.documents.meet(short, entity)]
    if len({judge.parts(entity).key for entity in near}) != 1:
        return None
    covering = [entity for entity in near if judge.documents.within(short, entity)]
    honorific = judge.parts(short).honorific
    for owner in sorted(
        covering, key=lambda entity: (bool(judge.parts(entity).honorific), -judge.documents.num(entity), entity)
    ):
        key = judge.parts(owner).key
        fits = key[-1] == word or (key[0] == word and not honorific)
        if fits and _is_personal(judge, owner, near, persons) and _honorific_fits(judge, honorific, owner, near, persons):
            return owner
    return None


def _is_personal(judge: "Aligner", owner: int, same_key: list[int], persons: PersonNames) -> bool:
    found = judge.parts(owner)
    words = judge.names[owner].split()
    capital = all(word[:1].isupper() or word.casefold() in _PARTICLES for word in words)
    if found.marks or found.legal or found.possessive or found.article or len(found.key) > 4 or not capital:
        return False
    if judge.classes[owner]:
        return judge.classes[owner] == "person"
    if any(judge.parts(entity).honorific for entity in same_key):
        return True
    return any(_PERSONAL.match(text) for text in persons.after(owner))


def _honorific_fits(judge: "Aligner", honorific: str, owner: int, same_key: list[int], persons: PersonNames) -> bool:
    """Return whether a full name may bear an honorific: it does so somewhere, or its pronouns are of that gender alone."""
    attested = {judge.parts(entity).honorific for entity in same_key} - {""}
    if not honorific or honorific in attested:
        return True
    gender = HONORIFICS.get(honorific, "")
    if attested or gender == "f":  # Mrs. Holmes is as often the wife of the one full name as its bearer
        return False
    texts = persons.after(owner)
    he, she = (sum(len(pattern.findall(text)) for text in texts) for pattern in (_HE, _SHE))
    return not gender or (he > 0 and he > 2 * she)


def _without_full(
    judge: "Aligner", singles: list[int], titled: list[int], of_word: list[int]
) -> Iterator[tuple[int, int, float]]:
    """Yield a surname with its one form with an honorific, where no full name has it: Watson, Dr. Watson."""
    for short in singles:
        near = [entity for entity in titled if judge.documents.meet(short, entity)]
        if len(near) == 1 and not of_word and judge.documents.within(short, near[0]):
            yield short, near[0], _SHORT


def _given_beside_surname(
    judge: "Aligner",
    singles: dict[str, list[int]],
    titled: dict[str, list[int]],
    full: dict[str, list[int]],
    persons: PersonNames,
) -> Iterator[tuple[int, int, float]]:
    """Yield a given name with the surname of one full name that both stand for: Sherlock, (Mr.) Holmes."""
    given: dict[int, list[int]] = defaultdict(list)
    for word in sorted(singles):
        if 0 < len(full.get(word, [])) <= _MAX_RIVALS:
            for short in singles[word]:
                owner = _owner(judge, short, full[word], persons)
                if owner is not None and judge.parts(owner).key[0] == word != judge.parts(owner).key[-1]:
                    given[owner].append(short)
    for owner in sorted(given):
        surname = judge.parts(owner).key[-1]
        if len(full.get(surname, [])) > _MAX_RIVALS:
            continue
        for short in [*singles.get(surname, []), *titled.get(surname, [])]:
            if _owner(judge, short, full.get(surname, []), persons) == owner:
                yield from ((name, short, _SHORT) for name in given[owner])
