"""Registers a broker with the active zkserver and sends its heartbeats."""

from __future__ import annotations

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.group.group_limits import GroupLimits
from pymq.core.message import BrokerHeartbeat, LeaderAndIsr, Message, RegisterBroker
from pymq.core.pending.fetch_limits import FetchLimits
from pymq.core.ready import Ready
from pymq.core.types import NEVER
from pymq.core.values import Factory, define
from pymq.errors import NotController, PymqError

REGISTER_RETRY_MS = 1_000
CONTROLLER_RETRY_MS = 50


@define
class BrokerConfig:
    """A broker's identity, its zkservers and its limits."""

    name: str
    controllers: tuple[str, ...]  # all zkservers, of which one is active
    endpoint: str = ""
    rack: str | None = None
    weight: int = 1
    storage_id: str = ""
    incarnation: int = 0  # rises with each start
    heartbeat_ms: int = 0  # 0: the zkserver lives in this process
    wall_offset_ms: int = 0  # wall clock minus monotonic clock
    replication: ReplicationConfig = Factory(ReplicationConfig)
    fetches: FetchLimits = Factory(FetchLimits)
    groups: GroupLimits = Factory(GroupLimits)
    kafka: str = ""  # HOST:PORT for Kafka's clients


class Registration:
    """A broker's registration with the active zkserver."""

    def __init__(self, config: BrokerConfig) -> None:
        self.controller = config.controllers[0]
        self.epoch = -1  # controller epoch; zkservers with a lower epoch were replaced
        self.deadline = NEVER
        self._config = config
        self.secret = b""  # secret of producer-id grants
        self._is_known = False
        self._refusal = ""  # reason of the last refusal

    def register(self, out: Ready, now: int) -> None:
        """Send the registration; :meth:`beat` repeats it until a zkserver answers."""
        c = self._config
        register = RegisterBroker(
            0, c.name, c.endpoint, c.rack, c.weight, c.storage_id, c.incarnation, c.kafka
        )
        out.send.append((self.controller, register))
        self.deadline = now + REGISTER_RETRY_MS

    def is_controller(self, source: str) -> bool:
        """Whether *source* is one of the configured zkservers; the broker obeys only these."""
        return source in self._config.controllers

    def heard(self, m: LeaderAndIsr) -> None:
        """Handle a `LeaderAndIsr`, whose sender is active and knows this broker."""
        self.controller, self.epoch, self._is_known = m.controller, m.controller_epoch, True
        self.secret = m.secret or self.secret  # an older zkserver sends no secret
        self._refusal = ""

    def refused(self, error: PymqError) -> str:
        """Note that the zkserver refused to register this broker.

        Returns the reason if it differs from the last reason, otherwise an empty string.
        """
        before, self._refusal = self._refusal, error.message
        return "" if before == error.message else error.message

    def unknown(self, source: str, out: Ready, now: int) -> None:
        """Register with *source*, the active zkserver, which does not know this broker."""
        self.controller, self._is_known = source, False
        self.register(out, now)

    def other(self, source: str, error: NotController, out: Ready, now: int) -> None:
        """Note that *source* is not active; register with the zkserver that *error* names."""
        active = error.details.get("controller")
        if isinstance(active, str) and active != self.controller and self.is_controller(active):
            self.unknown(active, out, now)
        elif source == self.controller and not self._is_known:
            self._next()
            self.deadline = min(self.deadline, now + CONTROLLER_RETRY_MS)

    def beat(self, out: Ready, now: int) -> None:
        """Act on deadlines: register with the next zkserver, or send heartbeats."""
        c = self._config
        if not self._is_known:
            self._next()  # the last zkserver has not answered
            self.register(out, now)
        elif c.heartbeat_ms:
            # Send heartbeats to all zkservers: if the active one has failed, another one answers
            # NotController.
            beat: Message = BrokerHeartbeat(c.name, c.incarnation)
            out.send += [(name, beat) for name in c.controllers]
            self.deadline = now + c.heartbeat_ms
        else:
            self.deadline = NEVER

    def _next(self) -> None:
        names = self._config.controllers
        index = names.index(self.controller) if self.controller in names else -1
        self.controller = names[(index + 1) % len(names)]
