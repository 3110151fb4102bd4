"""Import time vs jax and sklearn.base together, in new processes."""

from __future__ import annotations

from common import arguments, fresh_processes, header, show, verdict

BAR = 1.25
REFERENCE = "import jax, sklearn.base"
STATEMENTS = (
    REFERENCE,
    "import nrprob",
    "from nrprob import CCIB",
    "from nrprob import CCIB, explore",
)


def main(quick: bool) -> None:
    header("import time")
    codes = {s: f"timed(lambda: exec({s!r}))" for s in STATEMENTS}
    times = fresh_processes(codes, 3 if quick else 10)
    reference = times[REFERENCE]
    rows = []
    for statement, time in times.items():
        ratio = time.wall / reference.wall
        judged = ("", "") if statement == REFERENCE else verdict(ratio, BAR)
        rows.append((statement, time.wall, time.cpu, ratio, time.cpu / reference.cpu, *judged))
    show(
        "best of several, each in a process of its own",
        ("statement", "wall, s", "CPU, s", "ratio", "CPU ratio", "bar", ""),
        rows,
    )


if __name__ == "__main__":
    main(arguments(__doc__).quick)
