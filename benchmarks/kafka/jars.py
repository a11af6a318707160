"""``python -m benchmarks.kafka.jars``: fetch the jars of Kafka and of Spark's Kafka connector.

Neither is on Python's package index. Maven's central repository has them, and pyspark brings a
client of it, Ivy, so that Java 17 is all that has to be installed (decision 190). Behind a proxy,
Java takes its settings from ``JAVA_TOOL_OPTIONS``.

Each set of jars is pinned: its versions are below, and the file beside this module names the
SHA-256 of each jar. The jars go to the user's cache folder, outside of the source tree. Only this
command downloads; the benchmarks use what is there, and report a side whose jars are missing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600


class Jars(NamedTuple):
    """A pinned set of jars."""

    name: str
    version: str
    modules: tuple[tuple[str, str, str], ...]  # organisation, module, version
    is_transitive: bool  # whether the modules' own dependencies belong to it

    @property
    def pins(self) -> Path:
        """The file of names and SHA-256, in the format of ``sha256sum``."""
        return HERE / f"{self.name}.sha256"

    @property
    def folder(self) -> Path:
        """Where the jars are, if they have been fetched."""
        return cache() / f"{self.name}-{self.version}"


KAFKA = Jars(
    "kafka",
    "4.4.0",
    (
        ("org.apache.kafka", "kafka_2.13", "4.4.0"),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.5"),  # else it logs nothing
    ),
    is_transitive=True,
)
# There is no connector of Spark 4.3 yet; 4.2's runs with pyspark 4.3. It brings Kafka's client
# 3.9.2. The rest of its dependencies is among pyspark's jars.
CONNECTOR = Jars(
    "spark-kafka",
    "4.2.0",
    (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.2.0"),
        ("org.apache.kafka", "kafka-clients", "3.9.2"),
        ("org.apache.commons", "commons-pool2", "2.13.1"),
    ),
    is_transitive=False,
)
ALL = {each.name: each for each in (KAFKA, CONNECTOR)}


class FetchFailed(Exception):
    """The jars could not be fetched, or differ from the pinned ones; the message says how."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch all jars that are not there; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fetch the jars of Kafka for the benchmarks.")
    parser.add_argument(
        "--pin", action="store_true", help="fetch again, and write down the checksums found"
    )
    is_pinning = parser.parse_args(arguments).pin
    try:
        for jars in ALL.values():
            if is_pinning or missing(jars.name):
                fetch(jars, is_pinning=is_pinning)
                print(f"{jars.name} {jars.version} is in {jars.folder}")
    except FetchFailed as error:
        print(f"no Kafka to measure beside pymq: {error}", file=sys.stderr)
        return 1
    return 0


def cache() -> Path:
    """Return the folder for fetched jars, below the user's cache folder (XDG)."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pymq-bench"


def paths(name: str) -> list[Path]:
    """Return the paths of a set's jars, whether or not they have been fetched."""
    jars = ALL[name]
    return [jars.folder / file for file in read_pins(jars.pins)]


def missing(name: str) -> str | None:
    """Return what is missing of a set of jars; None if it is complete."""
    if all(path.is_file() for path in paths(name)):
        return None
    return f"the jars of {name} {ALL[name].version}, which `make kafka` fetches"


def read_pins(file: Path) -> dict[str, str]:
    """Return the SHA-256 of each jar by its file name."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {name: digest for digest, name in lines}


def fetch(jars: Jars, *, is_pinning: bool = False) -> None:
    """Fetch a set of jars, compare it with its pins, and put it into its folder.

    Raises:
        FetchFailed: Java, pyspark or the network is missing, or a jar is not the pinned one.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache()) as name:
        found = Path(name) / "jars"
        found.mkdir()
        _retrieve(jars, Path(name), found)
        digests = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(found.glob("*.jar"))
        }
        if is_pinning:
            lines = [f"{digest}  {file}\n" for file, digest in digests.items()]
            jars.pins.write_text("".join(lines), encoding="ascii")
        check(digests, read_pins(jars.pins))
        shutil.rmtree(jars.folder, ignore_errors=True)
        found.rename(jars.folder)


def check(found: Mapping[str, str], pins: Mapping[str, str]) -> None:
    """Compare the digests of jars with the pinned ones.

    Raises:
        FetchFailed: a jar is missing, is not pinned, or has other bytes.
    """
    wrong = [f"{name} is missing" for name in pins.keys() - found.keys()]
    wrong += [f"{name} is not pinned" for name in found.keys() - pins.keys()]
    wrong += [
        f"{name} has SHA-256 {found[name]}, not {pins[name]}"
        for name in found.keys() & pins.keys()
        if found[name] != pins[name]
    ]
    if wrong:
        raise FetchFailed("; ".join(sorted(wrong)))


def _retrieve(jars: Jars, work: Path, out: Path) -> None:
    """Run Ivy, which resolves the modules, compares its downloads with the repository's checksums,
    and copies the jars to *out*.
    """
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise FetchFailed("pyspark, which brings Ivy, is not installed")
    if shutil.which("java") is None:
        raise FetchFailed("there is no java: Kafka needs Java 17 (openjdk-17-jre)")
    (ivy,) = (Path(spark.origin).parent / "jars").glob("ivy-*.jar")
    module = work / "ivy.xml"
    module.write_text(_module(jars), encoding="ascii")
    command = ["java", "-jar", str(ivy), "-warn", "-cache", str(work / "cache")]
    command += ["-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{out}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchFailed(f"Ivy took more than {TIMEOUT_S} s") from None
    if done.returncode:
        raise FetchFailed(f"Ivy failed: {(done.stdout + done.stderr)[-2000:]}")


def _module(jars: Jars) -> str:
    """Return a description of the modules for Ivy; *default* is what a program needs to run."""
    follow = str(jars.is_transitive).lower()
    dependencies = "".join(
        f'<dependency org="{org}" name="{name}" rev="{rev}" conf="default->default"'
        f' transitive="{follow}"/>\n'
        for org, name, rev in jars.modules
    )
    return (
        '<ivy-module version="2.0"><info organisation="pymq" module="bench"/>\n'
        '<configurations><conf name="default"/></configurations>\n'
        f"<dependencies>\n{dependencies}</dependencies></ivy-module>\n"
    )


if __name__ == "__main__":
    sys.exit(main())
