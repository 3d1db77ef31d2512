"""Settings of the memory allocators."""

import os
import platform

import pytest

from sjepa.memory import MIMALLOC_DELAY, keep_freed_memory


def test_freed_memory_stays_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    assert os.environ["MIMALLOC_PURGE_DELAY"] == MIMALLOC_DELAY


def test_a_delay_that_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "7")
    keep_freed_memory()
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "7"
