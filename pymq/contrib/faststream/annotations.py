"""Annotations for a handler's parameters, besides the message's value."""

from __future__ import annotations

from typing import Annotated

from faststream import Context, ContextRepo, Logger, NoCast

from pymq.aio import AsyncClient
from pymq.contrib.faststream import broker, messages

__all__ = ["Client", "ContextRepo", "Logger", "NoCast", "PymqBroker", "PymqMessage"]

Client = Annotated[AsyncClient, Context("broker.client")]
PymqBroker = Annotated[broker.PymqBroker, Context("broker")]
PymqMessage = Annotated[messages.PymqMessage, Context("message")]
