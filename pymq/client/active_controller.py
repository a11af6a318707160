"""Chooses the zkserver to which a client sends its requests: the one that is probably active."""

from __future__ import annotations

from collections.abc import Sequence


class ActiveController:
    """The zkservers of a cluster, and the one that gets the client's requests first."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.active = self.names[0]

    def not_active(self, asked: str, hint: object = None) -> None:
        """Note that the zkserver *asked* is not active or does not answer.

        *hint* is the zkserver that *asked* has named. If *hint* is in :attr:`names` and is not
        *asked*, the next request goes to *hint*; otherwise it goes to the zkserver after *asked* in
        :attr:`names`.
        """
        if asked != self.active:
            return
        names = self.names
        if isinstance(hint, str) and hint in names and hint != asked:
            self.active = hint
        else:
            self.active = names[(names.index(asked) + 1) % len(names)]
