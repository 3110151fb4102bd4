"""Whether the fast tests notice what they are there to notice."""

import pytest
from mutations import check


@pytest.mark.slow
@pytest.mark.parametrize("patch", check.PATCHES, ids=lambda p: p.stem)
def test_every_mutation_is_caught(patch):
    good, words = check.verdict(patch)
    assert good, words
