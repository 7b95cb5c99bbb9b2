"""Extractor `recorded`: entities and triples that an earlier run of some LLM left in openie.jsonl.

Nothing was recorded about where they stand, so they carry no spans and no score.
"""

from gpu_rag.index.extractors import Chunk, Extraction, Mention, Relation
from gpu_rag.spans import is_blank


def extract(chunk: Chunk) -> Extraction:
    """Return the recorded names and triples of the chunk; malformed triples are left out and counted in the note."""
    if chunk.entities is None or chunk.triples is None:
        return Extraction([], [], "no recorded extraction")
    mentions = [Mention(name) for name in chunk.entities if not is_blank(name)]
    relations = [
        Relation(triple[0], triple[1], triple[2])
        for triple in chunk.triples
        if len(triple) == 3 and not any(is_blank(part) for part in triple)
    ]
    num_malformed = len(chunk.triples) - len(relations)
    return Extraction(mentions, relations, f"{num_malformed} triples malformed" if num_malformed else "")
