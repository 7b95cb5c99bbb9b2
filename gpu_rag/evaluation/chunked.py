"""The chunks of a corpus, computed in this process, for what needs real ones without an index: estimates and benchmarks."""

import pyarrow as pa

from gpu_rag.config import Config
from gpu_rag.engines.token_counter import open_token_counter
from gpu_rag.index import s02_profile, s03_chunk
from gpu_rag.index.s02_profile import ProfileConfig
from gpu_rag.stage import Tables, run_here


def chunked_here(tables: Tables, config: Config) -> dict[str, pa.Table]:
    """Return profiles, chunks and sentences of the documents; profiles are those of the rules, no model is asked."""
    made = run_here(s02_profile.STAGE, ProfileConfig(), tables)
    engines = {}
    if "tokenizer" in s03_chunk.STAGE.engines_for(config.chunk):
        engines["tokenizer"] = open_token_counter(config.embed.encoder)
    return made | run_here(s03_chunk.STAGE, config.chunk, {**tables, **made}, **engines)


__all__ = ["chunked_here"]
