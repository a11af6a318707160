"""How large a commit may be. A rule for all backends, as strict as ZooKeeper's; pure.

ZooKeeper closes the connection of a client that sends more than ``jute.maxbuffer`` at once, 1 MiB
unless its servers are told otherwise. So no plan may grow with what there is: partitions, blocks,
members, producers. A backend that would take more hides a plan that does.
"""

from __future__ import annotations

from pymq.core.metadata.coordination import Commit, Create, Put
from pymq.errors import InvalidRequest

REQUEST_BYTES = 1 << 20  # as ZooKeeper's servers have it by default

_REQUEST = 8 + 9  # the header of a request, and the end of a transaction
_OPERATION = 9 + 4  # its header, and the length of its path
_ACL = 4 + 4 + 4 + len("world") + 4 + len("anyone")
_CREATE = 4 + _ACL + 4  # length of the data, who may use the node, and whether it is ephemeral
_PUT = 4 + 4  # length of the data, and the version


def size(commit: Commit) -> int:
    """How many bytes *commit* is on its way to a ZooKeeper, in a tree of ours at its root."""
    total = _REQUEST
    for op in commit.ops:
        total += _OPERATION + len(op.path.encode())
        if isinstance(op, Create):
            total += _CREATE + len(op.data)
        elif isinstance(op, Put):
            total += _PUT + len(op.data)
        else:
            total += 4
    return total


def refusal(commit: Commit, limit: int) -> InvalidRequest | None:
    """Why *commit* is not taken where *limit* bytes are; None if it is."""
    found = size(commit)
    if found <= limit:
        return None
    message = f"a change of {len(commit.ops)} nodes in {found} bytes; {limit} are taken at a time"
    return InvalidRequest(message, size=found, limit=limit)
