"""Find pieces of a text in it that were cut by another program, which may have changed white space, case or quotes."""

from bisect import bisect_left
from collections.abc import Iterable

from gpu_rag.spans import fold, unfold


def locate_in_order(source: str, pieces: Iterable[str]) -> list[tuple[int, int] | None]:
    """Return (start, end) of each piece in `source`, or None where it does not stand there.

    Exactly, else under `spans.fold`; first behind the start of the piece before it, so that repeated passages are told
    apart, else from the beginning. The source is folded once at most.
    """
    spans: list[tuple[int, int] | None] = []
    after = 0
    for piece in pieces:
        span = _locate(source, piece, after)
        if span is None and after:
            span = _locate(source, piece, 0)
        if span is not None:
            after = span[0] + 1
        spans.append(span)
    return spans


def _locate(source: str, piece: str, after: int) -> tuple[int, int] | None:
    exact = source.find(piece, after)
    if exact >= 0:
        return exact, exact + len(piece)
    needle = fold(piece)[0].strip()
    if not needle:
        return None
    haystack, origin = fold(source)
    at = haystack.find(needle, bisect_left(origin, after))
    return unfold(source, origin, at, at + len(needle)) if at >= 0 else None
