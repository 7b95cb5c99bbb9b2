"""What an extractor is: a function from the content of one chunk to its units.

An extractor sees content only, no ids and no offsets in the document, so equal chunks are extracted once. Spans count
code points of the chunk's text; None where the extractor knows none, then governance looks for one.
"""

from collections.abc import Callable
from typing import NamedTuple


class Chunk(NamedTuple):
    """Content of one chunk.

    Attributes:
        title: The document's title, "" if it has none.
        text: The chunk's text.
        sentences: (start, end) of each sentence within the text, in order.
        entities: Recorded names, None if nothing was recorded for the chunk.
        triples: Recorded triples, as recorded; None likewise.
        discourse: Its document's mode, narrative, conceptual or argumentative; "" where no method in use depends on it.
    """

    title: str
    text: str
    sentences: list[tuple[int, int]]
    entities: list[str] | None
    triples: list[list[str]] | None
    discourse: str = ""


class Mention(NamedTuple):
    """A name in a chunk; one of type `title` without span stands in the document's title line."""

    name: str
    type: str | None = None
    start: int | None = None
    end: int | None = None
    confidence: float | None = None
    description: str | None = None
    aliases: list[str] | None = None
    kind: str = "entity"


class Relation(NamedTuple):
    """A relation between two names, stated in a chunk."""

    subject: str
    predicate: str
    object: str
    start: int | None = None
    end: int | None = None
    confidence: float | None = None
    type: str | None = None


class Extraction(NamedTuple):
    """Units of one chunk; `note` says what the extractor left out and why."""

    mentions: list[Mention]
    relations: list[Relation]
    note: str = ""


class Failure(NamedTuple):
    """Why an extractor has no units for a chunk: the state of its row, and the reason."""

    state: str
    reason: str


Extractor = Callable[[Chunk], Extraction]
