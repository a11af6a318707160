"""The runs that find planted bugs soonest, for ``make test``.

A run is a hunt and a seed. The table has few runs, each with the bugs that it finds, since each run
must also be made once without a bug. To choose them anew (some ten minutes):

``python -m tests.testing.planted.soonest``

It tries the first seeds of each bug's hunts, and prints the table. A cost is a number of simulated
events, which depends on no machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.testing.planted import BUGS, HUNTS, attempt, is_clean

Run = tuple[str, int]  # the name of a hunt, and a seed

FINDS: dict[Run, str] = {
    ("calm", 0): """reply-of-another-request nobody-is-waited-for""",
    ("calm", 1): """delayed-at-once early-by-half-a-second mark-lost-in-a-cut leased-twice
    acks-lost keys-lent known-records-mixed-up leased-in-order dry-run-sends""",
    ("calm", 2): """routed-group-gets-all""",
    ("calm", 3): """returns-counted-once""",
    ("calm", 4): """route-without-its-bit route-drops-the-others share-begins-anew""",
    ("calm-3", 0): """sealed-too-short next-block-elsewhere commit-past-unacked
    believed-too-early answered-at-once answered-by-leader-alone
    answered-before-stable counts-what-was-sent answer-before-fsync
    reply-accepted-twice deadline-is-dropped""",
    ("calm-3", 2): """delay-of-a-return-ignored""",
    ("calm-3", 3): """served-before-revoked lease-expires-early leases-run-for-ever""",
    ("coordinator-3", 1): """epoch-not-raised""",
    ("coordinator-3", 6): """race-lost-unseen""",
    ("crash", 0): """members-never-gone disk-lies folder-not-synced synced-tail-cut""",
    ("crash", 1): """copies-not-read producers-forgotten checkpoint-first""",
    ("crash-3", 0): """cut-before-commit offsets-not-loaded oldest-offset-loaded load-stops-early
    holders-not-asked offsets-not-written isr-expands-early restarted-leader-leads
    votes-not-synced""",
    ("disk-3", 0): """sync-tried-again write-error-ignored""",
    ("fetch-network", 0): """shortest-copy-wins unclean-takeover isr-of-one isr-majority
    isr-shrinks-unasked""",
    ("fetch-network", 5): """cut-one-too-many""",
    ("hostile-3", 0): """other-batches-acknowledged produced-body-unchecked
    produced-form-unchecked""",
    ("kafka-1", 0): """kafka-answers-overtake kafka-base-offset-as-sent
    kafka-deletion-answered-early kafka-fenced-commit-accepted kafka-frame-split-wrongly
    kafka-leader-epoch-as-sent kafka-old-heartbeat-accepted kafka-old-news kafka-old-watermark
    kafka-rest-of-a-buffer-lost kafka-session-forgets""",
    ("kafka-1", 2): """kafka-sequence-unchecked kafka-session-epoch-ignored""",
    ("kafka-1", 4): """kafka-epoch-goes-on kafka-partition-of-two""",
    ("kafka-1", 5): """kafka-zombie-accepted""",
    ("kafka-1", 9): """kafka-moved-before-given-up kafka-stale-commit-accepted""",
    ("kafka-3", 0): """kafka-answered-by-leader-alone""",
    ("kafka-3", 3): """kafka-half-frame-stays kafka-start-goes-back""",
    ("kafka-3", 6): """kafka-share-any-partition kafka-share-leases-of-whole-batches""",
    ("kafka-narrow", 0): """kafka-full-for-ever kafka-reads-when-full""",
    ("network", 0): """nack-acknowledges repeats-written repeat-misplaced""",
    ("network-3", 0): """delays-of-returns-forgotten""",
    ("network-3", 4): """gaps-accepted repeat-answered-early""",
    ("raft-crash", 0): """no-noop""",
    ("rolls-3", 0): """parked-dropped parked-refused-twice epoch-kept-at-roll""",
    ("rolls-3", 1): """sealed-uncommitted removed-before-commit past-not-inherited
    past-left-to-holders""",
    ("wipe-3", 0): """wiped-broker-votes whole-too-early""",
}
SOONEST: dict[str, Run] = {name: run for run, names in FINDS.items() for name in names.split()}

SEEDS = 12  # seeds of each hunt that are tried
EVENTS = 60_000  # after a bug was found, so many events are spent on finding it by a shorter run
SHORT = 500  # a run that finds a bug after so few events is short enough


def search(name: str) -> dict[Run, int]:
    """Return runs that find a bug, with their events."""
    found: dict[Run, int] = {}
    events = 0
    for seed in range(SEEDS):
        for which in BUGS[name].hunts:
            result = attempt(name, which, seed)
            if result is not None and is_clean(which, seed):
                found[which, seed] = result.events
                events += result.events
        if found and (events > EVENTS or min(found.values()) < SHORT):
            break
    return found


def choose(
    finds: Mapping[str, Mapping[Run, int]], clean: Mapping[Run, int]
) -> dict[Run, list[str]]:
    """Choose runs that find all bugs with few events, those without a bug included.

    Takes the run with the fewest events for each bug that is not yet found, again and again
    (Chvatal, A greedy heuristic for the set-covering problem, 1979).
    """
    chosen: dict[Run, list[str]] = {}
    left = set(finds)
    while left:
        found = {
            run: [name for name in finds if name in left and run in finds[name]] for run in clean
        }

        def cost(run: Run, names: Mapping[Run, list[str]] = found) -> float:
            return (clean[run] + sum(finds[name][run] for name in names[run])) / len(names[run])

        best = min((run for run in clean if found[run]), key=cost)
        chosen[best] = found[best]
        left -= {*found[best]}
    return chosen


def main() -> None:
    """Print the table."""
    finds = {name: search(name) for name, bug in BUGS.items() if bug.hunts and not bug.is_slow}
    for name, found in finds.items():
        if not found:
            print(f"# {name}: not found")  # noqa: T201 # it is a program
    finds = {name: found for name, found in finds.items() if found}
    runs = {run for found in finds.values() for run in found}
    clean = {(which, seed): HUNTS[which].run(seed).events for which, seed in runs}
    for (which, seed), names in choose(finds, clean).items():
        print(f'    ("{which}", {seed}): """{" ".join(names)}""",')  # noqa: T201 # it is a program


if __name__ == "__main__":
    main()
