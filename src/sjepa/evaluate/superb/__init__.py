"""SUPERB: small heads trained on a frozen encoder, with s3prl's protocol."""

from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

# Each task is a file in the folder `tasks`. The files are listed without importing them, because that needs torch.
TASK_NAMES = tuple(sorted(module.name for module in iter_modules([f"{path}/tasks" for path in __path__])))

ALL = "all"  # every SUPERB task whose corpus is available

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[(*TASK_NAMES, ALL)]
