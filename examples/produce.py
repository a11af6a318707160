"""Send the flights that left New York in 2013 to a cluster, each to a majority of the brokers.

python examples/produce.py --url zmq+tcp://127.0.0.1:7878
"""

import argparse
import sys
import time

import pymq
from pymq.cli.commands.demo.flights import data_folder, read_flights


def main() -> None:
    """Create the topic if it is missing, send records, and print how long that took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--url", required=True, help="zmq+tcp://HOST:PORT of zkservers, or a folder"
    )
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--acks", default="raft", help="raft (-1), leader (1) or none (0)")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--limit", type=int, help="no more than so many")
    parser.add_argument(
        "--curve-dir", help="folder of keys, if the cluster uses keys: see pymq keys"
    )
    parser.add_argument("--principal", help="the name of your key, if the folder has several")
    args = parser.parse_args()

    with pymq.open(args.url, curve_dir=args.curve_dir, principal=args.principal) as mq:
        try:
            mq.create_topic(
                args.topic, args.partitions, args.replicas, args.acks, exist_ok=True, fsync="always"
            )
        except pymq.errors.NotEnoughBrokers as error:
            sys.exit(f"{error}, as with --replicas 1")
        flights = read_flights(data_folder())[: args.limit]
        began = time.perf_counter()
        with mq.producer() as producer:
            for flight in flights:  # All flights of an aircraft keep their order.
                key = flight.tail.encode() if flight.tail else None
                producer.send(args.topic, flight.to_json(), key=key)
        # Leaving the block waits for every acknowledgement, and raises an error if a record failed.
        seconds = time.perf_counter() - began
    print(f"sent {len(flights)} flights in {seconds:.1f} s")


if __name__ == "__main__":
    main()
