"""Connections to schedulers of ``dask.distributed`` clusters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from nrprob.exceptions import InputError, one_line, short_repr

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
TIMEOUT = 10.0  # seconds until a scheduler must answer
# A worker of a local cluster ignores interrupts, which the main process handles.
_DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


def check_scheduler(scheduler: Any) -> None:
    """Raise InputError unless ``scheduler`` is text or a client; distributed is not imported."""
    client = type(scheduler).__module__.startswith("distributed.")
    if not client and not (isinstance(scheduler, str) and scheduler):
        raise InputError(
            "a scheduler is an address, 'local' or a distributed.Client; got "
            f"{short_repr(scheduler)}; pass one of them"
        )


@contextlib.contextmanager
def connect(scheduler: str | Client) -> Iterator[Client]:
    """Connect to a cluster, and disconnect at the end.

    Parameters
    ----------
    scheduler : str or distributed.Client
        Address of a scheduler; "local" for processes on this machine, which end with the context;
        or a client, which stays connected.

    Raises
    ------
    nrprob.exceptions.InputError
        If there is no answer at the address within `TIMEOUT` seconds, or distributed is not
        installed.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise InputError(
            f"a cluster needs the package distributed; scheduler = {scheduler}: {error}; run "
            "pip install 'nrprob[cluster]'"
        ) from error
    if isinstance(scheduler, distributed.Client):
        if scheduler.asynchronous or scheduler.status != "running":
            raise InputError(
                "a client has to be connected, and not asynchronous; scheduler = "
                f"{short_repr(scheduler)}; pass a connected, synchronous client"
            )
        yield scheduler
        return
    check_scheduler(scheduler)
    with contextlib.ExitStack() as stack:
        address: Any = scheduler
        if scheduler == LOCAL:
            _refuse_accelerator()
            settings = {
                # A forked process would have JAX without its threads.
                "distributed.worker.multiprocessing-method": "spawn",
                # A worker that dies repeatedly is replaced every time, until its batch fails.
                "distributed.deploy.lost-worker-timeout": "1 day",
            }
            stack.enter_context(dask.config.set(settings))
            address = stack.enter_context(
                distributed.LocalCluster(
                    dashboard_address=":0", preload=[_DEAF], silence_logs=logging.ERROR
                )
            )
        try:
            if address is scheduler:
                _call(scheduler)
            client = distributed.Client(address, timeout=TIMEOUT, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"no scheduler answers within {TIMEOUT:g} s; scheduler = {scheduler}: "
                f"{one_line(error)}; start one with `dask scheduler`, and workers with "
                "`dask worker ADDRESS`"
            ) from error
        yield stack.enter_context(client)


def _call(address: str) -> None:
    """Check that a scheduler answers at an address.

    The check comes before a client is made, since a client without connection does not close well.
    """
    from distributed import Security, rpc

    async def answered() -> None:
        keys = Security().get_connection_args("client")
        async with asyncio.timeout(TIMEOUT), rpc(address, connection_args=keys) as server:
            who = await server.identity()
        if "workers" not in who:
            raise ValueError(f"this is a {who.get('type')}")

    with ThreadPoolExecutor(1) as pool:  # the caller's thread may already have an event loop
        pool.submit(asyncio.run, answered()).result()


def _refuse_accelerator() -> None:
    import jax

    if jax.default_backend() != "cpu":
        raise InputError(
            f"processes of one machine cannot share its accelerator; scheduler = {LOCAL} where JAX "
            f"has {jax.devices()[0].device_kind}; leave scheduler out, or start a worker for each "
            "device"
        )
