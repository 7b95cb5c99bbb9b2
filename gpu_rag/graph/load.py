"""Open the graph of a published index with torch and numpy alone."""

import json
import os
from pathlib import Path

from gpu_rag.errors import StoreError
from gpu_rag.graph.csr import CsrGraph, read_csr

_ARTIFACT = "07_graph_csr"


def load_graph(index: str | os.PathLike[str]) -> CsrGraph:
    """Return the graph of an INDEX folder's current generation: chunks, then entities, each in id order.

    Raises:
        StoreError: If nothing is published there, or the generation has no graph, naming the file.
    """
    root = Path(index)
    try:
        current = json.loads((root / "CURRENT").read_text(encoding="utf-8"))
        path = root / "generations" / f"{current['generation']}.json"
        folder = json.loads(path.read_text(encoding="utf-8"))["artifacts"][_ARTIFACT]["folder"]
    except FileNotFoundError as error:
        raise StoreError(f"{root} holds no published index: {error.filename} is missing") from error
    except (json.JSONDecodeError, KeyError) as error:
        raise StoreError(f"{root}: its generation has no readable graph ({error})") from error
    return read_csr(root / "artifacts" / folder)
