"""Read flights from a cluster as a member of a group, and print how late each carrier was.

Start this program several times with one group: the members share the partitions, and each flight
goes to one of them. The group does not deliver acknowledged flights again.

python examples/consume.py --url zmq+tcp://127.0.0.1:7878 --group delays
"""

import argparse
import json
from collections import Counter

import pymq


def main() -> None:
    """Consume the records that exist now, or consume forever."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--url", required=True, help="zmq+tcp://HOST:PORT of zkservers, or a folder"
    )
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--group", default="delays")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    parser.add_argument(
        "--curve-dir", help="folder of keys, if the cluster uses keys: see pymq keys"
    )
    parser.add_argument("--principal", help="the name of your key, if the folder has several")
    args = parser.parse_args()

    flights, minutes = Counter[str](), Counter[str]()
    with (
        pymq.open(args.url, curve_dir=args.curve_dir, principal=args.principal) as mq,
        mq.consumer(args.topic, group=args.group) as consumer,
    ):
        try:
            for record in consumer if args.follow else consumer.until_end():
                flight = json.loads(record.value)
                flights[flight["carrier"]] += 1
                minutes[flight["carrier"]] += flight["arr_delay"] or 0
                consumer.ack(record)
        except KeyboardInterrupt:
            pass
        consumer.commit()  # durable, on a majority
    for carrier, count in flights.most_common():
        print(f"{carrier}  {count:6d} flights  {minutes[carrier] / count:6.1f} minutes late")
    print(f"read {flights.total()} flights")


if __name__ == "__main__":
    main()
