"""Schema and domain-range validation: what kinds of things a relation may join.

Rules go by the relation's type where the extractor gave one, else by its predicate. An end whose class is not known (no type,
or a type that only says how its name was spotted) breaks no rule.
"""

import re
from typing import NamedTuple

from gpu_rag.index.entities import KINDS

SCHEMA = "schema"  # a kind or type that there is not
DOMAIN_RANGE = "domain_range"  # an end of a class that the relation cannot have
SELF_LOOP = "self_loop"

_CLASS_NAMES = {
    "person": "person people human character per",
    "place": "place location city country gpe loc region",
    "organization": "organization organisation company org institution",
    "date": "date time year duration",
    "work": "work book film song title_of_work work_of_art",
    "event": "event",
    "claim": "claim premise conclusion evidence argument proposition",
    "concept": "concept definition theory term",
}
CLASS_OF_TYPE = {name: class_ for class_, names in _CLASS_NAMES.items() for name in names.split()}
_SAYS_NOTHING = frozenset(("", "name", "title", "other", "object", "thing", "misc", "entity"))
_NOTHING: frozenset[str] = frozenset()
_NOT_A_PLACE = frozenset(("person", "date", "claim"))
_NOT_A_CLAIM = frozenset(("person", "place", "organization", "date", "work"))


class Rule(NamedTuple):
    """Classes that the ends of a relation must not have (`reject`), and that are doubtful (`review`)."""

    subject: frozenset[str] = _NOTHING
    object: frozenset[str] = _NOTHING
    doubtful_subject: frozenset[str] = _NOTHING
    doubtful_object: frozenset[str] = _NOTHING


_BIRTH = Rule(
    subject=frozenset(("place", "date", "organization", "work", "claim")), object=frozenset(("person", "claim")),
)  # fmt: skip
_PERSONAL = frozenset(("place", "date", "organization", "work", "claim"))
_ARGUMENT = Rule(
    subject=_NOT_A_CLAIM, object=_NOT_A_CLAIM, doubtful_subject=frozenset(("concept", "event")),
    doubtful_object=frozenset(("concept", "event")),
)  # fmt: skip
_BY_TYPE = {
    "located_in": Rule(subject=frozenset(("date", "claim")), object=_NOT_A_PLACE),
    "supports": _ARGUMENT,
    "attacks": _ARGUMENT,
    "part_of": Rule(object=frozenset(("date",)), doubtful_object=frozenset(("person",))),
    "is_a": Rule(object=frozenset(("date",)), doubtful_object=frozenset(("person", "place"))),
    "definition": Rule(subject=frozenset(("date",))),
    "causal": Rule(doubtful_subject=frozenset(("date",)), doubtful_object=frozenset(("date",))),
    "born_in": _BIRTH,
    "family": Rule(subject=_PERSONAL, object=_PERSONAL),
    "member_of": Rule(subject=frozenset(("date", "claim")), object=frozenset(("date", "claim"))),
    "stated_by": Rule(object=frozenset(("place", "date"))),
    "created": Rule(subject=frozenset(("date", "place", "claim"))),
    "took_part_in": Rule(
        subject=frozenset(("date", "claim")), object=frozenset(("date",)), doubtful_object=frozenset(("person",))
    ),
    "works_for": Rule(subject=frozenset(("place", "date", "claim")), object=frozenset(("date", "claim"))),
}
# Types that mean one of these; the extractors' own schemas name them so.
_SYNONYMS = {
    "location": "located_in", "located": "located_in", "support": "supports", "attack": "attacks", "contradicts": "attacks",
    "rebuts": "attacks", "cause": "causal", "causes": "causal", "born": "born_in", "birthplace": "born_in",
    "spouse": "family", "parent": "family", "child": "family", "kinship": "family", "employer": "works_for",
}  # fmt: skip
_BY_PREDICATE = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"^(?:is |was |were |are )?(?:located|situated) (?:in|at|near|on)$", _BY_TYPE["located_in"]),
        (r"^(?:is |was |were |are )?born (?:in|at|on)$|^place of birth$|^date of birth$", _BIRTH),
        (r"^(?:is |was )?(?:married to|(?:the )?(?:wife|husband|spouse|son|daughter|mother|father|brother|sister) of)$",
         _BY_TYPE["family"]),
        (r"^(?:works?|worked|is employed|was employed) (?:for|by|at)$", _BY_TYPE["works_for"]),
        (r"^(?:is |was )?(?:the )?capital(?: city)? of$", Rule(subject=frozenset(("person", "date", "claim")),
                                                              object=frozenset(("person", "date", "claim")))),
    )
)  # fmt: skip


def class_of(kind: str, type_: str | None) -> str:
    """Return the class of an entity, "" if it is not known; a type that belongs to none is a class of its own."""
    if kind in ("event", "claim", "concept"):
        return kind
    name = type_.casefold() if type_ else ""
    return CLASS_OF_TYPE.get(name, "" if name in _SAYS_NOTHING else name)


def violations(type_: str | None, predicate: str, subject_class: str, object_class: str) -> str | None:
    """Return the decision against a relation between such ends: `reject`, `review`, or None."""
    if not subject_class and not object_class:
        return None
    rule = _rule(type_, predicate)
    if rule is None:
        return None
    if subject_class in rule.subject or object_class in rule.object:
        return "reject"
    if subject_class in rule.doubtful_subject or object_class in rule.doubtful_object:
        return "review"
    return None


def known_kind(kind: str) -> bool:
    """Return whether a unit's kind is one of the schema's."""
    return kind in KINDS


def _rule(type_: str | None, predicate: str) -> Rule | None:
    if type_:
        name = type_.casefold().replace("-", "_").replace(" ", "_")
        rule = _BY_TYPE.get(_SYNONYMS.get(name, name))
        if rule is not None:
            return rule
    folded = " ".join(predicate.casefold().split())
    return next((rule for pattern, rule in _BY_PREDICATE if pattern.search(folded)), None)
