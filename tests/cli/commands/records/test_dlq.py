"""``pymq dlq``: how an administrator handles dead letters."""

from __future__ import annotations

from tests.cli.conftest import Queue


def bury(queue: Queue, topic: str, *errors: str) -> str:
    """Let a group reject records with these errors; returns the dead-letter topic."""
    queue.run("topic", "create", topic)
    queue.put(topic, range(len(errors)))
    with queue.open() as mq, mq.consumer(topic, group=f"{topic}.g", max_deliver=1) as consumer:
        left = len(errors)
        while left:
            for record in consumer.poll(timeout=1):
                consumer.nack(record, error=errors[record.offset])
                left -= 1
        while mq.describe_group(f"{topic}.g").lag[topic, "0"]:
            consumer.poll(timeout=0.05)
            consumer.commit()
    return f"{topic}.dlq"


def values(queue: Queue, topic: str) -> list[bytes]:
    with queue.open() as mq, mq.consumer(topic, mode="reader") as consumer:
        return [record.value for record in consumer.until_end()]


def test_letters_are_listed_shown_and_sent_back(queue: Queue, topic: str) -> None:
    letters = bury(queue, topic, "no price", "no stock", "no price")
    rows = queue.run("dlq", "list", letters).rows
    assert rows[-1] == [letters, "3", "2", "x", "no", "price"]
    (found,) = queue.json("dlq", "list", letters)["topics"]
    assert found == {"topic": letters, "letters": 3, "errors": {"no price": 2, "no stock": 1}}
    shown = queue.run("dlq", "show", letters, "--error", "stock").out
    fields = dict(line.split(None, 1) for line in shown.splitlines()[1:])
    assert fields["from"] == f"{topic}/0 offset 1"
    assert fields["group"] == f"{topic}.g"
    assert fields["error"] == "no stock"
    assert fields["value"] == "1"
    dry = queue.run("dlq", "redrive", letters, "--error", "price", "--dry-run").out
    assert dry == "2 letters would be sent back, 1 letter would stay\n"
    done = queue.run("dlq", "redrive", letters, "--error", "price", "--rate", 1000).out
    assert done == "2 letters are sent back, 1 letter stays\n"
    assert values(queue, topic) == [b"0", b"1", b"2", b"0", b"2"]
    assert queue.json("dlq", "redrive", letters)["sent_back"] == 1
    assert queue.run("dlq", "show", letters).out == "there is no such letter\n"
    assert queue.run("dlq", "list", letters).rows[-1] == [letters, "0", "-"]


def test_so_many_letters_are_sent_back_at_a_time(queue: Queue, topic: str) -> None:
    letters = bury(queue, topic, "a", "b", "c")
    assert queue.json("dlq", "redrive", letters, "--max", 2)["sent_back"] == 2
    assert queue.json("dlq", "redrive", letters, "--max", 2)["sent_back"] == 1
    assert queue.call("dlq", "redrive", letters, "--max", 0).code == 2


def test_letters_are_purged_on_demand_only(queue: Queue, topic: str) -> None:
    letters = bury(queue, topic, "a", "b")
    told = queue.run("dlq", "purge", letters, "--error", "a").out
    assert told == "1 letter would be purged: --yes does it\n"
    assert queue.run("dlq", "purge", letters, "--error", "a", "--yes").out == "1 letter purged\n"
    assert queue.json("dlq", "redrive", letters)["sent_back"] == 1
    assert values(queue, topic) == [b"0", b"1", b"1"]


def test_letters_are_chosen(queue: Queue, topic: str) -> None:
    letters = f"{topic}.dlq"
    queue.run("topic", "create", letters)
    with queue.open() as mq, mq.producer() as producer:
        for number, name in enumerate((b"t", b"u")):
            headers = [("pymq.topic", name), ("pymq.group", b"g")]
            producer.send(letters, b"", key=b"k%d" % number, headers=headers, timestamp_ms=number)
    for chosen, count in (
        ((), 2),
        (("--from", "u"), 1),
        (("--key", "k1"), 1),
        (("--group", "g"), 2),
        (("--group", "other"), 0),
        (("--newer", "1h"), 0),
        (("--key", "k1", "--from", "t"), 0),
    ):
        found = queue.json("dlq", "show", letters, *chosen)["letters"]
        assert len(found) == count, chosen
    assert "and 1 letter more" in queue.run("dlq", "show", letters, "--max", 1).out


def test_what_cannot_be_done(queue: Queue, topic: str) -> None:
    assert queue.fails("dlq", "redrive", f"{topic}.dlq")["code"] == "UNKNOWN_TOPIC"
    letters = bury(queue, topic, "x")
    assert queue.fails("dlq", "redrive", letters, "--to", "nowhere")["code"] == "UNKNOWN_TOPIC"
    assert queue.call("dlq", "show", letters, "--newer", "soon").code == 2
    assert queue.call("dlq", "show", letters, "--max", 0).code == 2
    assert queue.call("dlq", "redrive", letters, "--rate", 0).code == 2


def test_a_queue_without_letters(queue: Queue) -> None:
    if queue.url.startswith("zmq"):
        return  # The topic contains letters of other tests.
    assert "no topic ends with .dlq" in queue.run("dlq", "list").out


def test_letters_of_a_topic_with_another_name(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    with queue.open() as mq, mq.producer() as producer:
        producer.send(topic, b"x", headers=[("pymq.error", b"\x1b[31mred")]).result(30)
    shown = queue.run("dlq", "show", topic).out
    assert "\x1b" not in shown  # Other users choose the text of a header.
    assert "from        unknown/unknown offset unknown" in shown
