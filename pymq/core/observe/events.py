"""Events of a node for its operators: counted, and passed to a listener.

Names of events are as stable as those of metrics, because people search logs for them. Events are
rare, so each may cost a log line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

# The text and the fields of each event.
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ready": ("The node answers from now on", ("node", "endpoint", "pid", "http", "descriptors")),
    "stopped": ("It has ended in order", ("node", "endpoint", "pid", "http")),
    "failed": ("It cannot continue", ("node", "endpoint", "pid", "http", "code", "why")),
    "few_descriptors": (
        "The operating system lets it have few files and sockets open",
        ("limit", "wanted"),
    ),
    "connections_crowded": (
        "Connections were ended because there were too many; so many since the node has started",
        ("turned_away",),
    ),
    "controller_active": ("This zkserver decides from now on", ("epoch",)),
    "controller_resigned": ("It does so no more", ()),
    "broker_registered": (
        "A broker has started, or has found this zkserver",
        ("broker", "incarnation"),
    ),
    "broker_dead": ("A broker was silent for a session", ("broker",)),
    "node_refused": (
        "A node has sent an order or a report that is not its own to send; once a minute a node",
        ("source", "request"),
    ),
    "change_refused": (
        "The coordinator takes no change of that size; in slices it is tried again",
        ("nodes", "why"),
    ),
    "registration_refused": ("The zkserver does not register this broker; it asks on", ("why",)),
    "topic_created": ("There is a new topic", ("topic",)),
    "topic_deleted": ("A topic is gone", ("topic",)),
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
        "A broker that lives cannot act on a partition because of its disk",
        ("broker", "topic", "partition", "why"),
    ),
    "isr_shrunk": ("A replica is in sync no more", ("topic", "partition", "gone", "in_sync")),
    "isr_expanded": ("A replica is in sync again", ("topic", "partition", "come", "in_sync")),
    "partition_led": ("This broker leads a partition", ("topic", "partition", "epoch")),
    "partition_not_led": ("It does so no more", ("topic", "partition")),
    "partition_failed": (
        "The copy here is damaged, or cannot be written or read",
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
