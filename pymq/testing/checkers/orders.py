"""Rules about the requests of zkservers, which brokers must follow."""

from __future__ import annotations

from pymq.testing.checkers.base import Checker
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost


class OrderRules(Checker):
    """A broker follows the newest state that it has received, and serves only blocks of its present
    disk.

    A replica on an earlier disk has made promises that are not on the new disk. So the broker must
    not vote or acknowledge for that replica (Ongaro's thesis, section 3.8).
    """

    rules = ("newest-state-counts", "own-disk-only")

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        is_same = last is not None and last.block.topic_id == found.block.topic_id
        if last is not None and is_same and found.told < last.told:
            self.fail(
                "newest-state-counts",
                f"{host.name} goes by {found.told} (epoch and version) of {found.block}, after it "
                f"was told {last.told}",
            )
        if found.made_on not in ("", host.storage_id):
            self.fail(
                "own-disk-only",
                f"{host.name} acts for {found.block} with the disk {host.storage_id}, and was "
                f"given it with the disk {found.made_on}",
            )
