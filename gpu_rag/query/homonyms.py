"""Homonyms in a question: which of several entities of one name it means."""

import re
from collections import defaultdict
from collections.abc import Sequence

from gpu_rag.spans import normal_form
from gpu_rag.words import FUNCTION_WORDS

_WORD = re.compile(r"[^\W_]+")


def in_sense(
    found: Sequence[tuple[int, int, int]], text: str, normal_forms: Sequence[str], senses: Sequence[str]
) -> list[tuple[int, int, int]]:
    """Return the (start, end, entity row) whose sense shares most words with the text, of homonyms at one place.

    Where the text has no word of any sense, all of them stay.

    Args:
        found: Entities named in the text.
        text: The question.
        normal_forms: Of each entity; homonyms have equal ones.
        senses: Likewise, "" where nothing tells it from its homonyms.
    """
    if not any(senses[entity] for _, _, entity in found):
        return list(found)
    words = _words(text)
    homonyms: dict[tuple[int, int, str], list[tuple[int, int, int]]] = defaultdict(list)
    for start, end, entity in found:
        homonyms[start, end, normal_forms[entity]].append((start, end, entity))
    kept = []
    for (_, _, form), group in homonyms.items():
        shares = [len((_words(senses[entity]) - _words(form)) & words) for _, _, entity in group]
        kept += [place for place, share in zip(group, shares, strict=True) if share == max(shares)]
    return sorted(kept)


def _words(text: str) -> set[str]:
    return {word for word in _WORD.findall(normal_form(text)) if word not in FUNCTION_WORDS}
