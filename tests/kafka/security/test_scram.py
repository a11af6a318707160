"""SCRAM, against the example of RFC 7677 and against wrong messages."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from pymq.errors import AuthenticationFailed
from pymq.kafka.security.scram import HASHES, ScramExchange, Verifier, make_verifier

SHA256 = "SCRAM-SHA-256"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
OURS = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
LAST = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)


def begin(mechanism: str = SHA256, password: str = "pencil") -> ScramExchange:
    verifier = make_verifier(password, mechanism, SALT, 4096)
    return ScramExchange(mechanism, lambda _: verifier, OURS)


def test_the_example_of_the_rfc() -> None:
    exchange = begin()
    assert exchange.step(FIRST) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert exchange.principal == ""
    assert exchange.step(LAST) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.principal == "user"


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_verifier_survives_its_text(mechanism: str) -> None:
    made = make_verifier("secret", mechanism, b"salt", 4096)
    again = Verifier.parse(str(made), mechanism)
    assert again == made
    assert again.fits("secret", mechanism)
    assert not again.fits("Secret", mechanism)
    assert "secret" not in str(made)


@pytest.mark.parametrize(
    "text", ["", "4096", "4096:a:b:c", "1:c2FsdA==:c2FsdA==:c2FsdA==", "4096:c2FsdA==:eA==:eA=="]
)
def test_a_malformed_verifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Verifier.parse(text, SHA256)


def changed(message: bytes, old: bytes, new: bytes) -> bytes:
    assert old in message
    return message.replace(old, new)


@pytest.mark.parametrize(
    "last",
    [
        changed(LAST, b"p=dHzb", b"p=eHzb"),  # another proof
        changed(LAST, b"c=biws", b"c=eSws"),  # another header than in the first message
        changed(LAST, b"k0,p=", b"k1,p="),  # another nonce
        changed(LAST, b"dVQ=", b""),
        changed(LAST, b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=eA=="),
        b"",
        b"c=biws",
        b"\xff\xfe",
        b"=,=,=",
    ],
)
def test_a_wrong_last_message_is_refused(last: bytes) -> None:
    exchange = begin()
    exchange.step(FIRST)
    with pytest.raises(AuthenticationFailed):
        exchange.step(last)
    assert exchange.principal == ""


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=x",
        b"n,,n=,r=x",
        b"n,a=other,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,,m=must,n=user,r=x",
        b"\x00\xff",
    ],
)
def test_a_wrong_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        begin().step(first)


def test_a_comma_in_a_name() -> None:
    asked = []

    def find(name: str) -> Verifier:
        asked.append(name)
        return make_verifier("x", SHA256, SALT, 4096)

    ScramExchange(SHA256, find, "ours").step(b"n,,n=a=2Cb=3Dc,r=theirs")
    assert asked == ["a,b=c"]


def test_a_wrong_password_is_refused() -> None:
    exchange = begin(password="pen")
    exchange.step(FIRST)
    with pytest.raises(AuthenticationFailed, match="unknown, or the password is wrong"):
        exchange.step(LAST)


def test_a_proof_of_the_wrong_length_is_refused() -> None:
    exchange = begin()
    exchange.step(FIRST)
    with pytest.raises(AuthenticationFailed):
        exchange.step(LAST.rpartition(b"p=")[0] + b"p=" + b64encode(bytes(31)))
