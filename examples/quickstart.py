"""A queue in a folder: orders go in, two workers share them, an auditor reads them all.

If you run it twice, the orders of the first run are still there.
"""

from __future__ import annotations

import json
import sys
import threading

import pymq


def main(folder: str = "quickstart-data") -> None:
    """Send ten orders, let workers handle them, and read them once more."""
    with pymq.open(folder) as mq:
        mq.create_topic("orders", partitions=4, exist_ok=True)

        with mq.producer() as producer:
            for number in range(10):
                order = json.dumps({"number": number, "euros": 10 * number})
                producer.send("orders", order.encode(), key=f"customer-{number % 3}".encode())
        # Leaving the block waits until all records are written, and raises an error if one failed.

        # The workers share the orders: each order goes to one worker, again and again until
        # acknowledged.
        workers = [threading.Thread(target=work, args=(mq, name)) for name in ("ann", "bob")]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

        # A reader shares nothing: this consumer gets every order, from the beginning.
        with mq.consumer("orders", mode="psb", offset="begin") as auditor:
            total = sum(json.loads(record.value)["euros"] for record in auditor.until_end())
        print(f"all orders so far: {total} euros")


def work(mq: pymq.Client, name: str) -> None:
    """Handle orders until none is left."""
    with mq.consumer("orders", group="billing") as consumer:
        for record in consumer.until_end():
            print(f"{name} bills order {json.loads(record.value)['number']}")
            consumer.ack(record)


if __name__ == "__main__":
    main(*sys.argv[1:])
