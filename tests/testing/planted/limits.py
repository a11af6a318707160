"""Bugs of limits on the resources that a single client uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pymq.broker.batch_copies import BatchCopies
from pymq.controller.lookup import Lookup
from pymq.controller.operations.broker_updates import BrokerUpdates, Mailbox
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.commit_queues import OpenRequests
from pymq.controller.state.hosting_index import Hosting
from pymq.controller.state.roll_candidates import Candidates
from pymq.controller.state.transactions import Transactions
from pymq.controller.transitions.partition_sweep import Sweep
from pymq.core.block.log import BlockLog
from pymq.core.group.group_limits import GroupLimits
from pymq.core.message import Fetch
from pymq.core.pending.fetch_limits import Boundless, Fetches
from pymq.core.pending.pending_fetches import WaitingRoom
from pymq.transport.zeromq.connections import Connections
from pymq.transport.zeromq.in_flight import InFlight
from pymq.web.login_throttle import LoginThrottle
from tests.testing.planted.bug import bug, plant

AREA = "limits"
FETCHES = "tests/core/pending/test_fetch_limits.py::"

bug(
    "fetch-reads-what-is-asked",
    AREA,
    "a fetch is read at once and in full, whether or not its client takes the answers before it",
    "own, before decision 126",
    test=FETCHES + "test_who_takes_nothing_holds_his_share_and_no_more",
)


@plant("fetch-reads-what-is-asked", Fetches, "_grant")
def grant_all(grant: Any, self: Fetches, account: str, connection: str, m: Fetch, now: int) -> int:
    return m.max_bytes


bug(
    "room-is-first-come",
    AREA,
    "those who take nothing may fill all the room there is, and newcomers find none",
    "shared buffers without thresholds (Choudhury and Hahne, 1998)",
    test=FETCHES + "test_newcomers_find_room_beside_those_who_take_nothing",
)


@plant("room-is-first-come", Fetches, "_grant")
def grant_first_come(
    grant: Any, self: Fetches, account: str, connection: str, m: Fetch, now: int
) -> int:
    most = min(m.max_bytes, self.limits.answer_bytes)
    if self.loads is None:
        self.loads = self._outbox.loads()
    if most > self.limits.node_bytes - self.loads.node:
        return 0
    self.loads.add(account, connection, most)
    return most


bug(
    "room-not-given-back",
    AREA,
    "what was granted counts for ever, also when the client has taken it",
    "any pool",
    test=FETCHES + "test_what_waits_is_served_as_soon_as_there_is_room",
)


@plant("room-not-given-back", Fetches, "sent")
def sent_unseen(sent: Any, self: Fetches) -> None:
    pass


bug(
    "gone-keeps-its-room",
    AREA,
    "what libzmq has sent counts as if it were still held",
    "any pool",
    test="tests/transport/zeromq/test_transport.py::"
    "test_what_a_client_has_not_taken_is_counted_until_it_has_left",
    is_slow=True,
)


@plant("gone-keeps-its-room", InFlight, "look")
def look_never(look: Any, self: InFlight, now: float) -> int:
    return self.bytes


bug(
    "reads-for-the-departed",
    AREA,
    "what a client had asked for is read after it has gone",
    "own, before decision 126",
    test=FETCHES + "test_what_was_asked_by_who_has_gone_is_not_read",
)


@plant("reads-for-the-departed", Fetches, "_forget")
def forget_late(forget: Any, self: Fetches, account: str, connection: str) -> None:
    _, m, _ = self._line[account][connection][0]
    self._grant(account, connection, m, 0)


bug(
    "fetches-wait-by-connection",
    AREA,
    "with more connections a principal has more fetches wait, until memory ends or others may not",
    "own, before decision 153",
    test=FETCHES + "test_an_account_has_as_many_waiting_as_it_leaves_for_others",
)


@plant("fetches-wait-by-connection", Fetches, "_may_wait")
def may_wait_by_connection(may_wait: Any, self: Fetches, account: str, connection: str) -> bool:
    connections = self._line.get(account)
    return connections is None or len(connections.get(connection, ())) < self.limits.waiting


bug(
    "looks-at-all-that-wait",
    AREA,
    "each turn of a broker without room looks at every connection that waits",
    "own, before decision 153",
    test=FETCHES + "test_a_turn_looks_at_what_it_serves_and_a_few_however_many_wait",
)


@plant("looks-at-all-that-wait", Fetches, "_pass")
def pass_for_nothing(pass_: Any, self: Fetches, account: str, connection: str) -> None:
    pass_(self, account, connection)
    self._looks = 0


bug(
    "waits-at-ends-by-partition",
    AREA,
    "in as many partitions as there are, clients have any number of fetches wait",
    "own, before decision 153",
    test="tests/core/partition/test_fetch.py::"
    "test_over_all_partitions_a_principal_has_as_many_waiting_as_it_leaves_for_others",
)


@plant("waits-at-ends-by-partition", WaitingRoom, "has_room")
def has_room_always(has_room: Any, self: WaitingRoom, account: str) -> bool:
    return True


bug(
    "waits-counted-for-ever",
    AREA,
    "fetches that have waited long enough count on, until nobody may wait",
    "any pool",
    test="tests/core/partition/test_fetch.py::"
    "test_over_all_partitions_a_principal_has_as_many_waiting_as_it_leaves_for_others",
)


@plant("waits-counted-for-ever", WaitingRoom, "leave")
def leave_unseen(leave: Any, self: WaitingRoom, account: str) -> None:
    pass


bug(
    "block-begun-once",
    AREA,
    "a block that the store could not begin is not begun again, and takes nothing until a restart",
    "own, before decision 127",
    test="tests/testing/test_no_descriptors.py::"
    "test_a_partition_goes_on_after_its_next_block_could_not_be_begun",
)


@plant("block-begun-once", BlockLog, "fail")
def fail_for_good(fail: Any, self: BlockLog) -> None:
    fail(self)
    self._beginning = []


bug(
    "strangers-stay",
    AREA,
    "connections that say nothing take all descriptors there are",
    "own, before decision 127; slowloris",
    test="tests/transport/zeromq/test_connections.py::"
    "test_of_silent_connections_the_oldest_go_when_there_are_too_many",
    is_slow=True,
)


@plant("strangers-stay", Connections, "_make_room")
def make_no_room(make_room: Any, self: Connections) -> None:
    pass


bug(
    "principal-fills-few-descriptors",
    AREA,
    "where descriptors are few, one principal may have nearly all connections",
    "own, before decision 154",
    test="tests/transport/zeromq/test_connections.py::"
    "test_a_principal_has_half_of_the_room_where_descriptors_are_few",
)


@plant("principal-fills-few-descriptors", Connections, "share")
def share_all(share: Any, self: Connections, most: int) -> int:
    return most


bug(
    "proved-a-key-and-stays",
    AREA,
    "connections that have proved a key and say nothing keep all others out",
    "own, before decision 154",
    test="tests/transport/zeromq/test_connections.py::"
    "test_silent_connections_leave_half_of_the_room_for_those_that_speak",
)


@plant("proved-a-key-and-stays", Connections, "_make_room")
def make_room_among_new(make_room: Any, self: Connections) -> None:
    self._silent.clear()
    make_room(self)


bug(
    "principal-counts-for-ever",
    AREA,
    "connections of a principal that have ended count on, until it gets no more",
    "any pool",
    test="tests/transport/zeromq/test_connections.py::test_connections_that_have_ended_count_for_nobody",
)


@plant("principal-counts-for-ever", Connections, "heard")
def heard_once(heard: Any, self: Connections, event: int, descriptor: int) -> None:
    principal = self._known.pop(descriptor, None)
    heard(self, event, descriptor)
    if principal is not None:
        self._known[-descriptor] = principal


bug(
    "copy-goes-on-over-quota",
    AREA,
    "a copy is charged when it is made, and reads on whatever it costs",
    "own, before decision 128",
    test="tests/broker/test_batch_copies.py::test_a_copy_is_paid_for_as_it_is_made",
)


@plant("copy-goes-on-over-quota", BatchCopies, "_read")
def read_on(read: Any, self: BatchCopies, now: int) -> None:
    class Free(Boundless):
        pass

    host, self._host = (
        self._host,
        SimpleNamespace(me=self._host.me, outbox=Free(), on_partition=self._host.on_partition),
    )
    try:
        read(self, now)
    finally:
        self._host = host


bug(
    "copies-in-one-line",
    AREA,
    "who asks for more copies has more of the reads, and others wait for all of it",
    "own, before decision 155",
    test="tests/broker/test_batch_copies.py::"
    "test_a_principal_has_half_of_the_copies_and_others_do_not_wait_for_all_of_its",
)


@plant("copies-in-one-line", BatchCopies, "_next")
def next_of_the_same(next_: Any, self: BatchCopies) -> Any:
    first = next(iter(self._line))
    job = next_(self)
    if first in self._line:
        self._line.move_to_end(first, last=False)
    return job


bug(
    "guesses-are-free",
    AREA,
    "tokens may be tried as fast as they come",
    "own, before decision 128",
    test="tests/web/test_authentication.py::test_guesses_are_slowed_more_with_each_and_written_down",
)


@plant("guesses-are-free", LoginThrottle, "wait_s")
def wait_never(wait_s: Any, self: LoginThrottle, address: str, digest: bytes) -> float:
    return 0.0


bug(
    "groups-without-bounds",
    AREA,
    "a group takes as many members as want to join",
    "Kafka KIP-389 (group.max.size)",
    test="tests/core/test_group_bounds.py::test_a_group_has_a_largest_number_of_members",
)


@plant("groups-without-bounds", GroupLimits, "check_members")
def admit_all(check: Any, self: GroupLimits, group: str, count: int) -> None:
    return None


MANY = "tests/controller/test_many_partitions.py::"

bug(
    "all-partitions-in-a-turn",
    AREA,
    "the zkserver begins the rolls of all partitions of a broker in one turn, and answers nobody",
    "own, before decision 151; Kafka KAFKA-5642",
    test=MANY + "test_a_broker_of_many_partitions_is_decommissioned_some_in_each_turn",
)


@plant("all-partitions-in-a-turn", Candidates, "tick")
def look_at_all(tick: Any, self: Candidates, now: int) -> None:
    tick(self, now)
    while self._names:
        tick(self, now)


bug(
    "only-the-first-are-looked-at",
    AREA,
    "of many partitions of a broker only those of the first turn are rolled",
    "any queue that is worked off in parts",
    test=MANY + "test_a_broker_of_many_partitions_is_decommissioned_some_in_each_turn",
)


@plant("only-the-first-are-looked-at", Candidates, "tick")
def look_once(tick: Any, self: Candidates, now: int) -> None:
    tick(self, now)
    self.clear()


bug(
    "only-the-first-are-told",
    AREA,
    "of a large topic only the partitions of the first turn are told to their brokers",
    "any queue that is worked off in parts",
    test=MANY + "test_a_large_topic_is_told_some_partitions_in_each_turn",
)


@plant("only-the-first-are-told", BrokerUpdates, "_tell_topics")
def tell_once(tell: Any, self: BrokerUpdates, now: int) -> None:
    tell(self, now)
    self._topics.clear()


bug(
    "only-the-first-are-removed",
    AREA,
    "of what a broker is to remove it is told only the first of it",
    "any queue that is worked off in parts",
    test=MANY + "test_a_broker_that_comes_back_is_told_of_few_removals_at_a_time",
)


@plant("only-the-first-are-removed", BrokerUpdates, "_send_stops")
def remove_once(send: Any, self: BrokerUpdates, broker: str, box: Mailbox) -> bool:
    found: bool = send(self, broker, box)
    box.stops_later.clear()
    return found


bug(
    "slices-of-nothing-in-a-turn",
    AREA,
    "slices that change nothing follow each other in one turn, however many they are",
    "own, before decision 151",
    test=MANY + "test_a_broker_that_comes_back_unchanged_is_looked_at_some_in_each_turn",
)


@plant("slices-of-nothing-in-a-turn", Transactions, "_finish")
def finish_at_once(
    finish: Any, self: Transactions, task: Any, result: Any, now: int, *, is_resting: bool = False
) -> None:
    finish(self, task, result, now)


bug(
    "sweep-forgets-what-changed",
    AREA,
    "those partitions of a broker that change after they were looked at are left as they are",
    "own; any walk over what changes meanwhile",
    test="tests/controller/test_slices.py::test_what_changed_after_its_slice_is_looked_at_again",
    is_slow=True,
)


@plant("sweep-forgets-what-changed", Hosting, "changed")
def changed_never(changed: Any, self: Hosting, broker: str, since: int) -> tuple[()]:
    return ()


SWEEP = "tests/controller/transitions/test_partition_sweep.py::"

bug(
    "sweep-never-ends",
    AREA,
    "where as many partitions change between two slices as one looks at, a broker never registers",
    "own, before seeds 903973 and 904089",
    test=SWEEP + "test_a_sweep_ends_though_everything_changes_between_two_slices",
)


@plant("sweep-never-ends", Sweep, "plan")
def plan_no_more(plan: Any, self: Sweep, draft: Any, change: Any) -> Any:
    self._done.left = 0
    return plan(self, draft, change)


bug(
    "sweep-notes-each-change",
    AREA,
    "what changes while a sweep goes on is left to do as often as it has changed",
    "own, before seeds 903973 and 904089",
    test=SWEEP + "test_what_changes_again_and_again_is_left_to_do_once",
)


@plant("sweep-notes-each-change", Sweep, "_left")
def left_twice(left: Any, self: Sweep, hosting: Hosting) -> Any:
    done = self._done
    late = hosting.changed(self._broker, self._sequence) if hosting is done.hosting else None
    return ((*done.names[done.at :], *late), 0) if late else left(self, hosting)


bug(
    "departure-of-an-earlier-life",
    AREA,
    "a broker that has started anew is taken out of the in-sync sets, as it had asked before",
    "own, before seed 903973",
    test="tests/controller/operations/test_departures.py::"
    "test_a_departure_ends_when_its_broker_has_started_anew",
)


@plant("departure-of-an-earlier-life", BrokerLiveness, "is_leaving")
def leaving_for_ever(leaving: Any, self: BrokerLiveness, broker: str, incarnation: int) -> bool:
    return True


bug(
    "long-requests-are-given-up",
    AREA,
    "a topic that takes longer to make than a request may take is reported as failed, and is made",
    "own, before decision 152",
    test="tests/testing/test_large_creates.py::"
    "test_a_topic_that_takes_half_a_minute_is_made_and_deleted",
)


@plant("long-requests-are-given-up", OpenRequests, "is_begun")
def begun_never(is_begun: Any, self: OpenRequests, source: str, request: int) -> bool:
    return False


bug(
    "only-the-first-are-described",
    AREA,
    "of very many partitions a client is told those of the first turn",
    "any answer that is made in parts",
    test="tests/controller/test_gradual_reads.py::test_metadata_is_of_all_partitions_in_order",
)


@plant("only-the-first-are-described", Lookup, "leader")
def leader_of_few(leader: Any, self: Lookup, name: Any) -> Any:
    return leader(self, name) if int(name.partition) < 10 else None
