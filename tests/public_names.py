"""Write ``nrprob/__init__.pyi``, which shows type checkers the names that load on first use.

Run ``python tests/public_names.py`` after a change of the public names.
"""

from pathlib import Path

import nrprob

STUB = Path(nrprob.__file__).with_suffix(".pyi")


def stub():
    """Text of the stub, from the lists that `nrprob` reads."""
    lines = [f"from nrprob import {name} as {name}" for name in nrprob._MODULES]
    lines += [f"from {module} import {name} as {name}" for name, module in nrprob._OBJECTS.items()]
    return "\n".join([*sorted(lines), "", "__all__: list[str]", "__version__: str", ""])


if __name__ == "__main__":
    STUB.write_text(stub())
