"""`Agent`: the few things that a transfer needs of NIXL, and `NixlAgent`, which does them with the real one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lynxq.errors import ConnectionLostError
from lynxq.libraries import missing

Bytes = NDArray[np.uint8]
State = Literal["busy", "done"]

#: Time between two looks at an agent, in seconds.
PAUSE = 0.0002


class Agent(Protocol):
    """One process's end of all its transfers. Whoever uses it, does so from one thread at a time.

    Every call that needs a peer raises `ConnectionLostError` if it cannot be reached.
    """

    def metadata(self) -> bytes:
        """What a peer must know to reach this agent and the memory that is registered now."""

    def register(self, memory: Bytes) -> Any:
        """Let peers write to memory, and write from it; returns what `deregister` takes."""

    def deregister(self, registration: Any) -> None:
        """The inverse of `register`."""

    def add_peer(self, metadata: bytes) -> str:
        """Get to know a peer, or more of it; returns its name."""

    def write(self, source: Bytes, peer: str, address: int, notice: bytes) -> Any:
        """Begin to write registered memory to a peer's, which is notified behind the data."""

    def state(self, transfer: Any) -> State:
        """How far a write is; one that is done is forgotten."""

    def notify(self, peer: str, notice: bytes) -> None:
        """Send a notice without data."""

    def notices(self) -> list[tuple[str, bytes]]:
        """The notices that came since the last call, with their senders."""


def _library() -> Any:
    """NIXL's Python module: that of the meta package, or of a build for one version of CUDA."""
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        try:
            return import_module(f"{name}._api")
        except ModuleNotFoundError:
            continue
    raise missing("nixl", "lynxq[nixl]")


class NixlAgent:
    """An agent of NIXL's own, for memory of the CPU.

    Parameters
    ----------
    name : str
        Beginning of its name; a random end makes it unique.
    backend : str
        NIXL's transport.

    Raises
    ------
    MissingLibraryError
        If NIXL is not installed.
    """

    def __init__(self, name: str = "lynxq", *, backend: str = "UCX") -> None:
        library = _library()
        self.name = f"{name}-{secrets.token_hex(8)}"
        self._agent = library.nixl_agent(self.name, library.nixl_agent_config(backends=[backend]))

    def metadata(self) -> bytes:
        """See `Agent`."""
        return bytes(self._agent.get_agent_metadata())

    def register(self, memory: Bytes) -> Any:
        """See `Agent`."""
        return self._agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")

    def deregister(self, registration: Any) -> None:
        """See `Agent`."""
        self._agent.deregister_memory(registration)

    def add_peer(self, metadata: bytes) -> str:
        """See `Agent`."""
        with _reaching("a peer by its metadata"):
            return _peer(self._agent.add_remote_agent(metadata))

    def write(self, source: Bytes, peer: str, address: int, notice: bytes) -> Any:
        """See `Agent`."""
        own = self._agent.get_xfer_descs([(source.ctypes.data, source.nbytes, 0)], "DRAM")
        remote = self._agent.get_xfer_descs([(address, source.nbytes, 0)], "DRAM")
        with _reaching(peer):
            transfer = self._agent.initialize_xfer("WRITE", own, remote, peer, notice)
            _check(self._agent.transfer(transfer))
        return transfer

    def state(self, transfer: Any) -> State:
        """See `Agent`."""
        with _reaching("the peer of a write"):
            if _check(self._agent.check_xfer_state(transfer)) != "DONE":
                return "busy"
            transfer.release()
        return "done"

    def notify(self, peer: str, notice: bytes) -> None:
        """See `Agent`."""
        with _reaching(peer):
            self._agent.send_notif(peer, notice)

    def notices(self) -> list[tuple[str, bytes]]:
        """See `Agent`."""
        found = self._agent.get_new_notifs()
        return [(_peer(peer), bytes(notice)) for peer, notices in found.items() for notice in notices]


def _check(state: str) -> str:
    if state == "ERR":
        raise ConnectionLostError("NIXL could not write")
    return state


@contextmanager
def _reaching(peer: str) -> Iterator[None]:
    """Turn NIXL's errors into one of ours: they have no class in common."""
    try:
        yield
    except ConnectionLostError:
        raise
    except Exception as error:
        raise ConnectionLostError(f"NIXL cannot reach {peer}: {type(error).__name__} {error}") from error


def _peer(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
