"""Other names that a text states outright: acronyms with their expansion, "known as", birth names, the full name of a title.

No model, and no guess: a rule fires only where the text ties two names to one another by form, so most of what a reader would
take for an alias is left alone. What is not one in most texts is left out on purpose: nicknames of teams, what someone is
*best* known as, and a surname alone after "nee".
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_rag.names import CUTS, NameSpan, without_parenthesis
from gpu_rag.spans import normal_form
from gpu_rag.words import FUNCTION_WORDS

Span = tuple[int, int]

_REACH = 240  # characters before a cue in which its name may end
_MAX_CHARS = 100
_MAX_LETTERS = 10  # of an acronym

_HOW = (
    "also|better|more|commonly|formerly|previously|originally|professionally|popularly|officially|usually|often|sometimes|"
    "generally|simply|formally|colloquially|locally|internationally|mononymously|historically|later|now|variously|alternatively"
)
_STRONG = "also|formerly|previously|originally|officially|commonly|sometimes|alternatively"
# What stands between a name and its other name. `known` says it by itself; the others only beside a mark (see `_owner`).
_CUE = re.compile(
    rf"\b(?:(?<!best )(?P<known>(?:(?:{_HOW})\s+){{0,3}}known\s+(?:(?:{_HOW})\s+){{0,3}}"
    rf"(?:as|by\s+(?:the|his|her|their|its)\s+(?:\w+\s+)?name))"
    rf"|(?P<aka>a\.\s?k\.\s?a\.?|aka\b\.?)"
    rf"|(?P<called>(?:(?:{_STRONG})\s+){{1,3}}(?:called|named|titled|spelled|spelt|written))"
    rf"|(?P<short>(?:(?:{_HOW})\s+){{0,3}}abbreviated(?:\s+(?:as|to))?)"
    rf"|(?P<former>formerly)"
    rf"|(?P<born>n[e\u00e9]e?(?=\s+[^\W\d_])|born))\s+(?:[Tt]he\s+)?(?P<quote>[\"\u201c\u00ab\u201e']?)",
)
_STRONG_KNOWN = re.compile(rf"(?:{_STRONG}|better|professionally)\b")
_COPULA = re.compile(r"\s(?:is|was|are|were|has been|had been)$")
_AND_SHORTER = re.compile(r"[\"\u201d\u00bb'\u201c]?,?\s*\(?or\s+(?:simply\s+|just\s+)?(?:[Tt]he\s+)?[\"\u201c]?")
_AFTER_BIRTH_NAME = re.compile(r"\s*(?:[;)]|on\b|in\b|,?\s*(?:c\.\s*)?(?:\d|[A-Z][a-z]+\s+\d))")
_SHORT_FORM = re.compile(r"\(\s*(?P<short>[^\W\d_](?:[^\W\d_]|[.&/-]){1,19}?)s?\s*(?=[),;:]|\sor\s)")
_LONG_FORM = re.compile(r"\s*\(\s*(?:the\s+)?(?P<long>[^()\n,;:]{3,120}?)\s*[),;]")
_WORD = re.compile(r"[^\W_]+")
_LEAD = re.compile(
    r"\s*(?P<aside>\((?:[^()]|\([^()]*\)){0,300}\))?(?:,[^,.;()]{1,80},)?,?\s+(?:is|was|are|were)\s+(?:a|an|the|one)\b"
)
_YEAR = re.compile(r"\b\d{4}\b")
_MARK_OF_DATE = re.compile(r"\d")


class Alias(NamedTuple):
    """Another name: `alias` is what else is called `name`, which stands at [start, end) of the text."""

    start: int
    end: int
    name: str
    alias: str


def stated_aliases(text: str, names: Sequence[NameSpan], sentences: Iterable[Span]) -> list[Alias]:
    """Return the other names that the text states for names in it, each once, in the order of the names.

    Args:
        text: Any text.
        names: What `names.spot_names` found in it.
        sentences: (start, end) of its sentences.
    """
    spotted = _Spotted(text, names, {start for start, _ in sentences})
    found = [*_acronyms(text, spotted), *_cued(text, spotted)]
    distinct = {
        alias for alias in found if normal_form(alias.alias) != normal_form(alias.name) and len(alias.alias) <= _MAX_CHARS
    }
    return sorted(distinct)


def lead_alias(title: str, text: str, names: Sequence[NameSpan], sentences: Sequence[Span]) -> str | None:
    """Return the full name that the first sentence begins with, where it is another form of the title, else None.

    "Madonna" begins with "Madonna Louise Ciccone (born 1958) is an American singer".
    """
    base = without_parenthesis(title)
    if not sentences or not base or _MARK_OF_DATE.search(base):
        return None
    lead = _Spotted(text, names, set()).beginning(_after_article(text, sentences[0][0]))
    after = _LEAD.match(text, lead.end) if lead else None
    if lead is None or after is None or _MARK_OF_DATE.search(lead.name):
        return None
    of_title, of_lead = ([word for word in _WORD.findall(normal_form(name)) if len(word) > 1] for name in (base, lead.name))
    if not of_title or not of_lead or normal_form(base) == normal_form(lead.name):
        return None
    holds = set(of_title) < set(of_lead)
    is_person = after["aside"] is not None and _YEAR.search(after["aside"]) is not None
    same_surname = len(of_title) > 1 and len(of_lead) > 1 and of_title[-1] == of_lead[-1]
    return lead.name if holds or (is_person and same_surname) else None


class _Spotted:
    """The names of a text by where they begin and end."""

    def __init__(self, text: str, names: Sequence[NameSpan], sentence_starts: set[int]) -> None:
        self.text = text
        self.sentence_starts = sentence_starts
        self.by_span = {(name.start, name.end): name for name in names if name.type == "name"}
        self._starts = sorted(name.start for name in self.by_span.values())
        self._longest_from: dict[int, NameSpan] = {}
        self._longest_to: dict[int, NameSpan] = {}
        for name in self.by_span.values():
            self._longest_from[name.start] = max(name, self._longest_from.get(name.start, name), key=_length)
            self._longest_to[name.end] = max(name, self._longest_to.get(name.end, name), key=_length)

    def beginning(self, start: int) -> NameSpan | None:
        """Return the longest name that begins here, None if it may be two (Paris in France) or there is none."""
        name = self._longest_from.get(start)
        return None if name is None or not CUTS.isdisjoint(name.name.split()) else name

    def ending(self, end: int) -> NameSpan | None:
        """Return the longest name that ends here, None if it may be two or there is none."""
        name = self._longest_to.get(end)
        return None if name is None or not CUTS.isdisjoint(name.name.split()) else name

    def covered(self, span: Span) -> bool:
        """Return whether a name that ends where the span does covers it."""
        name = self._longest_to.get(span[1])
        return name is not None and name.start <= span[0]

    def any_within(self, start: int, end: int) -> bool:
        """Return whether a name begins in text[start:end]."""
        at = bisect_left(self._starts, start)
        return at < len(self._starts) and self._starts[at] < end

    def begins_sentence(self, name: NameSpan) -> bool:
        """Return whether nothing but an article stands before the name in its sentence."""
        return any(
            self.text[start : name.start].strip().casefold() in ("", "the")
            for start in range(max(name.start - 4, 0), name.start + 1)
            if start in self.sentence_starts
        )


def _length(name: NameSpan) -> int:
    return name.end - name.start


def _after_article(text: str, start: int) -> int:
    return start + 4 if text[start : start + 4].casefold() == "the " else start


def _cued(text: str, spotted: _Spotted) -> list[Alias]:
    found = []
    for cue in _CUE.finditer(text):
        other = spotted.beginning(cue.end())
        owner = _owner(text, cue, spotted) if other is not None else None
        if owner is None or other is None or not _fits(text, cue, other):
            continue
        found.append(Alias(owner.start, owner.end, owner.name, other.name))
        shorter = _AND_SHORTER.match(text, other.end)
        second = spotted.beginning(shorter.end()) if shorter and not cue["born"] else None
        if second is not None:
            found.append(Alias(owner.start, owner.end, owner.name, second.name))
    return found


def _fits(text: str, cue: re.Match[str], other: NameSpan) -> bool:
    """Return whether a name in full follows the cue: a birth name of two words, a former name alone in its parenthesis."""
    if cue["born"]:
        return len(other.name.split()) > 1 and _AFTER_BIRTH_NAME.match(text, other.end) is not None
    if cue["former"]:
        return text[cue.start() - 1 : cue.start()] == "(" and text[other.end : other.end + 1] == ")"
    return not cue["quote"] or text[other.end : other.end + 1] in "\"\u201d\u00bb\u201c',."


def _owner(text: str, cue: re.Match[str], spotted: _Spotted) -> NameSpan | None:
    """Return the name that the cue speaks of.

    In a parenthesis it is the name before it, if no other name stands between. Else it begins its sentence, but for a
    parenthesis or a copula between, or stands right before a cue that says "also".
    """
    floor = max(cue.start() - _REACH, 0)
    before = text[floor : cue.start()].rstrip()
    opened = before.rfind("(")
    if opened > before.rfind(")"):
        start = floor + opened
        return None if spotted.any_within(start, cue.start()) else spotted.ending(floor + len(before[:opened].rstrip()))
    if cue["born"] == "born" or cue["former"]:
        return None
    copula = _COPULA.search(before)
    if copula and (cue["called"] or (cue["known"] and _STRONG_KNOWN.match(cue["known"]))):
        before = before[: copula.start()]
    elif copula:
        return None
    comma = before.endswith(",")
    stripped = before.removesuffix(",").rstrip()
    aside = stripped.endswith(")")
    if aside:
        stripped = _without_aside(stripped)
    owner = spotted.ending(floor + len(stripped))
    if owner is None:
        return None
    if spotted.begins_sentence(owner):
        return owner
    strong = cue["aka"] or cue["born"] or (cue["known"] and _STRONG_KNOWN.match(cue["known"]))
    return owner if strong and not (comma or aside or copula) else None


def _without_aside(before: str) -> str:
    """Return the text without the parenthesis that it ends with, one inside it aside."""
    depth = 0
    for at in range(len(before) - 1, -1, -1):
        depth += (before[at] == ")") - (before[at] == "(")
        if depth == 0:
            return before[:at].rstrip()
    return ""


def _acronyms(text: str, spotted: _Spotted) -> list[Alias]:
    found = []
    for match in _SHORT_FORM.finditer(text):
        short = match["short"].rstrip(".-/&") if "." not in match["short"] else match["short"]
        letters = _letters(short)
        long = _expansion(text, match.start(), letters) if letters else None
        if long is None:
            continue
        place = (match.start("short"), match.start("short") + len(short))
        if long in spotted.by_span:
            found.append(Alias(*long, text[slice(*long)], short))
        elif place in spotted.by_span and not spotted.covered(long):
            found.append(Alias(*place, short, text[slice(*long)]))
    for (start, end), name in spotted.by_span.items():
        letters = _letters(name.name) if text.startswith((" (", "("), end) else ""
        after = _LONG_FORM.match(text, end) if letters else None
        if after and _spells(_WORD.findall(normal_form(after["long"])), letters):
            found.append(Alias(start, end, name.name, after["long"]))
    return found


def _letters(short: str) -> str:
    """Return the folded letters of an acronym, "" if it is none: mostly capitals, at least two, no space."""
    letters = [char for char in short if char.isalpha()]
    num_capitals = sum(char.isupper() for char in letters)
    if not 2 <= len(letters) <= _MAX_LETTERS or num_capitals < 2 or 2 * num_capitals < len(letters) or " " in short:
        return ""
    return normal_form("".join(letters))


def _expansion(text: str, opened: int, letters: str) -> Span | None:
    """Return the span of the words right before a parenthesis whose initials are the letters, else None."""
    end = len(text[:opened].rstrip()) if opened and text[opened - 1].isspace() else opened
    floor = max(opened - _REACH, text.rfind("\n", 0, opened) + 1)
    words = list(_WORD.finditer(text, floor, end))
    if not words or words[-1].end() != end:
        return None
    for count in range(len(letters), min(2 * len(letters) + 1, len(words)) + 1):
        some = words[len(words) - count :]
        if _spells([normal_form(word.group()) for word in some], letters):
            return some[0].start(), end
    return None


def _spells(words: Sequence[str], letters: str) -> bool:
    """Return whether the initials of the words are the letters; function words may be left out, except the first word."""
    if not words or words[0] in FUNCTION_WORDS or words[0][0] != letters[0]:
        return False
    reached = {1}  # letters spelt so far
    for word in words[1:]:
        ahead = {count + 1 for count in reached if count < len(letters) and letters[count] == word[0]}
        reached = ahead | reached if word in FUNCTION_WORDS else ahead
    return len(letters) in reached


__all__ = ["Alias", "lead_alias", "stated_aliases"]
