"""Optional libraries, imported at use with an error that says what to install."""

import importlib
from types import ModuleType

from gpu_rag.errors import MissingDependencyError


def require(module: str, *, extra: str) -> ModuleType:
    """Return the imported module.

    Raises:
        MissingDependencyError: If it is not installed or does not load (a trial import also finds missing shared libraries);
            the message names the extra and the cause.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            f"{module} cannot be imported ({error}); install it with: pip install 'gpu-rag[{extra}]'"
        ) from error
