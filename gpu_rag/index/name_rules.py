"""What a name may be, and what must agree in two names of one thing."""

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from gpu_rag.spans import normal_form
from gpu_rag.words import FUNCTION_WORDS

MAX_NAME_WORDS = 24  # a longer one is a clause
_YEAR = re.compile(r"(?:1\d{3}|20\d{2})s?")

HONORIFICS = {
    "mr": "m", "mister": "m", "sir": "m", "monsieur": "m", "herr": "m", "mrs": "f", "ms": "f", "miss": "f", "madam": "f",
    "madame": "f", "mme": "f", "mlle": "f", "frau": "f", "dame": "f", "lady": "f", "dr": "", "doctor": "", "prof": "",
    "professor": "",
}  # fmt: skip
_SAME_HONORIFIC = {"mister": "mr", "doctor": "dr", "professor": "prof", "mme": "madame"}
# Not "company": Walt Disney is not the Walt Disney Company, nor American any American company.
_LEGAL = {
    "inc": "inc", "incorporated": "inc", "ltd": "ltd", "limited": "ltd", "llc": "llc", "plc": "plc", "corp": "corp",
    "corporation": "corp", "co": "co", "gmbh": "gmbh", "ag": "ag", "sa": "sa", "nv": "nv", "spa": "spa",
}  # fmt: skip
_DISTINGUISHING = """
north south east west northern southern eastern western central northeast northwest southeast southwest upper lower left right
inner outer front back top bottom first second third fourth fifth sixth seventh eighth ninth tenth last next early late
one two three four five six seven eight nine ten jr sr junior senior male female men women man woman boy girl boys girls
king queen prince princess duke duchess emperor empress father mother son daughter brother sister husband wife uncle aunt
old new great little big small high low hot cold young black white red blue green yellow
positive negative internal external maximum minimum major minor import export pre post anti pro non no not without
before after past future summer winter spring autumn morning evening day night micro macro inter intra hyper hypo
"""
_MUST_AGREE = frozenset(_DISTINGUISHING.split())
_ROMAN = re.compile(r"x{0,3}(?:ix|iv|v?i{0,3})")
_INITIALS = re.compile(r"\b(?:[^\W\d_]\. ?){2,}(?:[^\W\d_]\b(?!\.))?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_POINT = re.compile(r"(?<=\d)[.,](?=\d)")
_POSSESSIVE = re.compile(r"'s?$")
_CONTRACTION = re.compile(r"'(?=(?:ll|re|ve|d|m|t)(?!\w))")  # I'll is not Ill
_NUMBER = re.compile(r"\d")


class Parts(NamedTuple):
    """A name taken apart.

    Attributes:
        key: Words without article, honorific, legal suffix, possessive, punctuation and the marks on Latin and Greek letters.
        marks: Words and numbers among them that must agree in two names of one thing, sorted.
        honorific: "" if there is none; likewise `legal`.
        article: Whether an article led it; `possessive`, `initialism` likewise.
    """

    key: tuple[str, ...]
    marks: tuple[str, ...]
    honorific: str
    legal: str
    article: bool
    possessive: bool
    initialism: bool


@lru_cache(maxsize=1 << 16)
def malformed(name: str, type_: str | None = None) -> bool:
    """Return whether a name can name nothing: blank, a clause, or only digits, signs, pronouns and function words.

    A year names itself, and a title or a date is what it is.
    """
    words = name.split()
    if not any(c.isalnum() for c in name) or len(words) > MAX_NAME_WORDS:
        return True
    if type_ in ("title", "date"):
        return False
    if not any(c.isalpha() for c in name):
        return _YEAR.fullmatch(name.strip()) is None
    if _is_capitals(name) or (len(words) > 1 and all(word[:1].isupper() for word in words)):
        return False  # IT, The Who
    return all(_bare(word) in FUNCTION_WORDS or not any(c.isalpha() for c in word) for word in words)


def _bare(word: str) -> str:
    return word.casefold().strip(".,;:!?'\"()[]")


def _is_capitals(name: str) -> bool:
    """Return whether it is written in capitals alone, as an acronym is (IT, US, WHO)."""
    return len(name) > 1 and name.isupper()


@lru_cache(maxsize=1 << 16)
def parts(name: str) -> Parts:
    """Return the name taken apart."""
    form = _without_marks(normal_form(name))
    initialism = _INITIALS.search(form) is not None
    form = _INITIALS.sub(lambda match: match.group().replace(".", "").replace(" ", "") + " ", form)
    form = _POINT.sub("\ue000", _CONTRACTION.sub("\ue000", _THOUSANDS.sub("", form))).replace("&", " and ")
    spaced = form.split()
    possessive = len(spaced) > 1 and spaced[-1].endswith(("'s", "s'"))
    if possessive:
        spaced[-1] = spaced[-1][:-2] if spaced[-1].endswith("'s") else spaced[-1][:-1]
    words = _plain(" ".join(spaced)).split()
    article = len(words) > 1 and words[0] in ("the", "a", "an")
    words = words[1:] if article else words
    honorific = words[0] if len(words) > 1 and words[0] in HONORIFICS else ""
    words = words[1:] if honorific else words
    legal = words[-1] if len(words) > 1 and words[-1] in _LEGAL else ""
    words = words[:-1] if legal else words
    honorific, legal = _SAME_HONORIFIC.get(honorific, honorific), _LEGAL.get(legal, "")
    return Parts(tuple(words), marks(words), honorific, legal, article, possessive, initialism)


def marks(words: list[str]) -> tuple[str, ...]:
    """Return the words that must agree: numbers, roman numerals after the first word, directions, ordinals, gender, ..."""
    kept = []
    for place, word in enumerate(words):
        roman = place > 0 and word and _ROMAN.fullmatch(word) is not None
        if word in _MUST_AGREE or roman or _NUMBER.search(word):
            kept.append(word)
    return tuple(sorted(kept))


def initials_of(words: tuple[str, ...]) -> set[str]:
    """Return the acronyms that the words may have: with and without their function words."""
    content = [word for word in words if word not in FUNCTION_WORDS]
    return {"".join(word[0] for word in some) for some in (words, content) if len(some) > 1}


def _without_marks(form: str) -> str:
    """Return the text without the marks on Latin and Greek letters; in other scripts a mark makes another letter."""
    if form.isascii():
        return form
    out: list[str] = []
    base_is_plain = False
    for char in unicodedata.normalize("NFD", form):
        if unicodedata.category(char) == "Mn":
            if not base_is_plain:
                out.append(char)
            continue
        base_is_plain = char < "\u0250" or "\u0370" <= char <= "\u03ff"
        out.append(char)
    return unicodedata.normalize("NFC", "".join(out))


def _plain(form: str) -> str:
    """Return the text with punctuation turned into spaces; apostrophes go, signs that tell (C++, C#, A*) stay."""
    return "".join(
        char if char.isalnum() or char in "+#%*@\ue000" else "" if char in "'\u02bc" else " " if _is_punctuation(char) else char
        for char in form
    )


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] in "PZC"
