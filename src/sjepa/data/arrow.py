"""pyarrow, which only indexes and tables need."""

import importlib
from typing import Any

from sjepa.errors import UserError


def import_arrow(needed_by: str, module: str = "pyarrow") -> Any:
    """Import pyarrow, or a module of it. Raise UserError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{needed_by} needs pyarrow: pip install 'sjepa[corpora]'") from None
