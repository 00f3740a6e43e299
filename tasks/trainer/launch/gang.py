"""Membership of a node in a gang of nodes that train one model: its rank, the address of node 0, the interface.

Reads torchrun's variables PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR and PET_MASTER_PORT. Node 0
runs the stage; the other nodes only run ranks.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.core.errors import RecipeError, TransientError

NODES, NODE, ADDRESS, PORT = "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"
NPROC = "PET_NPROC_PER_NODE"
DEFAULT_PORT = 29500

MEETING_S = 1800.0
"""Seconds that a node waits for the others, which may still be pulling the image or fetching the shards."""
AGAIN_S = 0.5
"""Seconds between two attempts to reach node 0. While a gang starts, its host name resolves about half a second late
(EAI_AGAIN)."""


@dataclass(frozen=True)
class Gang:
    """This node and its gang.

    `address` is the host name of node 0, the same on all nodes.
    """

    nodes: int
    node: int
    address: str
    port: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Gang | None":
        """Returns the gang described by the environment; None for a single node.

        Raises:
            RecipeError: a variable is missing or invalid.
        """
        least, _, most = environment.get(NODES, "1").partition(":")
        try:
            nodes = int(most or least)
            if nodes == 1:
                return None
            gang = cls(nodes, int(environment[NODE]), environment[ADDRESS], int(environment.get(PORT, DEFAULT_PORT)))
        except KeyError as error:
            raise RecipeError(f"{NODES} is {nodes} but {error.args[0]} is not set", "set it in every pod") from None
        except ValueError as error:
            raise RecipeError(
                f"{NODES}, {NODE} and {PORT} must be numbers ({error})", "correct the env of the pod"
            ) from None
        if int(least) != nodes or not 0 <= gang.node < nodes:
            raise RecipeError(
                f"there is no node {gang.node} in a gang of {environment[NODES]}",
                f"{NODES} is one number, {NODE} counts from 0",
            )
        return gang

    def environment(self) -> dict[str, str]:
        """Returns the variables from which `from_environment` reads this gang in another process."""
        return {NODES: str(self.nodes), NODE: str(self.node), ADDRESS: self.address, PORT: str(self.port)}

    def reach(self, seconds: float = MEETING_S) -> str:
        """Waits until node 0 listens, and returns its IP address.

        Raises:
            TransientError: node 0 does not listen within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                with socket.create_connection((self.address, self.port), timeout=5) as connection:
                    return str(connection.getpeername()[0])
            except OSError as error:  # not resolved yet, not listening yet
                if time.monotonic() > deadline:
                    raise TransientError(
                        f"node 0 of the gang did not answer at {self.address}:{self.port} in {seconds:.0f} s ({error})",
                        "see its log; network policies must allow traffic between the pods of a gang",
                    ) from None
            time.sleep(AGAIN_S)

    def interface(self) -> str | None:
        """Returns the name of this node's network interface to the other nodes, None if unknown.

        Gloo and NCCL would use the host name, which can resolve to the loopback in pods on the host's network.
        """
        import psutil

        try:
            family, kind, protocol, _, peer = socket.getaddrinfo(self.address, self.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(peer)  # sends nothing: the kernel picks the route
                local = probe.getsockname()[0]
        except OSError:
            return None
        # Node 0 reaches itself over the loopback, but needs the interface with the address that the other nodes use.
        address = peer[0] if self.node == 0 else local
        interfaces = psutil.net_if_addrs().items()
        names = [name for name, addresses in interfaces if any(a.address == address for a in addresses)]
        return names[0] if names else None


def node_of(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the rank of this node, 0 for a single node; raises RecipeError like `Gang.from_environment`."""
    gang = Gang.from_environment(environment)
    return gang.node if gang else 0


def nproc_of(environment: Mapping[str, str] = os.environ) -> int | None:
    """Returns the ranks per node of this pod; None if it leaves them to the recipe.

    Raises:
        RecipeError: it is not a positive number.
    """
    text = environment.get(NPROC)
    if text and not (text.isdecimal() and int(text)):
        raise RecipeError(f'{NPROC} is "{text}", not a number of ranks', "correct the env of the pod")
    return int(text) if text else None
