"""The zkserver's machine: owns the metadata of topics, partitions and blocks.

Several zkservers may run; one is active, the controller (:mod:`~pymq.controller.election`). It
holds the metadata tree as an :class:`~pymq.controller.state.image.Image` and changes it by one
conditional commit at a time (:mod:`~pymq.controller.state.transactions`). All that must survive is
in the tree, so any zkserver can take over. It finds out anew which brokers are alive
(:mod:`~pymq.controller.state.broker_liveness`), what it must send them
(:mod:`~pymq.controller.operations.broker_updates`) and which rolls are under way
(:mod:`~pymq.controller.operations.rolls`).
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.access import node_refusals
from pymq.controller import descriptions, report_authority
from pymq.controller.admin import AdminHandler
from pymq.controller.descriptions import Descriptions
from pymq.controller.election import ControllerRole, Election
from pymq.controller.lookup import Lookup, metadata
from pymq.controller.operations.block_copying import BlockCopying
from pymq.controller.operations.broker_registry import BrokerRegistry
from pymq.controller.operations.broker_updates import BrokerUpdates
from pymq.controller.operations.departures import Departures
from pymq.controller.operations.leader_balance import LeaderBalance
from pymq.controller.operations.promotion import Promotion
from pymq.controller.operations.reports import Reports
from pymq.controller.operations.rolls import Rolls
from pymq.controller.operations.subscribers import Subscribers
from pymq.controller.operations.topics import Topics
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Draft, Image
from pymq.controller.state.replica_ends import KnownEnds
from pymq.controller.state.transactions import Later, Transactions
from pymq.controller.transitions import request_plans
from pymq.controller.transitions.placement import usable
from pymq.core.message import (
    Answer,
    BalanceLeaders,
    BrokerHeartbeat,
    ControlledShutdown,
    DescribeCluster,
    DescribeTopic,
    GetMetadata,
    InitProducer,
    LeaderAndIsrAnswer,
    ListTopics,
    Locate,
    Message,
    OfflineReplicas,
    PartitionReports,
    RegisterBroker,
    Result,
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
from pymq.core.metadata.nodes import ControllerNode
from pymq.core.observe.coverage import mark
from pymq.core.observe.events import EventLog
from pymq.core.ready import Ready
from pymq.core.types import NEVER, OFFSETS_TOPIC
from pymq.core.values import define
from pymq.errors import NoBrokers, NotController, PymqError

PARKED_MAX = 10_000  # messages that wait for the election; further ones are refused


@define
class ControllerConfig:
    """A zkserver's name and its timeouts."""

    name: str
    endpoint: str = ""
    session_ms: int = 0  # a broker is dead when silent for longer; 0: it lives in this process
    replace_ms: int = 10_000  # a broker that is dead for so long is replaced, if there are others
    # how long a take-over waits for the other replicas after the first has answered
    takeover_ms: int = 1_000
    check_ms: int = 30_000  # between two checks of partitions with too few replicas
    standby_ms: int = 2_000  # between two checks of a standby for the active zkserver
    # after which a dead broker is lost, and its blocks are copied; 0: never
    replica_lost_ms: int = 600_000
    copies_at_once: int = 8  # sealed blocks that are copied at a time
    leader_balance_ms: int = 300_000  # between two balances of leaders; 0: only on request
    offsets_partitions: int = 8
    offsets_replicas: int = 1
    wall_offset_ms: int = 0


class ControllerOutbox:
    """Collects what the machine's parts want done, for the next Ready."""

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
    """One zkserver, as a machine. *new_id* returns a new id of 32 hex digits."""

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
        self._config = config
        self._wall_offset_ms = config.wall_offset_ms
        self._new_id = new_id
        self._out = ControllerOutbox()
        node = ControllerNode(config.name, config.endpoint)
        self._election = Election(node, self._out, self, new_id, config.standby_ms)
        self._members = BrokerLiveness(config.session_ms, config.replace_ms)
        self._commits = Transactions(self._out, self._out.send, self._election.reread)
        self._commits.journal = self.journal
        self._notices = BrokerUpdates(self.me, self._commits, self._out.send)
        self._rolls = Rolls(
            self._commits,
            self._members,
            self._notices,
            self._out.send,
            takeover_ms=config.takeover_ms,
            wall_ms=self._wall,
        )
        self._topics = Topics(
            self._commits,
            self._members,
            self._notices,
            self._rolls,
            new_id=new_id,
            wall_ms=self._wall,
        )
        self._admin = AdminHandler(
            self._commits,
            self._members,
            self._notices,
            self._rolls,
            self._topics,
            wall_ms=self._wall,
        )
        self._registry = BrokerRegistry(
            self._commits,
            self._members,
            self._notices,
            self._rolls,
            self._out.send,
            check_ms=config.check_ms,
            wall_ms=self._wall,
            new_id=new_id,
        )
        self._departures = Departures(
            self._commits, self._members, self._notices, self._rolls, self._out.send
        )
        self._promotion = Promotion(
            self._commits,
            self._members,
            self._rolls,
            replicas=config.offsets_replicas,
            check_ms=config.check_ms,
        )
        self._subscribers = Subscribers(self._commits)
        self._copying = BlockCopying(
            self._commits,
            self._members,
            self._notices,
            lost_ms=config.replica_lost_ms,
            at_once=config.copies_at_once,
        )
        self._balance = LeaderBalance(
            self._commits,
            self._members,
            self._rolls,
            self._copying,
            self._out.send,
            every_ms=config.leader_balance_ms,
        )
        self._commits.hold = self._registry.hold
        self._notices.removed = self._registry.removed
        self._ends = KnownEnds()
        self._reports = Reports(
            self._commits, self._members, self._notices, self._rolls, self._ends
        )
        self._descriptions = Descriptions(
            self._commits, self._members, self._notices, self._ends, self._out.send
        )
        self._refusals = node_refusals.Refusals(self.journal)
        self._parked: list[tuple[str, Message]] = []  # messages, until the active zkserver is known
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
        """The metadata tree, as this zkserver knows it."""
        return self._commits.image

    @property
    def members(self) -> BrokerLiveness:
        """The brokers that this zkserver takes for alive."""
        return self._members

    @property
    def queue(self) -> int:
        """How many changes of the tree wait or are under way."""
        return len(self._commits)

    @property
    def rolls(self) -> int:
        """How many partitions are being rolled."""
        return len(self._rolls)

    @property
    def unclean_elections(self) -> int:
        """How many blocks were sealed without a replica that was known to be complete."""
        return self._rolls.unclean

    # --- the four verbs -------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in one message."""
        if self._election.is_active:
            self._step(source, message, now)
            self._pump(now)
            return
        elif isinstance(message, (LeaderAndIsrAnswer, PartitionReports, Stopped)):
            return  # The answer is to a request of an earlier process.
        elif isinstance(message, BrokerHeartbeat) and self._election.role is ControllerRole.ACTIVE:
            # This zkserver is cut off from the coordinator. Count the broker as alive all the same.
            if message.name == source:
                self._members.beat(message.name, message.incarnation, now)
        elif self._election.is_open and len(self._parked) < PARKED_MAX:
            self._parked.append((source, message))
        else:
            self._refuse(source, message)
        self._rearm()

    def decided(self, event: CoordEvent, now: int) -> None:
        """Take in an event of the coordinator."""
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
        self._election.decided(event, now)
        self._pump(now)

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """Take in that the backend could not carry out a commit; nothing was changed."""
        self._election.claim_failed(tag, error, now)
        self._commits.commit_failed(tag, error, now)
        self._pump(now)

    def tick(self, now: int) -> None:
        """Do what is due."""
        self._election.tick(now)
        if self._election.is_active:
            self._commits.tick(now)
            self._registry.tick(now)
            self._departures.tick(now)
            self._rolls.tick(now)
            self._copying.tick(now)
            self._balance.tick(now)
            self._notices.tick(now)
            self._descriptions.tick(now)
            self._promotion.tick(now)
            self._subscribers.tick(now)
            self._topics.tick(now)
        self._pump(now)

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work; only one Ready is out at a time."""
        if self._is_busy or not self._out.ready:
            return None
        out, self._out.ready, self._is_busy = self._out.ready, Ready(), True
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """Take in that the Ready was carried out."""
        self._is_busy = False

    def _pump(self, now: int) -> None:
        if self._election.is_active:
            self._commits.pump(now)
            self._notices.flush(now)
        self._rearm()

    def _rearm(self) -> None:
        due = self._election.deadline
        if self._election.is_active:
            due = min(
                due,
                self._commits.deadline,
                self._registry.deadline,
                self._departures.deadline,
                self._rolls.deadline,
                self._copying.deadline,
                self._balance.deadline,
                self._notices.deadline,
                self._descriptions.deadline,
                self._promotion.deadline,
                self._subscribers.deadline,
                self._topics.deadline,
            )
        self.deadline = due

    def set_wall_offset(self, offset_ms: int) -> None:
        """Set the wall clock minus the loop's clock, in milliseconds."""
        self._wall_offset_ms = offset_ms

    def _wall(self, now: int) -> int:
        return now + self._wall_offset_ms

    # --- hooks of the election ------------------------------------------------------------------

    def take_over(self, image: Image, now: int) -> None:
        """Become active. No broker counts as alive until it registers."""
        self.journal.note("controller_active", epoch=image.controller_epoch)
        self._commits.begin(image)
        self._registry.begin(now)
        self._promotion.begin(now)
        self._ends.clear()
        self._subscribers.begin(now)
        self._balance.begin(now)
        self._topics.begin(now)
        parked, self._parked = self._parked, []
        for source, message in parked:
            self._step(source, message, now)

    def reloaded(self, image: Image, now: int) -> None:
        """Continue from the tree that was read again after a lost race."""
        self._commits.loaded(image, now)

    def resign(self) -> None:
        """Stop being active: drop all that was under way."""
        error = self._not_controller()
        self.journal.note("controller_resigned")
        self._registry.end()
        self._promotion.end()
        self._departures.end()
        self._copying.end()
        self._balance.end()
        self._subscribers.end()
        self._topics.end()
        self._commits.end(error)
        self._rolls.end_all(error)
        self._descriptions.end_all(error)
        self._notices.clear()

    def stand_by(self) -> None:
        """Stand by: another zkserver is active, or none can be."""
        self._refuse_parked()

    def _refuse_parked(self) -> None:
        parked, self._parked = self._parked, []
        for source, message in parked:
            self._refuse(source, message)

    def _refuse(self, source: str, message: Message) -> None:
        """Answer with the active zkserver, if known; also to brokers, whose messages have no id."""
        error = self._election.problem or self._not_controller()
        self._out.send(source, Answer(getattr(message, "id", 0), error=error))

    def _not_controller(self) -> NotController:
        active = self._election.active
        if active is None or active.name == self.me:
            return NotController(
                f"{self.me} is not the active zkserver", controller=None, endpoint=None
            )
        return NotController(
            f"{self.me} is not the active zkserver; {active.name} is",
            controller=active.name,
            endpoint=active.endpoint,
        )

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
                self._notices.answered(m)
            case Stopped():
                self._notices.stopped(m)
            case PartitionReports():
                self._descriptions.reported(source, m)
            case _:
                if not self._reports.step(m, now):
                    self._step_client(source, m, now)

    def _step_client(self, source: str, m: Message, now: int) -> None:
        request = getattr(m, "id", 0)
        if self._commits.is_asked(source, request) or self._topics.is_waiting(source, request):
            mark("controller.asked_again")
            if self._commits.is_begun(source, request) or self._topics.is_waiting(source, request):
                mark("controller.under_way")
                self._out.send(source, UnderWay(request))
            return
        match m:
            case GetMetadata():
                self._metadata(source, m, now)
            case Locate():
                self._read(source, m.id, lambda image: self._lookup(image).locate(m))
            case DescribeTopic():
                self._describe(source, m, now)
            case ListTopics():
                self._read(source, m.id, descriptions.topics)
            case DescribeCluster():
                lost = self._copying.lost(now)
                self._read(source, m.id, descriptions.cluster(self.me, self._members, lost))
            case BalanceLeaders():
                self._balance.step(source, m, now)
            case Subscribe():
                self._subscribers.subscribe(source, m, now)
            case Unsubscribe():
                self._subscribers.unsubscribe(source, m)
            case InitProducer():
                self._commits.do(
                    lambda draft: request_plans.init_producer(draft, m, self._new_id),
                    answer=(source, m.id),
                )
            case _:
                self._admin.step(source, m, now)

    def _read(self, source: str, request: int, look: Callable[[Image], Result | Later]) -> None:
        """Answer from the tree, in the state after all earlier requests."""
        self._commits.read(look, answer=(source, request))

    def _lookup(self, image: Image) -> Lookup:
        return Lookup(image, self._members, self._ends)

    def _metadata(self, source: str, m: GetMetadata, now: int) -> None:
        if m.topic == OFFSETS_TOPIC and OFFSETS_TOPIC not in self.image.topics:
            # The internal topic is created when the first group needs it, as in Kafka.
            c, count = self._config, len(usable(self.image, self._members.live))
            # Enough brokers are alive. With fewer, all get the time to register first.
            if count < (1 if self._members.is_settled else c.offsets_replicas):
                wait = NoBrokers("the brokers that groups are kept on are not there yet")
                self._out.send(source, Answer(m.id, error=wait))
                return
            make = request_plans.offsets_topic(0, c.offsets_partitions, c.offsets_replicas, count)
            self._topics.create("", make, now, fewer=True)
        self._commits.read(
            metadata(self._lookup, m.topic),
            answer=(source, m.id),
            # A client can go on only when leaders are known. Partitions that are being created do
            # not count.
            is_urgent=m.topic in self.image.topics,
        )

    def _describe(self, source: str, m: DescribeTopic, now: int) -> None:
        def plan(draft: Draft) -> Later:
            self._descriptions.start(source, m, now)
            return Later.ANSWER

        self._commits.do(plan, answer=(source, m.id))
