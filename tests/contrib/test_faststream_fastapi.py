"""FastStream in a FastAPI application: the package faststream_fastapi takes any broker."""

from __future__ import annotations

from typing import Annotated

import pytest

pytest.importorskip("faststream_fastapi")
pytest.importorskip("httpx2")

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from faststream_fastapi import FastStreamAPI
from pydantic import BaseModel

from tests.contrib.faststream_apps import SECONDS, make


class Order(BaseModel):
    item: str
    cups: int = 1


def shop() -> str:
    return "north"


def test_in_a_fastapi_application() -> None:
    """The application starts and stops the broker, and its handlers can use FastAPI's
    dependencies.
    """
    broker, api = make(), FastAPI()
    seen: list[tuple[str, str]] = []

    @broker.subscriber("orders")
    async def bill(order: Order, where: Annotated[str, Depends(shop)]) -> float:
        seen.append((order.item, where))
        return order.cups * 9.9

    @api.post("/orders")
    async def buy(order: Order) -> float:
        reply = await broker.request(order, "orders", timeout=SECONDS)
        return float(await reply.decode() or 0)

    application = FastStreamAPI(broker, application=api, asyncapi_path="/asyncapi")
    with TestClient(application) as client:
        answer = client.post("/orders", json={"item": "tea", "cups": 2})
        assert (answer.status_code, answer.json()) == (200, 19.8)
        assert seen == [("tea", "north")]
        assert "orders:Bill" in client.get("/asyncapi").text
    assert not broker.running
