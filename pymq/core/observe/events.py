"""Events of a node for its operators: counted, and passed to a listener.

Names of events are as stable as those of metrics, because people search logs for them. Events are
rare, so each may cost a log line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

# The text and the fields of each event.
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ready": (
        "The node is ready to answer requests",
        ("node", "endpoint", "pid", "http", "descriptors"),
    ),
    "stopped": ("The node has shut down in an orderly way", ("node", "endpoint", "pid", "http")),
    "failed": ("The node cannot continue", ("node", "endpoint", "pid", "http", "code", "why")),
    "few_descriptors": (
        "The limit of open files and sockets is low",
        ("limit", "wanted"),
    ),
    "connections_crowded": (
        "Connections were closed because there were too many; the number since the node's start",
        ("turned_away",),
    ),
    "controller_active": ("This zkserver has become the active one", ("epoch",)),
    "controller_resigned": ("This zkserver is no longer the active one", ()),
    "broker_registered": (
        "A broker has started, or has found this zkserver",
        ("broker", "incarnation"),
    ),
    "broker_dead": ("A broker was silent for a session", ("broker",)),
    "node_refused": (
        "A node has sent a request or a report that it may not send; logged once a minute",
        ("source", "request"),
    ),
    "change_refused": (
        "The coordinator backend refuses so large a change; the zkserver retries it in parts",
        ("nodes", "why"),
    ),
    "registration_refused": (
        "The zkserver refuses to register this broker; the broker retries",
        ("why",),
    ),
    "topic_created": ("A topic was created", ("topic",)),
    "topic_deleted": ("A topic was deleted", ("topic",)),
    "block_rolled": (
        "A block was sealed at an offset, and another one opened",
        ("topic", "partition", "end", "acks", "replicas"),
    ),
    "leader_changed": (
        "A partition is led by another broker, or by none",
        ("topic", "partition", "leader", "before", "epoch"),
    ),
    "unclean_election": (
        "A partition continues although committed records may be missing",
        ("topic", "partition", "end"),
    ),
    "replica_offline": (
        "A live broker cannot act for a partition because of its disk",
        ("broker", "topic", "partition", "why"),
    ),
    "isr_shrunk": ("A replica is no longer in sync", ("topic", "partition", "gone", "in_sync")),
    "isr_expanded": ("A replica is in sync again", ("topic", "partition", "come", "in_sync")),
    "partition_led": ("This broker leads a partition", ("topic", "partition", "epoch")),
    "partition_not_led": ("This broker no longer leads a partition", ("topic", "partition")),
    "partition_failed": (
        "This broker's copy is damaged, or cannot be written or read",
        ("topic", "partition", "why"),
    ),
}

Listener = Callable[[str, dict[str, object]], object]


class EventLog:
    """Counts events, and passes each to *listener* if there is one."""

    def __init__(self, listener: Listener | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.listener = listener

    def note(self, event: str, **fields: object) -> None:
        """Count *event* and pass it to the listener."""
        self.counts[event] += 1
        if self.listener is not None:
            self.listener(event, fields)
