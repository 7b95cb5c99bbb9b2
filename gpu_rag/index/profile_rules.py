"""Profile of one document from its surface alone: form, topics, discourse mode, sections, boundary. No model, no corpus.

The cues are words and marks that hold for any topic, counted per hundred words. Sections, boundary and topics serve every
script; the words that tell discourse modes apart are English, and a text with few of them, in whatever language, is narrative:
that mode asks for people, places, events and their relations, which every text has. The thresholds stand where the sample
corpus and a few books set them; a profile chooses how a document is cut and read, and is never evidence.
"""

import re
from collections import Counter
from dataclasses import dataclass

from gpu_rag.index.profile_words import (
    ARGUE,
    COMMON,
    FIRST_OR_SECOND_PERSON,
    NOT_PAST,
    PAST,
    PRESENT,
    THIRD_PERSON,
    TIME,
)
from gpu_rag.index.sections import Section, boundary_of, find_sections
from gpu_rag.spans import body_start, source_text
from gpu_rag.words import FUNCTION_WORDS, UNSPACED

FORMS = ("fiction", "paper", "report", "article", "dialogue", "mixed")
DISCOURSES = ("narrative", "conceptual", "argumentative")
MAX_TOPICS = 8

_LONG_WORDS = 4_000  # a longer document without a form of its own is mixed
_MIN_WORDS = 20
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_POSSESSIVE = re.compile("['\u2019]s$")
_UNSPACED = re.compile(f"[{UNSPACED}]{{2,}}")
_SPEECH = re.compile(  # ends like something said, which a quoted title does not
    "[\u201c\u201e\u00ab](?=[^ \u201c\u201d]{1,40} [^ \u201c\u201d]{1,40} )[^\u201c\u201d\u201e\u00ab\u00bb]{2,600}"
    "(?<=[.,!?\u2014-])[\u201d\u00bb]"
    '|"(?=[^ "]{1,40} [^ "]{1,40} )[^"]{2,600}(?<=[.,!?-])"'
    "|\u300c[^\u300c\u300d]{2,600}\u300d"
)
_SPEAKER = re.compile(
    r"(?:^[ \t]*|(?<=[.!?\])_\"\u201d-][ \n]))(?:(?P<caps>[A-Z][A-Z'\u2019-]{2,}(?: [A-Z][A-Z'\u2019.-]+){0,2})[.:]"
    r"|(?P<name>[A-Z][\w'\u2019.-]{0,20}(?: [A-Z][\w'\u2019.-]{0,20}){0,2}):)(?=\s)",
    re.MULTILINE,
)
_CITATION = re.compile(
    r"\[\d{1,3}(?:[,\u2013-] ?\d{1,3})*\]|\bet al\.|\(\w[^()]{0,60}, (?:19|20)\d\d[a-z]?\)|\bdoi:|\barXiv:", re.IGNORECASE
)
_REPORT = re.compile(
    r"\b(?:report|minutes|inquiry|survey of|audit|proceedings|census|bulletin|memorandum|log-?book|notice to)\b", re.IGNORECASE
)
_PAPER_HEADINGS = frozenset({"abstract", "references", "bibliography", "related work", "methods", "results", "discussion"})
_ARGUE_PHRASES = re.compile(
    r"\b(?:it follows|in my (?:view|opinion)|i (?:think|believe|say|argue|hold)"
    r"|we (?:must|should|ought|argue|ask|hold|find|conclude)|on the (?:one|other) hand|for the reason"
    r"|the (?:truth|point|question|argument|answer) is|it is (?:said|true|clear|wrong|plain)|would (?:be|have)|not because"
    r"|if (?:so|not|we|they|the))\b"
)
_DEFINE = re.compile(
    r"\b(?:is|are) (?:a|an|the|any|one of|called|known as|defined|used|made up|composed|usually|often|typically)\b"
    r"|\b(?:refers? to|means? that|defined as|known as|consists? of|such as|kinds? of|types? of|classified|also called)\b"
)
_NO_TOPICS = FUNCTION_WORDS | PAST | PRESENT | THIRD_PERSON | FIRST_OR_SECOND_PERSON | TIME | ARGUE | COMMON
_EVIDENT = 1.0  # of a score, per hundred words: below, nothing speaks for the mode


@dataclass(frozen=True)
class Profile:
    """p = (form, topics, discourse, sections, boundary) of one document."""

    form: str
    topics: tuple[str, ...]
    discourse: str
    sections: tuple[Section, ...]
    boundary: str


@dataclass(frozen=True)
class Cues:
    """What the surface shows: scores per hundred words, shares of characters, and counts."""

    num_words: int
    narrative: float
    conceptual: float
    argumentative: float
    speech: float
    speakers: float
    citations: float


def profile_document(title: str, text: str) -> Profile:
    """Return the profile of a document."""
    source = source_text(title, text)
    body = body_start(title, text)
    sections = tuple(find_sections(source, body))
    words = words_of(source)
    cues = surface_cues(source[body:], words)
    mode = discourse_of(cues)
    return Profile(
        form=_form(title, text[:400], sections, cues, mode),
        topics=tuple(topics_of(title, source, words)),
        discourse=mode,
        sections=sections,
        boundary=boundary_of(sections),
    )


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without the English possessive."""
    words = (match.group().lower() for match in _WORD.finditer(text))
    return [_POSSESSIVE.sub("", word) if "'" in word or "\u2019" in word else word for word in words]


def surface_cues(text: str, words: list[str]) -> Cues:
    """Return the cues of a text; `words` are its words in lower case."""
    counts = Counter(words)
    rate = 100.0 / max(len(words), 1)
    lowered = text.lower()

    def per_hundred(cues: frozenset[str]) -> float:
        return rate * sum(counts[word] for word in cues)

    past = per_hundred(PAST) + rate * sum(
        count for word, count in counts.items() if word.endswith("ed") and len(word) > 4 and word not in NOT_PAST
    )
    present = per_hundred(PRESENT)
    speech = sum(len(match.group()) for match in _SPEECH.finditer(text)) / max(len(text), 1)
    speakers = Counter(match["caps"] or match["name"] for match in _SPEAKER.finditer(text))
    turns = [count for count in speakers.values() if count > 1]
    argue = per_hundred(ARGUE) + rate * len(_ARGUE_PHRASES.findall(lowered))
    return Cues(
        num_words=len(words),
        narrative=past + 0.7 * per_hundred(THIRD_PERSON) + 0.5 * per_hundred(TIME) + 10 * speech,
        conceptual=present + 3 * rate * len(_DEFINE.findall(lowered)),
        argumentative=3.75 * argue + 0.25 * per_hundred(FIRST_OR_SECOND_PERSON) + 0.25 * present,
        speech=speech,
        speakers=rate * sum(turns) if len(turns) > 1 else 0.0,
        citations=rate * len(_CITATION.findall(text)),
    )


def discourse_of(cues: Cues) -> str:
    """Return the mode with the highest score; narrative where none is evident, and of equals."""
    scores = {"narrative": cues.narrative, "conceptual": cues.conceptual, "argumentative": cues.argumentative}
    best = max(scores, key=lambda mode: scores[mode])
    return best if cues.num_words >= _MIN_WORDS and scores[best] >= _EVIDENT else "narrative"


def topics_of(title: str, source: str, words: list[str]) -> list[str]:
    """Return the words that tell most of the document, the strongest first: frequent ones, those of the title ahead.

    Scripts that set no spaces give pairs of characters.
    """
    counts = Counter(word for word in words if _tells(word))
    for run in _UNSPACED.findall(source):
        counts.update(run[at : at + 2] for at in range(len(run) - 1))
    first = {word: place for place, word in reversed(list(enumerate(counts)))}
    in_title = set(words_of(title))
    weights = {word: count * (2 if word in in_title else 1) for word, count in counts.items()}
    least = 1 if len(words) < 150 else 2
    telling = [word for word, weight in weights.items() if weight >= least]
    return sorted(telling, key=lambda word: (-weights[word], first[word], word))[:MAX_TOPICS]


def _tells(word: str) -> bool:
    """Return whether a word can be a topic: neither a function word nor one of the cues, and no run of unspaced script."""
    return len(word) > 2 and word not in _NO_TOPICS and not _UNSPACED.match(word)


def _form(title: str, head: str, sections: tuple[Section, ...], cues: Cues, mode: str) -> str:
    names = {section.title.lower().strip(" .:0123456789") for section in sections}
    if len(names & _PAPER_HEADINGS) >= 2 or (cues.citations > 0.5 and len(sections) >= 3):
        return "paper"
    if cues.speakers > 0.8:
        return "dialogue"
    if _REPORT.search(title) or (not title and _REPORT.search(head)):
        return "report"
    told = mode == "narrative" and (cues.speech > 0.05 or (boundary_of(sections) == "chapter" and cues.narrative > 10))
    if told and cues.narrative > 8:
        return "fiction"
    return "mixed" if cues.num_words > _LONG_WORDS else "article"


__all__ = [
    "DISCOURSES",
    "FORMS",
    "MAX_TOPICS",
    "Cues",
    "Profile",
    "discourse_of",
    "profile_document",
    "surface_cues",
    "topics_of",
    "words_of",
]
