"""The query stages' methods `llm`: prompts, schemas of the answers, and the way back from local labels to ids.

A model sees passages as P1..Pn, sentences as S1..Sm and demands as D1..D5; which label an answer may hold is part of its
schema, so that with a grammar no id can be invented.
"""
