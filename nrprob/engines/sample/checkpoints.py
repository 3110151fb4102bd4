"""Long runs of chains in blocks of iterations, with a progress bar and checkpoints.

A folder holds ``run.json`` (the definition of the run) and one file per finished block. The file
has the draws of the block, and the states of the chains after the block. A run that is killed loses
only the current block, and a resumed run equals an uninterrupted run. Each file has a digest of the
run and of the number of the block; see `nrprob.files`. A block is rejected if it is damaged,
misplaced, from another run, or without a digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from nrprob.engines.sample.chains import (
    ChainState,
    Draw,
    PartitionKernel,
    collect,
    end_warmup,
    run,
)
from nrprob.exceptions import InputError
from nrprob.files import (
    check_seal,
    make_folder,
    read_npz,
    reading,
    remove_left_over,
    sealed,
    write_atomically,
)

if TYPE_CHECKING:
    pass

_BLOCK_BYTES = 5e7  # of the draws of one block
_BLOCK_STEPS = 100  # iterations per block, so that the progress bar moves and kills cost little
Report = Callable[[int, int, ChainState], None]  # iterations of a block, iterations left, states


@dataclass
class CheckpointedChains:
    """Chains of one kernel on one target, and all their draws.

    Attributes
    ----------
    kernel, target : definition of the chains
    states : current states of all chains
    thinning : number of iterations from one draw to the next
    folder : folder of the saved blocks, or None
    n_warm : number of warm-up iterations so far
    draws, moves : blocks of arrays (n_chains, n_draws, ...), by name
    """

    kernel: PartitionKernel
    target: Any
    states: ChainState
    thinning: int = 1
    folder: Path | None = None
    n_warm: int = 0
    draws: list[dict[str, np.ndarray]] = field(default_factory=list)
    moves: list[dict[str, np.ndarray]] = field(default_factory=list)

    @property
    def n_draws(self) -> int:
        """Number of draws of every chain so far."""
        return sum(block["n_clusters"].shape[1] for block in self.draws)

    @property
    def capacity(self) -> int:
        """Maximum number of draws per block; a power of two, so that few programs are compiled."""
        draw_bytes = sum(a.nbytes for a in jax.tree.leaves(self.states.draw))
        return int(2 ** np.floor(np.log2(np.clip(_BLOCK_BYTES / max(draw_bytes, 1), 1, 128))))

    @property
    def draw_bytes(self) -> int:
        """Bytes of one stored draw of all chains."""
        draw = self.states.draw
        # Labels are stored in a byte, unless there are very many clusters.
        narrow = draw["labels"].size * (draw["labels"].dtype.itemsize - 1)
        return sum(a.nbytes for a in jax.tree.leaves(draw)) - narrow

    def advance(
        self,
        num_warmup: int,
        num_draws: int,
        *,
        report: Report = lambda steps, remaining, states: None,
        deadline: float = np.inf,
    ) -> None:
        """Run until each chain has ``num_warmup`` warm-up iterations and ``num_draws`` draws.

        Both numbers include the iterations and draws of previous calls and of saved blocks.

        At the ``deadline``, a value of `time.monotonic`, sampling stops after the current block.
        The warm-up and the first block are always finished. After every block, ``report`` gets the
        iterations of the block, the remaining iterations and the states.
        """
        if self.folder is not None:
            self._load_blocks()
        while self.n_warm < num_warmup:
            step = min(num_warmup - self.n_warm, self.capacity)
            self._run_block(step, 1)
            self.n_warm += step
            self._save_block({}, {})
            remaining = max(num_draws - self.n_draws, 0) * self.thinning
            report(step, num_warmup - self.n_warm + remaining, self.states)
        if self.n_draws < num_draws:
            # The warm-up ends when sampling begins, also if the run is resumed with a longer
            # warm-up.
            self.n_warm = max(self.n_warm, num_warmup)
            if num_warmup and not self.n_draws:
                self.states = end_warmup(self.states)
        per_block = max(min(self.capacity, -(-_BLOCK_STEPS // self.thinning)), 1)
        while self.n_draws < num_draws:
            step = min(num_draws - self.n_draws, per_block)
            draws, moves = self._run_block(step, self.thinning)
            self.draws.append(_shrink_labels(collect(draws, step)))
            self.moves.append(collect(moves, step))
            self._save_block(self.draws[-1], self.moves[-1])
            report(step * self.thinning, (num_draws - self.n_draws) * self.thinning, self.states)
            if time.monotonic() >= deadline:
                break

    def all_draws(self) -> dict[str, np.ndarray]:
        """All draws (n_chains, n_draws, ...), by name."""
        return _join_blocks(self.draws)

    def all_moves(self) -> dict[str, np.ndarray]:
        """Counts (n_chains, n_draws) of the moves since the previous draw, by name."""
        return _join_blocks(self.moves)

    def _run_block(self, n_draws: int, thinning: int) -> tuple[Draw, Draw]:
        self.states, draws, moves = run(
            self.kernel, self.target, self.states, n_draws, thinning, capacity=self.capacity
        )
        jax.block_until_ready(self.states)
        return draws, moves

    # Files

    def _describe_run(self) -> dict[str, Any]:
        leaves, tree = jax.tree.flatten(jax.device_get(self.target))
        digest = hashlib.sha256(str(tree).encode())
        for leaf in leaves:
            array = np.asarray(leaf)
            digest.update(str((array.shape, array.dtype.str)).encode() + array.tobytes())
        start = b"".join(
            np.asarray(a).tobytes() for a in (self._begin.rng_key, self._begin.draw["labels"])
        )
        return {
            "data": digest.hexdigest(),
            "kernel": repr(self.kernel),
            "thinning": self.thinning,
            "chains": int(jax.tree.leaves(self.states)[0].shape[0]),
            "start": hashlib.sha256(start).hexdigest(),
        }

    def __post_init__(self):
        self._begin = self.states
        self._n_files = 0
        self._key = ""

    def __getstate__(self) -> dict[str, Any]:
        # Pickled arrays of JAX would be loaded in single precision.
        state = dict(self.__dict__)
        for name in ("target", "states", "_begin"):
            state[name] = jax.device_get(state[name])
        return state

    def _load_blocks(self) -> None:
        """Check that the folder belongs to this run, and load all blocks that are not in memory."""
        assert self.folder is not None
        make_folder(self.folder)
        remove_left_over(self.folder)
        path, meta = self.folder / "run.json", self._describe_run()
        self._key = json.dumps(meta, sort_keys=True)
        if not path.exists():
            write_atomically(path, json.dumps(meta, indent=1).encode())
        with reading(path, "the description of a run", "delete this file, but none of the blocks"):
            result = dict(json.loads(path.read_text(encoding="utf-8")))
        wrong = sorted(name for name in meta if result.get(name) != meta[name])
        if wrong:
            raise ValueError(
                f"checkpoint={str(self.folder)!r} holds another run; it differs in "
                f"{', '.join(wrong)}; pass the arguments of that run, or another folder"
            )
        paths = sorted(self.folder.glob("block-*.npz"))
        for i, path in enumerate(paths):
            if path.name[: len("block-000000")] != f"block-{i:06d}":
                raise InputError(
                    f"blocks of a run must be consecutive; {path} is number {i} in its folder; "
                    "restore the missing blocks, or delete this block and all later ones"
                )
        for path in paths[self._n_files :]:
            self._load_block(path)

    def _load_block(self, path: Path) -> None:
        """Load the saved block in ``path``, which is the next one of the run."""
        advice = "delete it and all later blocks to sample them again"
        with reading(path, "a block of a run", advice):
            arrays = read_npz(io.BytesIO(check_seal(path, f"{self._key} {self._n_files}")))
        block: dict[str, dict[str, np.ndarray]] = {"draws": {}, "moves": {}, "state": {}}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            if rest:
                block[kind][rest] = array
        if block["draws"]:
            self.draws.append(block["draws"])
            self.moves.append(block["moves"])
        self.n_warm = int(arrays["n_warm"])
        leaves, tree = jax.tree.flatten(self.states)
        saved = [block["state"][str(i)] for i in range(len(leaves))]
        self.states = jax.tree.unflatten(tree, [jax.numpy.asarray(a) for a in saved])
        self._n_files += 1

    def _save_block(self, draws: dict[str, np.ndarray], moves: dict[str, np.ndarray]) -> None:
        if self.folder is None:
            return
        arrays = {f"draws/{name}": a for name, a in draws.items()}
        arrays |= {f"moves/{name}": a for name, a in moves.items()}
        leaves = jax.tree.leaves(jax.device_get(self.states))
        arrays |= {f"state/{i}": np.asarray(a) for i, a in enumerate(leaves)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **(arrays | {"n_warm": np.asarray(self.n_warm)}))  # type: ignore[arg-type]
        content = buffer.getvalue()
        path = self.folder / f"block-{self._n_files:06d}.npz"
        write_atomically(sealed(path, content, f"{self._key} {self._n_files}"), content)
        self._n_files += 1


def _shrink_labels(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Store the labels of draws in one or two bytes, since labels take most of the memory."""
    labels = draws["labels"]
    return draws | {"labels": labels.astype(np.min_scalar_type(int(labels.max(initial=0))))}


def _join_blocks(blocks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([b[name] for b in blocks], 1) for name in blocks[0]}


@contextmanager
def progress_bar(verbose: int, blocks: str = "clusters") -> Iterator[Report]:
    """Progress bar of one or several calls of `CheckpointedChains.advance`, if ``verbose`` > 0.

    ``blocks`` is the word for the blocks of a sampled partition.
    """
    if not verbose:
        yield lambda steps, remaining, states: None
        return
    from rich import progress as bars

    columns = bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TimeRemainingColumn()
    done = 0
    with bars.Progress(*columns) as progress:

        def report_progress(steps: int, remaining: int, states: ChainState) -> None:
            nonlocal done
            task = progress.task_ids[0] if done else progress.add_task("")
            done += steps
            k = np.asarray(states.draw["n_clusters"])
            text = f"sampling, {k.min()} to {k.max()} {blocks}"
            progress.update(task, completed=done, total=done + remaining, description=text)

        yield report_progress
