"""What kind of thing a name names, where its own form or the words before it say so; most names say nothing.

Only forms that are nearly never anything else: an honorific, a legal suffix, "the city of". "County", "River", "Company" or
"Party" are left out: films, bands and states bear them too.
"""

import re

from gpu_rag.names import CUTS

_PERSONS = "Mr Mrs Ms Mister Dr Prof Professor Sir Dame Monsieur Madame Herr Frau"
_HONORIFICS = frozenset(_PERSONS.split())
_THINGS = "of medal award awards prize trophy cup hospital school college house hall street bridge building show restaurant"
_NO_PERSONS = frozenset(_THINGS.split())  # named after one
_POSSESSIVE = re.compile(r"['\u2019]s\s")
_ORGANIZATIONS = "inc ltd llc plc corp corporation gmbh university institute airlines airways orchestra"
_OF_ORGANIZATION = frozenset(_ORGANIZATIONS.split())
_ORGANIZATION_OF = ("university of ", "ministry of ", "institute of ", "bank of ")
_BEFORE_PLACE = re.compile(
    r"\b(?:city|town|village|hamlet|municipality|commune|suburb|neighbou?rhood|province|county|island)s? of $"
)


def name_type(text: str, start: int, end: int) -> str | None:
    """Return `person`, `organization` or `place` for the name at [start, end), None where nothing says which."""
    name = text[start:end]
    words = name.casefold().split()
    if not CUTS.isdisjoint(words):
        return None
    if len(words) > 1:
        if name.split(maxsplit=1)[0].rstrip(".") in _HONORIFICS:
            return "person" if _NO_PERSONS.isdisjoint(words) and not _POSSESSIVE.search(name) else None
        if name.casefold().startswith(_ORGANIZATION_OF) or ("of" not in words and words[-1].rstrip(".") in _OF_ORGANIZATION):
            return "organization"
    return "place" if _BEFORE_PLACE.search(text, max(start - 24, 0), start) else None


__all__ = ["name_type"]
