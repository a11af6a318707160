"""Changes a PostgreSQL table, and captures the changes in processes that die one after the other.

``python -m tests.table.capturing DSN QUEUE SEED STEP...``: before each process the script commits
some transactions; SIGKILL ends the process at a step, before or after a call of Python or C that
the example makes. The last process ends by itself.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from types import FrameType

import psycopg

from examples import postgres_cdc

STATEMENTS = {
    "insert": "INSERT INTO items VALUES (%(shop)s, %(id)s, %(name)s, %(price)s, %(note)s, false) "
    "ON CONFLICT (shop, id) DO UPDATE SET name = excluded.name",
    "update": "UPDATE items SET price = %(price)s, sold = true WHERE id = %(id)s",
    "rename": "UPDATE items SET id = id + 100 WHERE id = %(id)s AND shop = %(shop)s",
    "null": "UPDATE items SET name = NULL WHERE id = %(id)s",
    "delete": "DELETE FROM items WHERE id = %(id)s AND shop = %(shop)s",
}


def change(dsn: str, rng: random.Random, transactions: int) -> None:
    """Change the table at random; some transactions are rolled back."""
    with psycopg.connect(dsn) as database:
        for _ in range(transactions):
            for _ in range(rng.randrange(1, 6)):
                kind = rng.choice([*STATEMENTS, "insert"])
                number = rng.randrange(1 << 30)
                values = {
                    "shop": rng.choice("ab"),
                    "id": rng.randrange(8),
                    "name": f"größe '{number}'",
                    "price": number / 7,
                    # larger than the values that PostgreSQL stores inside the row
                    "note": "".join(rng.choices("abcdefghij", k=rng.choice([0, 5000]))),
                }
                with database.transaction() as inner:
                    try:
                        database.execute(STATEMENTS[kind], values)
                    except psycopg.errors.UniqueViolation:
                        raise psycopg.Rollback(inner) from None
            database.rollback() if rng.random() < 0.2 else database.commit()


def capture(dsn: str, queue: str, table: str, step: int | None) -> bool:
    """Capture changes in a separate process that dies at *step*; return whether it died."""
    child = os.fork()
    if not child:
        status = 1
        try:
            steps = 0

            def count(frame: FrameType, event: str, arg: object) -> None:
                """Die before or after a call of Python or C that the example makes."""
                nonlocal steps
                if frame.f_code.co_filename == postgres_cdc.__file__:
                    if steps == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    steps += 1

            sys.argv = ["postgres_cdc", dsn, table, "--url", queue, "--once"]
            if step is not None:
                sys.setprofile(count)
            status = postgres_cdc.main()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.setprofile(None)
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def main() -> None:
    dsn, queue, seed, *steps = sys.argv[1:]
    rng = random.Random(int(seed))
    # The slot is made before the first change.
    assert not capture(dsn, queue, "items", None)
    killed = 0
    for step in map(int, steps):
        change(dsn, rng, 4)
        killed += capture(dsn, queue, "items", step)
    change(dsn, rng, 4)
    assert not capture(dsn, queue, "items", None)
    sys.stdout.write(f"{killed}\n")


if __name__ == "__main__":
    main()
