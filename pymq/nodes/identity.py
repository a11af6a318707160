"""The identity of a broker: the id of its disk, and the number of its start."""

from __future__ import annotations

import os
from pathlib import Path

from pymq.core import cbor
from pymq.core.values import value
from pymq.errors import ConfigError, CorruptMetadata, InvalidRequest, StoreError
from pymq.nodes.clocks import wall_ms

FILE = "broker.cbor"
VERSION = 1


@value
class Identity:
    """The data by which the controller distinguishes brokers of the same name."""

    name: str
    storage_id: str  # id of the disk; a replaced disk has a different one
    incarnation: int  # rises with each start


def fresh_identity(name: str) -> Identity:
    """Return the identity of a broker in memory."""
    return Identity(name, os.urandom(8).hex(), wall_ms())


def next_identity(folder: Path, name: str) -> Identity:
    """Return the identity of a broker that starts with *folder*, which must be locked.

    Raises:
        ConfigError: the folder belongs to a broker of another name.
        CorruptMetadata: the identity file is damaged.
        StoreError: the identity file cannot be read or written.
    """
    path = folder / FILE
    try:
        before = _read(path)
        if before is not None and before.name != name:
            raise ConfigError(f"{folder} belongs to {before.name}, not to {name}")
        storage_id = before.storage_id if before is not None else os.urandom(8).hex()
        # The incarnation is at least the clock, so that it rises even if the folder was restored
        # from a backup.
        incarnation = max(before.incarnation + 1 if before is not None else 0, wall_ms())
        made = Identity(name, storage_id, incarnation)
        _write(path, made)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"cannot write {path}: {error}") from error
    return made


def _read(path: Path) -> Identity | None:
    if not path.exists():
        return None
    try:
        match cbor.loads(path.read_bytes()):
            case {"v": 1, "name": str(name), "storage_id": str(found), "incarnation": int(number)}:
                return Identity(name, found, number)
            case _:
                pass
    except InvalidRequest:
        pass
    raise CorruptMetadata(
        f"{path} is damaged, so the owner of the blocks beside it is unknown. "
        "Restore it, or move the folder away: the broker then starts with a new, empty disk"
    )


def _write(path: Path, identity: Identity) -> None:
    data = cbor.dumps(
        {
            "v": VERSION,
            "name": identity.name,
            "storage_id": identity.storage_id,
            "incarnation": identity.incarnation,
        }
    )
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
