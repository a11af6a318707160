"""SaslHandshake and SaslAuthenticate: a client proves who it is (KIP-43, KIP-152)."""

from __future__ import annotations

from pymq.errors import AuthenticationFailed
from pymq.kafka.codes import Code
from pymq.kafka.security.sasl import TOKEN_BYTES_MAX
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Pause, Steps
from pymq.kafka.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

LOGIN = frozenset({17, 36})  # the keys of these two APIs
REFUSAL_MS = 500  # a wrong password is answered so late, so that guessing takes long


def handshake(context: GateContext, m: SaslHandshakeRequest, call: KafkaCall) -> Steps:
    """Begin an exchange by a mechanism that the client chooses."""
    sasl, caller = context.sasl, call.caller
    yield from ()
    if call.version == 0:  # not offered
        caller.is_refused = True
        return SaslHandshakeResponse(int(Code.UNSUPPORTED_VERSION), [])
    if sasl is None or caller.principal:
        return SaslHandshakeResponse(int(Code.ILLEGAL_SASL_STATE), [])
    caller.exchange = sasl.begin(m.mechanism)
    code = Code.NONE if caller.exchange is not None else Code.UNSUPPORTED_SASL_MECHANISM
    return SaslHandshakeResponse(int(code), list(sasl.mechanisms))


def authenticate(context: GateContext, m: SaslAuthenticateRequest, call: KafkaCall) -> Steps:
    """Take the client's next message of the exchange."""
    sasl, caller = context.sasl, call.caller
    exchange = caller.exchange
    if sasl is None or exchange is None:
        caller.is_refused = True
        why = "SaslHandshake comes first, once for each connection"
        return SaslAuthenticateResponse(int(Code.ILLEGAL_SASL_STATE), why)
    token = bytes(m.auth_bytes)
    try:
        if len(token) > TOKEN_BYTES_MAX:
            raise AuthenticationFailed(f"a message of {len(token)} bytes")
        answer = exchange.step(token)
    except AuthenticationFailed as error:
        caller.exchange, caller.is_refused = None, True
        sasl.refused += 1
        if caller.guard is not None:
            caller.guard.refuse("", caller.host)
        yield Pause(REFUSAL_MS)
        return SaslAuthenticateResponse(int(Code.SASL_AUTHENTICATION_FAILED), error.message)
    if exchange.principal:
        caller.principal, caller.exchange = exchange.principal, None
    return SaslAuthenticateResponse(0, None, answer)
