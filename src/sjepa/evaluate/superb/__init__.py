"""SUPERB: small heads trained on a frozen encoder, to s3prl's protocol."""

from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

# A task is a file of the folder `tasks` and has its name. The files are only listed here: reading them needs torch.
TASK_NAMES = tuple(sorted(module.name for module in iter_modules([f"{path}/tasks" for path in __path__])))

ALL = "all"  # every task of SUPERB whose corpus is there

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[(*TASK_NAMES, ALL)]
