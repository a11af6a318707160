"""Chooses the zkserver that a client takes for the active one."""

from __future__ import annotations

from collections.abc import Sequence


class ActiveController:
    """The zkservers of a cluster, and the one that gets the client's requests first."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.active = self.names[0]

    def not_active(self, asked: str, hint: object = None) -> None:
        """Note that the zkserver *asked* is not active or does not answer.

        The next request goes to *hint*, the zkserver that *asked* has named, if it is another one
        of :attr:`names`; otherwise to the one after *asked*.
        """
        if asked != self.active:
            return
        names = self.names
        if isinstance(hint, str) and hint in names and hint != asked:
            self.active = hint
        else:
            self.active = names[(names.index(asked) + 1) % len(names)]
