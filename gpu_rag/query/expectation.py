"""What a question asks for, read off its question word by English rules; in another language always a phrase."""

import re
from typing import Literal, NamedTuple

from gpu_rag.query.text_features import STOP_WORDS, split_words

Kind = Literal["name", "place", "date", "number", "reason", "yes_no", "phrase"]


class Expectation(NamedTuple):
    """What a question asks for.

    Attributes:
        kind: Kind of answer.
        head: Stems of the noun that the answer is one of: "which large river" gives large, river.
        asking_end: Offset after the question word, 0 without one.
    """

    kind: Kind
    head: frozenset[str]
    asking_end: int


_AUXILIARIES = frozenset(
    """
    is was are were does did do has have had can could will would should may might been be s
    """.split()  # noqa: SIM905
)
_AMOUNT = re.compile(r"\bhow (many|much|long|old|far|tall|high|large|big|fast|often|deep|wide|heavy)\b")
_QUESTION_WORD = re.compile(r"\b(?:what|which|whom|whose|who|when|where|why|how)\b")
_COPULA = re.compile(r"\s+(?:is|was|are|were)\s+(?:the\s+)?(?:names?\s+of\s+(?:the\s+)?)?")
_VAGUE = frozenset(("of", "kind", "type", "sort", "other"))  # after which/what: the noun comes later
_DATES = frozenset(("year", "years", "date", "day", "month", "century", "decade", "time", "period", "era", "season"))
_NUMBERS = frozenset(
    """
    percentage percent number amount population age temperature height length rate distance size speed width
    """.split()  # noqa: SIM905
)
_BY_WORD: dict[str, Kind] = {
    "who": "name", "whom": "name", "whose": "name", "when": "date", "where": "place", "why": "reason",
}  # fmt: skip


def expectation(question: str) -> Expectation:
    """Return what the question asks for; its first question word decides, unless it begins like a yes-no question."""
    folded = question.casefold()
    amount = _AMOUNT.search(folded)
    if amount:
        return Expectation("number", frozenset(_noun(question[amount.end() :])[1]), amount.end())
    asking = _QUESTION_WORD.search(folded)
    first = folded.split()[:1]
    if first and first[0] in _AUXILIARIES:
        return Expectation("yes_no", frozenset(), 0)
    if asking is None:
        return Expectation("phrase", frozenset(), 0)
    word = asking.group()
    if word in _BY_WORD:
        return Expectation(_BY_WORD[word], frozenset(), asking.end())
    rest = question[asking.end() :]
    names, stems = _noun(rest)
    copula = _COPULA.match(rest.casefold())
    if not names and copula:
        names, stems = _noun(rest[copula.end() :])
    kind: Kind = "date" if _DATES & set(names) else "number" if _NUMBERS & set(names) else "phrase"
    return Expectation(kind, frozenset(stems), asking.end())


def _noun(rest: str) -> tuple[list[str], list[str]]:
    """Return the words, case folded, and stems of the noun that `rest` begins with: up to three words before a verb."""
    names: list[str] = []
    stems: list[str] = []
    for word in split_words(rest)[:5]:
        folded = rest[word.start : word.end].casefold()
        if folded in _VAGUE and not names:
            continue
        if folded in STOP_WORDS or folded in _AUXILIARIES:
            break
        names.append(folded)
        stems.append(word.stem)
    return names[:3], stems[:3]
