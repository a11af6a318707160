"""Chooses the replica from which a reader fetches, if several may have the records.

| read | broker that gets the fetch |
|---|---|
| anything, without a leader that can be reached | the live replicas, the most complete first |
| far behind the end | one of the live replicas, chosen by reader, so that the load is spread |
| anything, by a reader that names its rack | a follower in that rack, if the leader is in another |
| all else | the leader |

A follower serves records that it knows to be committed (KIP-392). A follower may lag, so after a
fetch without records the next fetch goes to the leader.
"""

from __future__ import annotations

from zlib import crc32

from pymq.client.router import Router
from pymq.core.values import value

# a reader is far behind if a fetch returned this many bytes, and not all records
BEHIND_BYTES = 1 << 18
# wait of a fetch at a follower, which may be cut off; the next fetch goes to the leader
NEAR_WAIT_MS = 500
BEHIND_RECORDS = 4096  # a group member that is this many offsets from the end is far behind


@value
class Preference:
    """A reader's preference: *name* identifies the reader, *rack* is where it runs."""

    name: str = ""  # "": the consumer reads from the leader, if any
    rack: str | None = None


LEADER = Preference()


def live(router: Router, topic: str, partition: str, but: str = "") -> list[str]:
    """Return the reachable replicas except *but*, the most complete first."""
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
        return leader  # The list of replicas was made before this leader was elected.
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
    """Return the same replica each time for a reader and a partition, to use its caches."""
    names = sorted(names)
    return names[crc32(f"{preference.name}/{partition}".encode()) % len(names)]
