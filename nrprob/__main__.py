"""``python -m nrprob``, for systems where the command ``nrprob`` is not on the path."""

from nrprob.cli import app

if __name__ == "__main__":
    app()
