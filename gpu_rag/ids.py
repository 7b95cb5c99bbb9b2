"""Identifiers: every id is derived from content, or is the user's own document id.

No uuid, clock, position in a file or block number enters an id, so the same input gives the same ids on every machine
and in every order of arrival. Hashes are BLAKE2b with 128 bits, written as 32 hexadecimal digits.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

_DIGEST_BYTES = 16


def content_hash(*parts: str | bytes) -> str:
    """Return the hash of the parts in order; ("ab", "c") and ("a", "bc") differ.

    Lone surrogates are hashed as they are (`surrogatepass`), so no text can make an id fail.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no white space: one text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def chunk_id(doc_id: str, text: str, occurrence: int) -> str:
    """Return the id of a chunk: its document, its text, and which of the document's equal texts it is (first: 0).

    Offsets stay out, so that a sentence inserted before a chunk does not rename it.
    """
    return content_hash("chunk", doc_id, text, str(occurrence))


def sentence_id(chunk_id: str, text: str, occurrence: int) -> str:
    """Return the id of a sentence within its chunk; `occurrence` tells equal sentences of one chunk apart."""
    return content_hash("sentence", chunk_id, text, str(occurrence))


def entity_id(normal_form: str, sense: str = "") -> str:
    """Return the id of an entity by the normal form of its name (`spans.normal_form`), and by its sense if it has one."""
    return content_hash("entity", normal_form, sense) if sense else content_hash("entity", normal_form)


def fact_id(subject: str, predicate: str, object_: str) -> str:
    """Return the id of a fact by its three normal forms; equal facts of several chunks share it."""
    return content_hash("fact", subject, predicate, object_)


def description_id(entity_id: str, text: str) -> str:
    """Return the id of a description of an entity; equal descriptions of several chunks share it."""
    return content_hash("description", entity_id, text)


def unit_id(kind: str, chunk_id: str, extractor: str, *content: str) -> str:
    """Return the id of an extracted unit (`mention` or `relation`) of one chunk by one extractor."""
    return content_hash(kind, chunk_id, extractor, *content)


def vector_id(text: str) -> str:
    """Return the id under which the embedding of `text` is kept: equal texts share one vector."""
    return content_hash("vector", text)


def occurrences(values: Iterable[str]) -> list[int]:
    """Return for each value how often it came before: ["a", "b", "a"] gives [0, 0, 1]."""
    seen: dict[str, int] = {}
    counts = []
    for value in values:
        counts.append(seen.get(value, 0))
        seen[value] = counts[-1] + 1
    return counts
