"""What a question asks for, read off its question word and noun by English rules; in another language always a phrase."""

import re
from typing import Literal, NamedTuple

from gpu_rag.query.text_features import STOP_WORDS, split_words

Kind = Literal["name", "place", "date", "number", "class", "reason", "yes_no", "phrase"]


class Expectation(NamedTuple):
    """What a question asks for.

    Attributes:
        kind: Kind of answer; `class` is a common noun that says what something is (an occupation, a sport).
        head: Stems of the noun that the answer is one of: "which large river" gives large, river.
        asking_end: Offset after the question word, 0 without one.
        head_end: Offset after that noun, 0 without one.
    """

    kind: Kind
    head: frozenset[str]
    asking_end: int
    head_end: int = 0


_AUXILIARIES = frozenset(
    """
    is was are were does did do has have had can could will would should may might been be s
    """.split()  # noqa: SIM905
)
_AMOUNT = re.compile(r"\bhow (many|much|long|old|far|tall|high|large|big|fast|often|deep|wide|heavy)\b")
_QUESTION_WORD = re.compile(r"\b(?:what|which|whom|whose|who|when|where|why|how)\b")
_COPULA = re.compile(r"\s+(?:is|was|are|were)\s+(?:the\s+)?(?:names?\s+of\s+(?:the\s+)?)?")
_RELATION = re.compile(r">>\s*")  # "subject >> relation", a question as a triple with its object left out
_POSSESSIVE = re.compile(r"['\u2019]s?$")
_VAGUE = frozenset(("of", "kind", "type", "sort", "other"))  # after which/what: the noun comes later
_MAX_HEAD_WORDS = 3
_NOUNS: dict[Kind, str] = {
    "date": "year years date day month century decade time period era season",
    "number": "percentage percent number amount population age temperature height length rate distance size speed width",
    "place": """
        city town village country countries state county province capital place location region continent district island
        birthplace nation territory
    """,
    "name": """
        person people man woman name actor actress author writer director performer singer artist spouse wife husband
        father mother son daughter brother sister king queen emperor president minister governor mayor founder inventor
        composer producer player coach captain leader team club band company organization organisation university school
        college album song film movie show series book novel river mountain lake party character creator developer
        designer owner architect manufacturer publisher
    """,
    "class": "occupation occupations profession professions job career vocation sport genre role",
}
_KIND_OF_NOUN: dict[str, Kind] = {noun: kind for kind, nouns in _NOUNS.items() for noun in nouns.split()}
_BY_WORD: dict[str, Kind] = {
    "who": "name", "whom": "name", "whose": "name", "when": "date", "where": "place", "why": "reason",
}  # fmt: skip


def expectation(question: str) -> Expectation:
    """Return what the question asks for; its first question word decides, unless it begins like a yes-no question."""
    folded = question.casefold()
    amount = _AMOUNT.search(folded)
    if amount:
        _, stems, end = _noun(question, amount.end())
        return Expectation("number", frozenset(stems), amount.end(), end)
    asking = _QUESTION_WORD.search(folded)
    relation = _RELATION.search(folded)
    first = folded.split()[:1]
    if first and first[0] in _AUXILIARIES:
        return Expectation("yes_no", frozenset(), 0)
    if asking is None and relation is None:
        return Expectation("phrase", frozenset(), 0)
    if asking and asking.group() in _BY_WORD:
        return Expectation(_BY_WORD[asking.group()], frozenset(), asking.end())
    start = asking.end() if asking else relation.end() if relation else 0
    names, stems, end = _noun(question, start)
    copula = _COPULA.match(folded, start)
    if not names and copula:
        names, stems, end = _noun(question, copula.end())
    kinds = [_KIND_OF_NOUN[name] for name in names if name in _KIND_OF_NOUN]
    return Expectation(kinds[-1] if kinds else "phrase", frozenset(stems), start, end)


def _noun(question: str, start: int) -> tuple[list[str], list[str], int]:
    """Return words (case folded), stems and end of the noun at `start`: up to three words before a verb, after any owner."""
    names: list[str] = []
    stems: list[str] = []
    end = 0
    for word in split_words(question[start:]):
        folded = question[start + word.start : start + word.end].casefold()
        if folded in _VAGUE and not names:
            continue
        if folded in STOP_WORDS or folded in _AUXILIARIES or len(names) == _MAX_HEAD_WORDS:
            break
        names.append(folded)
        stems.append(word.stem)
        end = start + word.end
        if _POSSESSIVE.search(folded):
            names, stems = [], []
    return names, stems, end
