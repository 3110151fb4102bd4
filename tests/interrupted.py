"""Interrupt a run after it has written some results."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nrprob.batch.store import Store


@contextmanager
def interrupted_after(parts: int) -> Iterator[pytest.ExceptionInfo]:
    """Expect `KeyboardInterrupt` at the first write to a folder with this number of parts."""
    write = Store.write

    def interrupted(self, *arguments):
        if len(self.parts()) == parts:
            raise KeyboardInterrupt
        return write(self, *arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt) as told:
        patched.setattr(Store, "write", interrupted)
        yield told
