"""Extractor `mentions`: names, dates and the title, spotted without a model, and co-mentions per sentence.

Aliases are what the text says outright (`gpu_rag.aliases`); types are finer than name, date and title only where a name's form
says what it names (`gpu_rag.name_types`).

The document's title is a mention of every one of its chunks, whole and without a trailing parenthesis, since text under
a title speaks of it mostly by pronoun.

All pairs of names in a sentence would be quadratic in its length (a list of 60 names gives 1,770 relations), so a
sentence gives a star: its hub is the title if the sentence names it, else the sentence's first name, which mostly is
its subject. That is one relation per further name, it connects all of them within two steps, and each relation's span
is the whole sentence.
"""

from gpu_rag.aliases import lead_alias, stated_aliases
from gpu_rag.index.entities import CO_MENTIONED
from gpu_rag.index.extractors import Chunk, Extraction, Mention, Relation
from gpu_rag.name_types import name_type
from gpu_rag.names import NameSpan, spot_names, without_parenthesis
from gpu_rag.spans import normal_form


def extract(chunk: Chunk) -> Extraction:
    """Return every occurrence of a name or date in the chunk, its title, and the stars of its sentences."""
    spotted = spot_names(chunk.text)
    aliases: dict[tuple[int, int], list[str]] = {}
    for start, end, _, alias in stated_aliases(chunk.text, spotted, chunk.sentences):
        aliases.setdefault((start, end), []).append(alias)
    lead = lead_alias(chunk.title, chunk.text, spotted, chunk.sentences)
    titles = sorted({chunk.title, without_parenthesis(chunk.title)} - {""})
    mentions = [Mention(title, "title", aliases=[lead] if lead else None) for title in titles]
    for start, end, name, type_ in spotted:
        finer = name_type(chunk.text, start, end) if type_ == "name" else None
        mentions.append(Mention(name, finer or type_, start, end, aliases=aliases.get((start, end))))
    return Extraction(mentions, _co_mentions(chunk, spotted, {normal_form(title) for title in titles}))


def _co_mentions(chunk: Chunk, spotted: list[NameSpan], titles: set[str]) -> list[Relation]:
    """Return one relation from the hub of each sentence to every other of its names, each name once."""
    relations = []
    at = 0
    for start, end in chunk.sentences:
        while at < len(spotted) and spotted[at].start < start:
            at += 1
        names: dict[str, str] = {}
        while at < len(spotted) and spotted[at].start < end:
            if spotted[at].end <= end:
                names.setdefault(normal_form(spotted[at].name), spotted[at].name)
            at += 1
        if len(names) > 1:
            hub = next((key for key in names if key in titles), next(iter(names)))
            others = (name for key, name in names.items() if key != hub)
            relations += [Relation(names[hub], CO_MENTIONED, name, start, end) for name in others]
    return relations
