"""Translates requests into requests of ZooKeeper, and ZooKeeper's answers into events.

The tree is below a node of the ensemble; paths in the tree omit the path of this node.
"""

from __future__ import annotations

from typing import Any, assert_never

from kazoo import exceptions as zk
from kazoo.protocol.serialization import (
    CheckVersion,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.serialization import Create as CreateNode
from kazoo.protocol.serialization import Delete as DeleteNode
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from pymq.coord.zookeeper.session import AddWatch, ZookeeperRequest, session_name
from pymq.coord.zookeeper.tree_reading import GetNode, ListNode
from pymq.core.metadata.coordination import (
    Check,
    Commit,
    Committed,
    Conflicted,
    Create,
    Delete,
    Entry,
    Failed,
    Op,
    Put,
    Uncertain,
)
from pymq.errors import AuthorizationFailed, InvalidRequest, PymqError, StoreError

__all__ = ["LOST", "REFUSED", "Dialect", "NoNodeError"]

_HEADER_BYTES = 8  # bytes of each request in addition to its body
_OWN = "/zookeeper"  # ZooKeeper's own nodes, at its root

# Reasons for the refusal of a conditional operation; any other error is unexpected.
_REASONS: dict[type[Exception], str] = {
    zk.NodeExistsError: "exists",
    zk.NoNodeError: "missing",
    zk.NoChildrenForEphemeralsError: "no-parent",
    zk.BadVersionError: "version",
    zk.NotEmptyError: "not-empty",
}
# A request with one of these answers was not carried out and never will be.
REFUSED = (
    zk.APIError,
    zk.BadArgumentsError,
    zk.InvalidACLError,
    zk.MarshallingError,
    zk.NoAuthError,
    zk.QuotaExceededError,
    zk.UnimplementedError,
)
# After these errors no sent request gets an answer any more; the link reports the loss.
LOST = (
    zk.AuthFailedError,
    zk.ConnectionClosedError,
    zk.ConnectionLoss,
    zk.SessionExpiredError,
)
NoNodeError: type[Exception] = zk.NoNodeError


class Dialect:
    """Converts requests and answers for the tree below *root*.

    If *is_owned* is set, only the configured user may access the nodes of the tree.
    """

    def __init__(self, root: str, *, is_owned: bool, max_request_bytes: int) -> None:
        self._root = root
        self._acl: list[ACL] = list(CREATOR_ALL_ACL if is_owned else OPEN_ACL_UNSAFE)
        self._max_request_bytes = max_request_bytes

    def _full(self, path: str) -> str:
        return (self._root + path).rstrip("/") or "/"

    def path(self, full: str) -> str | None:
        """Return the path in the tree of a ZooKeeper path; None for ZooKeeper's internal nodes."""
        if full == _OWN or full.startswith(_OWN + "/"):
            return None
        return full[len(self._root) :] or "/"

    # --- requests ---------------------------------------------------------------------------------

    def ancestors(self) -> list[ZookeeperRequest]:
        """Return the requests that create the nodes above the tree; existing nodes are no error."""
        names = self._root.split("/")[1:]
        paths = ["/" + "/".join(names[: depth + 1]) for depth in range(len(names))]
        return [CreateNode(path, b"", self._acl, 0) for path in paths]

    def enter(self) -> ZookeeperRequest:
        """Return a read of the node above the tree, which fails with wrong credentials."""
        return self._list(self._root or "/")

    def watch(self, root: str) -> ZookeeperRequest:
        """Return a watch of all changes at and below *root*."""
        return AddWatch(self._full(root))

    def sync(self, root: str) -> ZookeeperRequest:
        """Return a ``sync``, which makes the server catch up with all earlier commits."""
        made: ZookeeperRequest = Sync(self._full(root))
        return made

    def read(self, question: GetNode | ListNode) -> ZookeeperRequest:
        """Return a read of a node, or of the names of its children."""
        full = self._full(question.path)
        made: ZookeeperRequest = (
            GetData(full, None) if isinstance(question, GetNode) else self._list(full)
        )
        return made

    def _list(self, full: str) -> ZookeeperRequest:
        made: ZookeeperRequest = GetChildren(full, None)
        return made

    def transaction(self, commit: Commit) -> ZookeeperRequest:
        """Return an atomic transaction for *commit*."""
        made: ZookeeperRequest = Transaction([self._operation(op) for op in commit.ops])
        return made

    def _operation(self, op: Op) -> ZookeeperRequest:
        path = self._full(op.path)
        made: ZookeeperRequest
        match op:
            case Create():
                made = CreateNode(path, op.data, self._acl, int(op.ephemeral))
            case Put():
                made = SetData(path, op.data, op.version)
            case Delete():
                made = DeleteNode(path, op.version)
            case Check():
                made = CheckVersion(path, op.version)
            case _:
                assert_never(op)
        return made

    def check_size(self, commit: Commit) -> None:
        """Raise :class:`InvalidRequest` for a commit above ZooKeeper's size limit."""
        size = len(self.transaction(commit).serialize()) + _HEADER_BYTES
        limit = self._max_request_bytes
        if size > limit:
            # ZooKeeper would close the connection without giving a reason.
            raise InvalidRequest(
                f"a change of {len(commit.ops)} nodes in {size} bytes; ZooKeeper takes {limit} at "
                "a time: change less at once, or raise jute.maxbuffer on all its servers and "
                "max_request_bytes in the coordinator's address",
                size=size,
                limit=limit,
            )

    # --- answers --------------------------------------------------------------------------------

    def entry(self, path: str, result: Any) -> tuple[Entry, bool]:
        """Return a node that was read, and whether it has children."""
        data, stat = result
        owner = session_name(stat.ephemeralOwner) if stat.ephemeralOwner else None
        return Entry(path, data, stat.version, owner), stat.numChildren > 0

    def names(self, path: str, result: list[str]) -> list[str]:
        """Return the names of the children that were read, without ZooKeeper's internal nodes."""
        if self._full(path) == "/":
            return [name for name in result if name != _OWN[1:]]
        return result

    def outcome(
        self, commit: Commit, result: Any, error: Exception | None
    ) -> Committed | Conflicted | Failed | Uncertain:
        """Return the event for the answer to a commit; one of *result* and *error* is None."""
        if error is not None:
            if isinstance(error, REFUSED):
                return Failed(commit.tag, self.error(error, commit.ops[0].path))
            # the connection or session was lost, or the error is unexpected
            return Uncertain(commit.tag)
        for index, (op, outcome) in enumerate(zip(commit.ops, result, strict=True)):
            if isinstance(outcome, Exception) and not isinstance(outcome, zk.RolledBackError):
                reason = _REASONS.get(type(outcome))
                if reason is None:
                    return Failed(commit.tag, self.error(outcome, op.path))
                if reason == "missing" and isinstance(op, Create):
                    reason = "no-parent"
                return Conflicted(commit.tag, index, reason)
        return Committed(commit.tag, tuple(map(_version, commit.ops, result)))

    def error(self, error: Exception, path: str) -> PymqError:
        """Return the error for a refused request for *path*."""
        if isinstance(error, zk.NoAuthError):
            return AuthorizationFailed(
                f"ZooKeeper denies us access to {self._full(path)}: other credentials own it",
                path=path,
            )
        return StoreError(f"ZooKeeper refused a request for {self._full(path)}: {error!r}")


def _version(op: Op, outcome: Any) -> int:
    match op:
        case Create():
            return 0
        case Put():
            return int(outcome.version)
        case Delete():
            return -1
        case Check():
            return op.version
        case _:
            assert_never(op)
