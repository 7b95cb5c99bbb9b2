"""Which backends are here and work, each tried for real."""

import importlib
from collections.abc import Callable, Iterator

from gpu_rag.errors import GpuRagError


def check_backends() -> Iterator[tuple[str, bool, str]]:
    """Yield (name, works, detail) for every engine and library that a run may use."""
    for name, check in _CHECKS.items():
        try:
            yield name, True, check()
        except (GpuRagError, ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            yield name, False, str(error).splitlines()[0] if str(error) else type(error).__name__


def _encoder() -> str:
    from gpu_rag.engines.encoder import EncoderConfig, open_encoder

    encoder = open_encoder(EncoderConfig())
    norm = float((encoder.encode(["a test"]).vectors ** 2).sum())
    return f"{encoder.identity}, {encoder.dim} dimensions, squared norm {norm:.4f}"


def _torch() -> str:
    torch = importlib.import_module("torch")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{torch.__version__}, {', '.join(devices) or 'no CUDA device'}"


def _version(module: str) -> Callable[[], str]:
    return lambda: str(getattr(importlib.import_module(module), "__version__", "installed"))


_CHECKS: dict[str, Callable[[], str]] = {
    "torch": _torch,
    "encoder": _encoder,
    "ray": _version("ray"),
    "faiss": _version("faiss"),
    "bm25s": _version("bm25s"),
    "numba": _version("numba"),
    "triton": _version("triton"),
    "vllm": _version("vllm"),
    "openai": _version("openai"),
    "pylibcugraph": _version("pylibcugraph"),
    "torch_geometric": _version("torch_geometric"),
}
