"""``python -m nrprob``, for systems where the command ``nrprob`` is not on the path."""

from nrprob.cli import start

if __name__ == "__main__":
    start()
