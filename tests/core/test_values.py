"""Classes made by `define` and `value` equal those of attrs, but are completed on first use."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref
from typing import ClassVar

import attrs
import pytest

from pymq.core.values import Factory, define, field, value


@value
class Base:
    """A value with a default."""

    kind: ClassVar[str] = "base"

    name: str
    size: int = 3

    def told(self) -> str:
        return f"{self.kind} {self.name} {self.size}"


@value
class More(Base):
    """Additional fields, one of which replaces a field of the base class."""

    tags: list[str] = Factory(list)
    size: int = 4

    def told(self) -> str:
        return f"more {super().told()}"


@define
class Alive:
    """A class that changes."""

    _hidden: int
    shown: str = field(default="-", alias="seen")
    count: int = 0

    @property
    def hidden(self) -> int:
        return self._hidden

    def __attrs_post_init__(self) -> None:
        self.count += 1


def fresh() -> type[Base]:
    """Return a class that was never used."""

    @value
    class Fresh:
        name: str
        size: int = 3

    return Fresh  # type: ignore[return-value]  # it has the same fields


def test_a_class_is_finished_when_it_is_first_used() -> None:
    untouched, used = fresh(), fresh()
    assert used("a").size == 3
    assert inspect.isfunction(vars(used)["__init__"])
    assert not inspect.isfunction(vars(untouched)["__init__"])


def test_whoever_looks_at_the_fields_first_sees_them_all() -> None:
    assert [(f.name, f.default) for f in attrs.fields(fresh())] == [
        ("name", attrs.NOTHING),
        ("size", 3),
    ]
    assert str(inspect.signature(fresh())) == "(name: 'str', size: 'int' = 3) -> None"
    assert attrs.has(fresh())
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        fresh()()  # type: ignore[call-arg]  # that is what is tested


def test_a_value_is_compared_shown_and_matched_by_its_fields() -> None:
    assert fresh()("a") != Base("a") == Base("a", 3) != Base("b")
    assert len({Base("a"), Base("a"), Base("b")}) == 2
    assert repr(More("a", ["t"])) == "More(name='a', tags=['t'], size=4)"
    match More("a", ["t"], 5):
        case More(name, tags, size):
            assert (name, tags, size) == ("a", ["t"], 5)
    assert attrs.evolve(Base("a"), size=9) == Base("a", 9)
    assert attrs.asdict(Base("a")) == {"name": "a", "size": 3}


def test_a_class_inherits_and_calls_its_base() -> None:
    one, two = More("a"), More("b")
    assert one.told() == "more base a 4"
    assert one.tags == []
    assert one.tags is not two.tags
    assert isinstance(one, Base)


def test_classes_have_slots_and_can_be_referred_to_weakly() -> None:
    for made in (Base("a"), More("a"), Alive(1)):
        assert not hasattr(made, "__dict__")
        assert weakref.ref(made)() is made


def test_what_lives_is_equal_to_itself_alone() -> None:
    one = Alive(7, seen="x")
    assert (one.hidden, one.shown, one.count) == (7, "x", 1)
    assert one == one  # noqa: PLR0124 -- this is what is claimed
    assert one != Alive(7, seen="x")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda v: pickle.loads(dumped(v))])
def test_values_can_be_copied_and_pickled(copied: type) -> None:
    for one in (Base("a", 1), More("a", ["t"])):
        assert copied(one) == one


def dumped(one: object) -> bytes:
    return pickle.dumps(one)
