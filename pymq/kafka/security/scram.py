"""SCRAM: a client proves that it knows a password, without sending it (RFC 5802, RFC 7677).

======  ========================================================================================
step    message
======  ========================================================================================
client  ``n,,n=USER,r=NONCE``
server  ``r=NONCE+OURS,s=SALT,i=ITERATIONS``
client  ``c=biws,r=NONCE+OURS,p=PROOF``
server  ``v=SIGNATURE``, by which the client sees that the server knows the user, too
======  ========================================================================================

The server keeps no password but a :class:`Verifier`, which does not suffice to log in.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable

from pymq.core.values import value
from pymq.errors import AuthenticationFailed

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 8192
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1 << 20
SALT_BYTES = 16
NONCE_BYTES = 18
_NO_BINDING = ("n", "y")  # the client does not bind the exchange to the TLS connection


@value
class Verifier:
    """What the server keeps of a password for one mechanism; keys as in RFC 5802, section 3."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        parts = (self.salt, self.stored_key, self.server_key)
        return ":".join((str(self.iterations), *(b64encode(part).decode() for part in parts)))

    @classmethod
    def parse(cls, text: str, mechanism: str) -> Verifier:
        """Return a verifier from its text.

        Raises:
            ValueError: the text is not a verifier for this mechanism.
        """
        count, *parts = text.split(":")
        salt, stored, server = (b64decode(part, validate=True) for part in parts)
        size = hashlib.new(HASHES[mechanism]).digest_size
        if not salt or len(stored) != size or len(server) != size:
            raise ValueError("a part has a wrong length")
        iterations = int(count)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"the iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        return cls(iterations, salt, stored, server)

    def fits(self, password: str, mechanism: str) -> bool:
        """Whether this is the verifier of *password*; takes some milliseconds."""
        made = make_verifier(password, mechanism, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


def make_verifier(
    password: str, mechanism: str, salt: bytes, iterations: int = ITERATIONS
) -> Verifier:
    """Return the verifier of a password; takes some milliseconds."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return Verifier(iterations, salt, stored_key, hmac.digest(salted, b"Server Key", name))


class ScramExchange:
    """The server's side of one exchange.

    *find* returns the verifier of a user; for an unknown user it returns one that no password fits,
    so that a client cannot find out which users exist.
    """

    def __init__(self, mechanism: str, find: Callable[[str], Verifier], nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._find = find
        self._nonce = nonce
        self._user = ""
        self._header = ""
        self._messages = ""  # those that the proof is about
        self._verifier: Verifier | None = None
        self.principal = ""  # the user, once the client has proved it

    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's next message.

        Raises:
            AuthenticationFailed: the message is malformed, or the proof is wrong.
        """
        try:
            text = token.decode()
            return self._first(text) if self._verifier is None else self._last(text)
        except (ValueError, Base64Error) as error:
            raise AuthenticationFailed(f"a malformed SCRAM message: {error}") from None

    def _first(self, text: str) -> bytes:
        binding, identity, bare = text.split(",", 2)
        if binding not in _NO_BINDING:
            raise AuthenticationFailed("channel binding is not supported")
        fields = _fields(bare)
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if identity and identity.removeprefix("a=") != fields["n"]:
            raise AuthenticationFailed("a user cannot act as another one")
        self._user, self._header = user, f"{binding},{identity},"
        self._verifier = found = self._find(user)
        self._nonce = fields["r"] + self._nonce
        answer = f"r={self._nonce},s={b64encode(found.salt).decode()},i={found.iterations}"
        self._messages = f"{bare},{answer}"
        return answer.encode()

    def _last(self, text: str) -> bytes:
        found = self._verifier
        assert found is not None
        without_proof = text.rpartition(",p=")[0]
        fields = _fields(text)
        signed = f"{self._messages},{without_proof}".encode()
        is_same = fields["r"] == self._nonce and b64decode(fields["c"]) == self._header.encode()
        proof = b64decode(fields["p"], validate=True)
        signature = hmac.digest(found.stored_key, signed, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(stored, found.stored_key) or not is_same:
            raise AuthenticationFailed("the user is unknown, or the password is wrong")
        self.principal = self._user
        return b"v=" + b64encode(hmac.digest(found.server_key, signed, self._hash))


def _fields(text: str) -> dict[str, str]:
    """Return the attributes of a message.

    Raises:
        ValueError: an attribute is missing or malformed.
    """
    found = dict(part.split("=", 1) for part in text.split(","))
    if "m" in found:
        raise ValueError("an extension that the client requires is unknown")
    wanted = ("r", "c", "p") if "p" in found else ("n", "r")
    if missing := [name for name in wanted if not found.get(name)]:
        raise ValueError(f"{missing[0]} is missing")
    return found
