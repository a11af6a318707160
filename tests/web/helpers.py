"""HTTP requests like those of a browser or a scraper, and an embedded queue with content."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pymq
from pymq import web

TOKEN = "a token for the tests alone"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(
    server: web.Server | str,
    path: str,
    method: str = "GET",
    *,
    token: str | None = TOKEN,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request, on a separate connection."""
    address = server if isinstance(server, str) else server.address
    connection = http.client.HTTPConnection(address.split("/")[2], timeout=60)
    sent = {"Authorization": f"Bearer {token}"} if token is not None else {}
    if body is not None:
        sent["Content-Type"] = "application/json"
    try:
        data = json.dumps(body) if body is not None else None
        connection.request(method, path, data, {**sent, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, text)
    finally:
        connection.close()


def bury(mq: pymq.Client, errors: Mapping[bytes, str]) -> None:
    """Make dead letters of the topic `jobs`: a record for each value, rejected with its error."""
    mq.create_topic("jobs", exist_ok=True)
    with mq.producer() as producer:
        producer.send_many("jobs", list(errors)).wait()
    with mq.consumer("jobs", group="workers") as consumer:
        for record in consumer.until_end():
            consumer.reject(record, errors[record.value])


def fill(mq: pymq.Client) -> None:
    """Make two topics, one of them with two blocks, and a group that lags behind."""
    mq.create_topic("orders", partitions=2)
    mq.create_topic("clicks")
    with mq.producer() as producer:
        producer.send_many("orders", [b'{"n": %d}' % n for n in range(100)], partition=0)
        producer.flush()
        mq.set_partition_state("orders", "0", "raft")
        producer.send("orders", b"\x00\xff", key=b"k", headers=[("trace", b"abc")], partition=0)
        producer.send("orders", b"x" * 5_000, partition=1)
    with mq.consumer("orders", group="billing") as consumer:
        consumer.ack(consumer.poll(max_records=10))
        consumer.commit()
