"""Which replica a reader fetches from, when several may have the records.

| what is read | which broker the reader asks |
|---|---|
| anything, without a leader that can be reached | the live replicas, the most complete first |
| far behind the end | one of the live replicas, another one for each reader: the load is spread |
| anything, by a reader that names its rack | a follower in that rack, if the leader is in another |
| all else | the leader |

A follower serves what it knows to be committed (KIP-392). A follower may lag, so after a fetch
without records the leader is asked before a follower again.
"""

from __future__ import annotations

from zlib import crc32

from pymq.client.router import Router
from pymq.core.values import value

BEHIND_BYTES = 1 << 18  # a fetch that returned so many bytes, and not all records, reads in bulk
# wait of a fetch at a follower; it may be cut off from its leader, so the leader is asked next
NEAR_WAIT_MS = 500
BEHIND_RECORDS = 4096  # offsets from the end at which a member of a group reads in bulk


@value
class Preference:
    """A reader's preference: *name* identifies the reader, *rack* is where it runs."""

    name: str = ""  # "": the consumer reads from the leader if there is one
    rack: str | None = None


LEADER = Preference()


def live(router: Router, topic: str, partition: str, but: str = "") -> list[str]:
    """The reachable replicas without *but*, the most complete first."""
    found = router.metadata.replicas(topic, partition)
    return [name for name in found if name != but and not router.is_lost(name)]


def preferred(
    router: Router,
    topic: str,
    partition: str,
    leader: str,
    preference: Preference,
    *,
    is_behind: bool,
) -> str:
    """Return the *leader*, or a follower that serves this reader better."""
    if not preference.name:
        return leader
    if not is_behind and preference.rack is None:
        return leader
    found = live(router, topic, partition)
    if leader not in found:
        return leader  # The leader is new, and the list of replicas is older.
    if preference.rack is not None:
        racks = router.metadata.racks(topic)
        near = [name for name in found if racks.get(name) == preference.rack]
        if near:
            return (
                leader if leader in near and not is_behind else _one_of(near, preference, partition)
            )
        if not is_behind:
            return leader
    return _one_of(found, preference, partition)


def _one_of(names: list[str], preference: Preference, partition: str) -> str:
    """Return the same replica for a reader and a partition each time: caches stay warm."""
    names = sorted(names)
    return names[crc32(f"{preference.name}/{partition}".encode()) % len(names)]
