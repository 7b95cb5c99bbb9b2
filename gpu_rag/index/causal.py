"""Causal protection: a causal relation says what its text says, in the direction in which its text says it.

A relation is causal by its type or by its predicate. Its span needs a cue between or around the two names; the side on which
the cue has the cause must be the side of the relation's cause. Negated, it is no causal relation; hedged, it waits for
review. In a text that is not English there is no list of cues, so a person looks at it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpu_rag.spans import fold
from gpu_rag.words import FUNCTION_WORDS

WITHOUT_CUE = "causal_without_cue"
REVERSED = "causal_direction"
NEGATED = "causal_negated"
HEDGED = "causal_hedged"
FOREIGN = "causal_language"

# The cause comes first: X caused Y, X led to Y, X; therefore Y.
_FORWARD = r"""
caus(?:e|es|ed|ing)|(?:lead|leads|led|leading)(?: [\w()]+){0,3}? to|result(?:s|ed|ing)? in|resulting|trigger(?:s|ed|ing)?
|bring(?:s|ing)? about|brought (?:about|on)|g(?:ive|ives|ave|iving) rise to|induc(?:e|es|ed|ing)|provok(?:e|es|ed|ing)
|therefore|thus|hence|thereby|consequently|as a (?:result|consequence),|so that|(?:is|was) why|contribut(?:e|es|ed|ing) to
|mak(?:e|es|ing)|made|creat(?:e|es|ed|ing)|produc(?:e|es|ed|ing)|prompt(?:s|ed|ing)?|spark(?:s|ed|ing)?
|driv(?:e|es|ing)|drove|(?<=, )so|forc(?:e|es|ed|ing)|allow(?:s|ed|ing)?|enabl(?:e|es|ed|ing)|prevent(?:s|ed|ing)?
|kill(?:s|ed|ing)?|destroy(?:s|ed|ing)?
"""
# The effect comes first: Y was caused by X, Y because of X.
_BACKWARD = r"""
(?:caused|triggered|induced|provoked|brought about|brought on|produced|prompted|sparked|created|driven|prevented|enabled
|forced|killed|destroyed|made possible)(?: \w+ly)? by|because(?: of)?|due to|owing to|thanks to|on account of
|as a (?:result|consequence) of|in consequence of|result(?:s|ed|ing)? from|stem(?:s|med|ming)? from|aris(?:e|es|ing) from
|arose from|arisen from|attribut(?:ed|able) to|for want of|for fear of|(?:die|dies|died|dying|death) (?:of|from)
|follow(?:s|ed)? from
"""
_BACK = re.compile(rf"\b(?:{''.join(_BACKWARD.split(chr(10)))})(?!\w)")
_FORTH = re.compile(rf"\b(?:{''.join(_FORWARD.split(chr(10)))})(?!\w)")
_LEADING = re.compile(r"\b(?:because(?: of)?|due to|owing to|thanks to|on account of|as a (?:result|consequence) of)\W")
_CONNECTIVE = re.compile(r"because(?: of)?|due to|owing to|thanks to|on account of|as a (?:result|consequence) of")
_PREDICATE = re.compile(
    r"\b(?:caus(?:e|es|ed|ing)|(?:lead|leads|led|leading) to|result(?:s|ed|ing)? (?:in|from)|because|due to|owing to"
    r"|trigger(?:s|ed|ing)?|bring(?:s|ing)? about|brought about|g(?:ive|ives|ave|iving) rise to|induc(?:e|es|ed|ing)"
    r"|provok(?:e|es|ed|ing)|as a result of|stem(?:s|med|ming)? from|aris(?:e|es|ing) from|arose from)(?!\w)"
)
_NEGATION = re.compile(
    r"\b(?:not(?! only\b)|never|no(?! doubt\b)|neither|nor|without|hardly|cannot|fail(?:s|ed)? to|rather than|instead of"
    r"|unlikely to|did nothing to)\b|n't\b"
)
_HEDGE = re.compile(
    r"\b(?:may|might|could|can|would|possibly|perhaps|probably|likely|potential(?:ly)?|whether|if|hypothes\w+"
    r"|alleged(?:ly)?|reported(?:ly)?|suspected|supposed(?:ly)?|(?:thought|believed|said|assumed) to"
    r"|suggest(?:s|ed|ing)?|seem(?:s|ed)? to|appear(?:s|ed)? to)\b"
)
_CLAUSE_END = re.compile(r"[.!?;:]|, (?:but|and|while|although|which|who) ")
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f](?=\s|$)|[\u3002\uff01\uff1f]")
_COMMON = "the of and to in a is was were are by that for with as on it be this from had has have not his her"
_ENGLISH = frozenset(_COMMON.split())
_WORD = re.compile(r"[^\W\d_]+")
_STEM = 5  # letters that tell a word in another inflection
_REACH = 60  # characters before and after the names in which a cue counts


class Finding(NamedTuple):
    """What the text says of a causal relation: the reason against it, "" if none, and the span with its cue, in `text`."""

    reason: str
    span: tuple[int, int]


def is_causal(type_: str | None, predicate: str) -> bool:
    """Return whether a relation is causal, by its type or by its predicate."""
    return (type_ is not None and type_.casefold().startswith("caus")) or _PREDICATE.search(_folded(predicate)) is not None


def check(text: str, span: tuple[int, int], subject: str, predicate: str, object_: str, type_: str | None = None) -> Finding:
    """Return what a text says of a causal relation whose names stand at a span of it.

    Args:
        text: Of the chunk.
        span: Of the relation, in `text`.
        subject: As the text writes it, as far as that is known.
        predicate: Says which end is the cause: "caused by" the object, else the subject.
        object_: Likewise.
        type_: Of a relation with a causal type the subject is the cause, unless its predicate is a passive verb; a mere
            "because" only joins the two.
    """
    forward = not _is_passive(type_, predicate)
    first = None
    for window in _windows(text, span, subject, object_):
        finding = _in_sentence(text, window, subject, predicate, object_, forward)
        if not finding.reason:
            return finding
        first = first or finding
    assert first is not None
    return first


def _is_passive(type_: str | None, predicate: str) -> bool:
    """Return whether a relation names its effect first."""
    folded = _folded(predicate)
    if type_ is not None and _CONNECTIVE.fullmatch(folded):
        return False
    return _BACK.search(folded) is not None and not _FORTH.search(_BACK.sub(" ", folded))


def _windows(text: str, span: tuple[int, int], subject: str, object_: str) -> Iterator[tuple[int, int]]:
    """Yield the span, then each sentence of the text that names both: another may say what the smallest window does not."""
    yield span
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        sentence = _folded(text[start:end])
        if (start, end) != span and _folded(subject) in sentence and _folded(object_) in sentence:
            yield start + len(text[start:end]) - len(text[start:end].lstrip()), end
        start = end


def _in_sentence(
    text: str, span: tuple[int, int], subject: str, predicate: str, object_: str, subject_is_cause: bool
) -> Finding:
    start, end = _with_surroundings(text, span)
    said, origin = fold(text[start:end])
    places = _located(said, subject, object_)
    if places is None:  # said in other words: a cue anywhere, whichever way it points
        cues = [(low, high, subject_is_cause) for low, high, _ in _cues(said, (0, 0), (len(said), len(said)))]
        subject_first = True
    else:
        subject_first = places[0] <= places[1]
        cues = list(_cues(said, *sorted(places)))
    if not cues:
        return Finding(WITHOUT_CUE if _is_english(text) else FOREIGN, span)
    agreeing = [cue for cue in cues if (cue[2] == subject_first) == subject_is_cause]
    if not agreeing:
        return Finding(REVERSED, span)
    denied = _NEGATION.search(_folded(predicate)) is not None
    findings = []
    for cue_start, cue_end, _ in agreeing:
        before = _same_clause(said[:cue_start])
        negated = _NEGATION.search(before) is not None
        reason = NEGATED if negated != denied else HEDGED if _HEDGE.search(before) else ""
        low, high = start + origin[cue_start], start + origin[cue_end - 1] + 1
        findings.append(Finding(reason, (min(span[0], low), max(span[1], high))))
    rank = {"": 0, HEDGED: 1, NEGATED: 2}
    return min(findings, key=lambda finding: (rank[finding.reason], finding.span))


def _located(said: str, subject: str, object_: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return where the two ends stand: their names, or the words that only one of them has; None if that cannot be told."""
    names = (_folded(subject), _folded(object_))
    words = [{word[:_STEM] for word in _WORD.findall(name)} for name in names]
    places = []
    for name, own, others in ((names[0], words[0], words[1]), (names[1], words[1], words[0])):
        at = said.find(name)
        if at >= 0:
            places.append((at, at + len(name)))
            continue
        telling = own - others - FUNCTION_WORDS
        found = [match.span() for match in _WORD.finditer(said) if match.group()[:_STEM] in telling]
        if not found:
            return None
        places.append((found[0][0], found[-1][1]))
    return places[0], places[1]


def _cues(said: str, first: tuple[int, int], second: tuple[int, int]) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, whether the cause is the end that comes first) of each cue between and around the two ends."""
    low, high = min(first[1], second[0]), second[0]
    backward = [match.span() for match in _BACK.finditer(said, low, high)]
    yield from ((start, end, False) for start, end in backward)
    for match in _FORTH.finditer(said, low, high):
        if not any(start <= match.start() < end for start, end in backward):
            yield *match.span(), True
    before = max((match for match in _LEADING.finditer(said, 0, first[0])), key=lambda match: match.start(), default=None)
    if before is not None and _CLAUSE_END.search(said, before.end(), first[0]) is None:
        yield before.start(), before.end(), True  # because of X, Y
    after = _CLAUSE_END.search(said, second[1])
    for match in re.finditer(
        r"\b(?:as a result|consequently|in consequence|therefore)\b", said[second[1] : after.start() if after else None]
    ):
        yield second[1] + match.start(), second[1] + match.end(), True


def _same_clause(before: str) -> str:
    """Return the end of what precedes a cue, from its clause's beginning, six words at most."""
    ends = [match.end() for match in _CLAUSE_END.finditer(before)]
    return " ".join(before[ends[-1] if ends else 0 :].split()[-6:])


def _with_surroundings(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return the span with what stands around it in its sentence, `_REACH` characters at most."""
    start, end = max(span[0] - _REACH, 0), min(span[1] + _REACH, len(text))
    before = [match.end() for match in _SENTENCE_END.finditer(text, start, span[0])]
    after = _SENTENCE_END.search(text, span[1], end)
    return before[-1] if before else start, after.end() if after else end


def _is_english(text: str) -> bool:
    words = _WORD.findall(text.casefold())
    return bool(words) and sum(word in _ENGLISH for word in words) >= 0.08 * len(words)


def _folded(text: str) -> str:
    return fold(text)[0].strip()
