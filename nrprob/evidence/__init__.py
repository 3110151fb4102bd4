"""Is it real: whether there is anything in the rows beyond what is known.

`test` asks whether a clusterer's clusters describe rows that it has not seen better than one cloud
per known group does, and answers by an `Evidence`: a p-value, a sentence and a picture.

Another clusterer takes part if it has what `nrprob.evidence.held_out.Density` lists: where its rows
lie, and the log density of its model there.
"""

from nrprob.evidence.record import Evidence
from nrprob.evidence.structure import test

__all__ = ["test", "Evidence"]
