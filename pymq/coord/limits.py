"""The size limit of a commit: that of ZooKeeper, which all backends apply.

ZooKeeper closes the connection of a client that sends a request above ``jute.maxbuffer``, 1 MiB by
default. So the size of a commit must not grow with the number of partitions, blocks, members or
producers. A backend without this limit would hide commits that grow with these numbers.
"""

from __future__ import annotations

from pymq.core.metadata.coordination import Commit, Create, Put
from pymq.errors import InvalidRequest

REQUEST_BYTES = 1 << 20  # the default of ZooKeeper's servers

_REQUEST = 8 + 9  # header of a request, and end of a transaction
_OPERATION = 9 + 4  # size of an operation's header and of the length field of its path
_ACL = 4 + 4 + 4 + len("world") + 4 + len("anyone")
_CREATE = 4 + _ACL + 4  # length of the data, the ACL, and whether the node is ephemeral
_PUT = 4 + 4  # length of the data, and the version


def size(commit: Commit) -> int:
    """Return the size of *commit* as a ZooKeeper request, for a tree at ZooKeeper's root."""
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
    """Return the error for *commit* if it exceeds *limit* bytes, or None."""
    found = size(commit)
    if found <= limit:
        return None
    message = f"a change of {len(commit.ops)} nodes in {found} bytes; {limit} are taken at a time"
    return InvalidRequest(message, size=found, limit=limit)
