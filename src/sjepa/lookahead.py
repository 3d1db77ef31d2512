"""Start work ahead of its use."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def look_ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """Yield items in order. Each waits until `count` more were taken, so that work which they start runs meanwhile."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
