"""The zkserver's state machine: owns the metadata of topics, partitions and blocks.

Several zkservers may run; one is active, the controller (:mod:`~pymq.controller.election`). The
controller holds the metadata tree as an :class:`~pymq.controller.state.image.Image` and changes it
by one conditional commit at a time (:mod:`~pymq.controller.state.transactions`). All state that
must survive is in the tree, so any zkserver can take over. The new zkserver then has to find out
which brokers are alive (:mod:`~pymq.controller.state.broker_liveness`), which updates the brokers
need (:mod:`~pymq.controller.operations.broker_updates`) and which rolls are in progress
(:mod:`~pymq.controller.operations.rolls`).
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.access import node_refusals
from pymq.controller import report_authority
from pymq.controller.admin import AdminHandler
from pymq.controller.context import ControllerContext
from pymq.controller.descriptions import Descriptions
from pymq.controller.election import (
    ControllerRole,
    Elected,
    Election,
    Outcome,
    Reloaded,
    Resigned,
    StandsBy,
)
from pymq.controller.operations.block_copying import BlockCopying
from pymq.controller.operations.broker_registry import BrokerRegistry
from pymq.controller.operations.broker_updates import BrokerUpdates
from pymq.controller.operations.departures import Departures
from pymq.controller.operations.leader_balance import LeaderBalance
from pymq.controller.operations.promotion import Promotion
from pymq.controller.operations.reports import Reports
from pymq.controller.operations.roll_triggers import RollTriggers
from pymq.controller.operations.rolls import Rolls
from pymq.controller.operations.subscribers import Subscribers
from pymq.controller.operations.topics import Topics
from pymq.controller.queries import QueryHandler
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Image
from pymq.controller.state.replica_ends import KnownEnds
from pymq.controller.state.transactions import Transactions
from pymq.controller.transitions import request_plans
from pymq.core.message import (
    Answer,
    BalanceLeaders,
    BrokerHeartbeat,
    ControlledShutdown,
    InitProducer,
    LeaderAndIsrAnswer,
    Message,
    OfflineReplicas,
    PartitionReports,
    RegisterBroker,
    Stopped,
    Subscribe,
    UnderWay,
    Unsubscribe,
)
from pymq.core.metadata.coordination import (
    Committed,
    Conflicted,
    CoordEvent,
    CoordRequest,
    Failed,
    Resumed,
    Suspended,
    Uncertain,
)
from pymq.core.observe.coverage import mark
from pymq.core.observe.events import EventLog
from pymq.core.ready import Ready
from pymq.core.types import NEVER
from pymq.core.values import define
from pymq.errors import PymqError

PARKED_MAX = 10_000  # messages that wait for the election; more are refused


@define
class ControllerConfig:
    """A zkserver's name and its timeouts."""

    name: str
    endpoint: str = ""
    # a broker that is silent for longer counts as dead; 0: the broker lives in this process
    session_ms: int = 0
    # a broker that is dead for this long is replaced, if another broker is available
    replace_ms: int = 10_000
    # how long the zkserver waits for the other replicas after the first answer in a take-over
    takeover_ms: int = 1_000
    check_ms: int = 30_000  # interval of checks for partitions with too few replicas
    standby_ms: int = 2_000  # interval at which a standby checks for the active zkserver
    # after this long a dead broker counts as lost, and its blocks are copied; 0: never
    replica_lost_ms: int = 600_000
    copies_at_once: int = 8  # sealed blocks that are copied at the same time
    leader_balance_ms: int = 300_000  # interval of leader balances; 0: only on request
    offsets_partitions: int = 8
    offsets_replicas: int = 1
    wall_offset_ms: int = 0


class ControllerOutbox:
    """Collects messages and requests of the controller's parts for the next Ready."""

    def __init__(self) -> None:
        self.ready = Ready()
        self._tags = 0

    def send(self, peer: str, message: Message) -> None:
        """Send a message."""
        self.ready.send.append((peer, message))

    def next_tag(self) -> int:
        """Return a tag for a request to the coordinator."""
        self._tags += 1
        return self._tags

    def ask(self, request: CoordRequest) -> None:
        """Send a request to the coordinator."""
        self.ready.meta.append(request)


class Controller:
    """The state machine of one zkserver, active or not. *new_id* returns 32 hex digits."""

    def __init__(
        self,
        config: ControllerConfig,
        new_id: Callable[[], str],
        now: int,
        journal: EventLog | None = None,
    ) -> None:
        self.me = config.name
        self.journal = journal or EventLog()
        self.deadline = NEVER
        self._out = out = ControllerOutbox()
        self._election = Election(self.me, config.endpoint, out, new_id, config.standby_ms)
        self._members = members = BrokerLiveness(config.session_ms, config.replace_ms)
        self._commits = commits = Transactions(
            out, out.send, self._election.reread, members, self.journal
        )
        self._updates = updates = BrokerUpdates(self.me, commits, out.send)
        self._context = context = ControllerContext(
            self.me, commits, members, updates, KnownEnds(), out.send, new_id, config.wall_offset_ms
        )
        self._rolls = rolls = Rolls(context, takeover_ms=config.takeover_ms)
        self._triggers = triggers = RollTriggers(context, rolls)
        self._topics = Topics(context, rolls, triggers)
        self._admin = AdminHandler(context, rolls, triggers, self._topics)
        self._registry = BrokerRegistry(context, rolls, triggers, check_ms=config.check_ms)
        self._departures = Departures(context, rolls)
        self._promotion = Promotion(
            context, rolls, replicas=config.offsets_replicas, check_ms=config.check_ms
        )
        self._subscribers = Subscribers(commits)
        self._copying = BlockCopying(context, config.replica_lost_ms, config.copies_at_once)
        self._balance = LeaderBalance(context, rolls, self._copying, config.leader_balance_ms)
        self._reports = Reports(context, rolls)
        self._descriptions = Descriptions(context)
        self._queries = QueryHandler(
            context,
            self._topics,
            self._copying,
            self._descriptions,
            offsets_partitions=config.offsets_partitions,
            offsets_replicas=config.offsets_replicas,
        )
        # The parts with deadlines, in the order in which they run.
        self._timed = (
            commits.queues,
            self._registry,
            self._departures,
            triggers,
            rolls,
            self._copying,
            self._balance,
            updates,
            self._descriptions,
            self._promotion,
            self._subscribers,
            self._topics,
        )
        self._refusals = node_refusals.Refusals(self.journal)
        # messages that wait until the active zkserver is known
        self._parked: list[tuple[str, Message]] = []
        self._is_busy = False

    # --- state for other machines and metrics ---------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this zkserver is the controller."""
        return self._election.is_active

    @property
    def secret(self) -> bytes:
        """The secret of producer-id grants; empty while another zkserver is active."""
        return self.image.secret if self.is_active else b""

    @property
    def image(self) -> Image:
        """This zkserver's image of the metadata tree."""
        return self._commits.image

    @property
    def members(self) -> BrokerLiveness:
        """The brokers that this zkserver considers alive."""
        return self._members

    @property
    def queue(self) -> int:
        """The number of changes of the tree that wait or are in progress."""
        return len(self._commits)

    @property
    def rolls(self) -> int:
        """The number of partitions that are being rolled."""
        return len(self._rolls)

    @property
    def unclean_elections(self) -> int:
        """The number of blocks that were sealed although no replica was known to be complete."""
        return self._rolls.unclean

    # --- step, tick, ready, advance ---------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle one message."""
        if self._election.is_active:
            self._step(source, message, now)
            self._pump(now)
            return
        elif isinstance(message, (LeaderAndIsrAnswer, PartitionReports, Stopped)):
            return  # The answer belongs to a request of an earlier process.
        elif isinstance(message, BrokerHeartbeat) and self._election.role is ControllerRole.ACTIVE:
            # This zkserver is cut off from the coordinator backend. Nevertheless count the broker
            # as alive.
            if message.name == source:
                self._members.beat(message.name, message.incarnation, now)
        elif self._election.is_open and len(self._parked) < PARKED_MAX:
            self._parked.append((source, message))
        else:
            self._refuse(source, message)
        self._rearm()

    def decided(self, event: CoordEvent, now: int) -> None:
        """Handle an event of the coordinator backend."""
        match event:
            case Suspended():
                self._commits.pause()
                self._refuse_parked()
            case Resumed():
                self._commits.resume()
            case Committed() | Conflicted() | Uncertain():
                self._commits.settle(event, now)
            case Failed(tag=tag, error=error):
                self._commits.commit_failed(tag, error, now)
            case _:
                pass
        self._elected(self._election.decided(event, now), now)
        self._pump(now)

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """Note that the backend could not carry out a commit; the tree is unchanged."""
        self._elected(self._election.claim_failed(tag, error, now), now)
        self._commits.commit_failed(tag, error, now)
        self._pump(now)

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        self._election.tick(now)
        if self._election.is_active:
            for part in self._timed:
                part.tick(now)
        self._pump(now)

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work; only one Ready is out at a time."""
        if self._is_busy or not self._out.ready:
            return None
        out, self._out.ready, self._is_busy = self._out.ready, Ready(), True
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """Note that the Ready was carried out."""
        self._is_busy = False

    def _pump(self, now: int) -> None:
        if self._election.is_active:
            self._commits.pump(now)
            self._updates.flush(now)
        self._rearm()

    def _rearm(self) -> None:
        self.deadline = self._election.deadline
        if self._election.is_active:
            self.deadline = min(self.deadline, *(part.deadline for part in self._timed))

    def set_wall_offset(self, offset_ms: int) -> None:
        """Set the wall clock minus the loop's clock, in milliseconds."""
        self._context.wall_offset_ms = offset_ms

    # --- the election ---------------------------------------------------------------------------

    def _elected(self, outcome: Outcome | None, now: int) -> None:
        """Act on a change of the role: take over, resign or refuse requests."""
        match outcome:
            case Elected(image=image):
                self._take_over(image, now)
            case Reloaded(image=image):
                self._commits.loaded(image, now)
            case Resigned():
                self._resign()
            case StandsBy():
                self._refuse_parked()
            case None:
                pass

    def _take_over(self, image: Image, now: int) -> None:
        """Become active. No broker counts as alive until it registers."""
        self.journal.note("controller_active", epoch=image.controller_epoch)
        self._commits.begin(image)
        self._registry.begin(now)
        self._promotion.begin(now)
        self._context.ends.clear()
        self._subscribers.begin(now)
        self._balance.begin(now)
        self._topics.begin(now)
        parked, self._parked = self._parked, []
        for source, message in parked:
            self._step(source, message, now)

    def _resign(self) -> None:
        """Stop being active, and drop all operations in progress."""
        error = self._election.not_controller()
        self.journal.note("controller_resigned")
        self._registry.end()
        self._promotion.end()
        self._departures.end()
        self._copying.end()
        self._balance.end()
        self._subscribers.end()
        self._topics.end()
        self._commits.end(error)
        self._triggers.end()
        self._rolls.end_all(error)
        self._descriptions.end_all(error)
        self._updates.clear()

    def _refuse_parked(self) -> None:
        parked, self._parked = self._parked, []
        for source, message in parked:
            self._refuse(source, message)

    def _refuse(self, source: str, message: Message) -> None:
        """Answer with the name of the active zkserver, if known.

        Brokers also get this answer, although their messages have no id.
        """
        error = self._election.refusal
        self._out.send(source, Answer(getattr(message, "id", 0), error=error))

    # --- messages -------------------------------------------------------------------------------

    def _step(self, source: str, m: Message, now: int) -> None:
        if not report_authority.may_report(self.image, source, m):
            if (answer := self._refusals.refuse(self.me, source, m, now)) is not None:
                self._out.send(source, answer)
            return
        match m:
            case RegisterBroker():
                self._registry.register(source, m, now)
                self._promotion.soon(now)
            case BrokerHeartbeat():
                self._registry.beat(source, m, now)
            case ControlledShutdown():
                self._departures.step(source, m, now)
            case OfflineReplicas():
                self._registry.offline(m, now)
            case LeaderAndIsrAnswer():
                if m.error is not None:
                    self._election.check()  # The broker may know a later controller.
                self._updates.answered(m)
            case Stopped():
                self._updates.stopped(m)
            case PartitionReports():
                self._descriptions.reported(source, m)
            case _:
                if not self._reports.step(m, now):
                    self._step_client(source, m, now)

    def _step_client(self, source: str, m: Message, now: int) -> None:
        request = getattr(m, "id", 0)
        if self._commits.requests.is_asked(source, request) or self._topics.is_waiting(
            source, request
        ):
            mark("controller.asked_again")
            if self._commits.requests.is_begun(source, request) or self._topics.is_waiting(
                source, request
            ):
                mark("controller.under_way")
                self._out.send(source, UnderWay(request))
            return
        match m:
            case BalanceLeaders():
                self._balance.step(source, m, now)
            case Subscribe():
                self._subscribers.subscribe(source, m, now)
            case Unsubscribe():
                self._subscribers.unsubscribe(source, m)
            case InitProducer():
                self._commits.do(
                    lambda draft: request_plans.init_producer(draft, m, self._context.new_id),
                    answer=(source, m.id),
                )
            case _:
                if not self._queries.step(source, m, now):
                    self._admin.step(source, m, now)
