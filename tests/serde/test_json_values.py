"""Values that survive JSON, values that JSON refuses, and the errors."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import ConfigError
from pymq.serde import Json


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    street: str
    city: NotRequired[str]


@dataclass
class Line:
    item: str
    price: decimal.Decimal
    tags: set[str] = field(default_factory=set)


@attrs.frozen
class Order:
    id: uuid.UUID
    lines: list[Line]
    at: datetime.datetime
    colour: Colour = Colour.RED
    note: str | None = None
    address: Address | None = None
    sizes: dict[str, float] = attrs.Factory(dict)
    corner: Point | None = None
    raw: bytes = b""
    pair: tuple[int, str] = (0, "")
    kind: Literal["new", "used"] = "new"
    day: datetime.date | None = None


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


Money = NewType("Money", int)

FITS_NOT = r"expected|missing"

ORDER = Order(
    uuid.UUID(int=7),
    [Line("teapot", decimal.Decimal("9.90"), {"blue"}), Line("cup", decimal.Decimal(1))],
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    Colour.BLUE,
    "fragile",
    {"street": "Main Street"},
    {"height": 1.5, "width": 2},
    Point(3, 4),
    b"\x00\xff",
    (7, "x"),
    "used",
    datetime.date(2026, 1, 2),
)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (Order, Order(uuid.UUID(int=1), [], datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))),
        (Tree, Tree("root", [Tree("leaf"), Tree("branch", [Tree("twig")])])),
        (Address, {"street": "a", "city": "b"}),
        (list[int], [1, 2, 3]),
        (tuple[int, ...], (1, 2)),
        (frozenset[str], frozenset({"a"})),
        (dict[str, list[bool]], {"a": [True, False]}),
        (int | str | None, None),
        (int | str | None, "x"),
        (Annotated[Money, "cents"], 5),
        (Any, {"anything": [1, None, "x", 2.5]}),
        (str, "\u00e9\U0001f600\n"),
        (datetime.time, datetime.time(1, 2, 3)),
    ],
)
def test_values_survive(kind: Any, value: object) -> None:
    codec = Json().codec(kind)
    data = codec.encode(value)
    json.loads(data)
    found = codec.decode(data)
    assert found == value
    assert type(found) is type(value)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_json_has_survives(value: object) -> None:
    codec = Json().codec(object)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        (Point, b'{"x": "1"}', "x: an integer is expected, not '1'"),
        (Point, b'{"x": true}', "x: an integer is expected, not 'True'"),
        (Point, b"{}", "x is missing"),
        (Point, b"[1]", "Point is expected, not '[1]'"),
        (Tree, b'{"name": "a", "children": [{"name": "b"}, {"name": 5}]}',
         "children[1].name: a text is expected, not '5'"),
        (Colour, b'"green"', "one of 'red', 'blue' is expected, not 'green'"),
        (bytes, b'"%"', "base64 is expected, not '%'"),
        (uuid.UUID, b'"7"', "a UUID is expected, not '7'"),
        (datetime.datetime, b'"soon"', "a date and time in ISO 8601 is expected, not 'soon'"),
        (tuple[int, int], b"[1]", "an array of 2 is expected, not '[1]'"),
        (dict[str, int], b'{"a": null}', "a: an integer is expected, not 'None'"),
        (float, b"1e999", "a number is expected, not 'inf'"),
        (Literal[1], b"true", "one of 1 is expected, not 'True'"),
        (int | None, b'"x"', "an integer is expected, not 'x'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(kind: Any, data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=FITS_NOT) as caught:
        Json().codec(kind).decode(data)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Point, (1, 2)),
        (Order, attrs.evolve(ORDER, note=cast(Any, 5))),
        (Order, "text"),
        (int, True),
        (float, float("nan")),
        (datetime.date, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        (Address, {"city": "b"}),
        (list[int], (1, 2)),
        (Colour, "red"),
        (dict[str, int], {1: 1}),
    ],
)
def test_what_is_sent_must_fit_too(kind: Any, value: object) -> None:
    with pytest.raises(ValueError, match=FITS_NOT):
        Json().codec(kind).encode(value)


def test_fields_may_come_and_go() -> None:
    """Unknown fields are ignored, and fields with a default may be missing."""
    codec = Json().codec(Point)
    assert codec.decode(b'{"x": 1, "z": 3}') == Point(1, 0)


@pytest.mark.parametrize("kind", [object.__init__, complex, dict[int, str], range, st.integers])
def test_types_without_a_form_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="JSON has no form"):
        Json().codec(kind)


def test_the_schema_depends_on_the_type_alone() -> None:
    one, other = Json().codec(Order).schema, Json().codec(Order).schema
    assert one == other
    assert one.fingerprint == other.fingerprint
    assert len(one.fingerprint) == 16
    assert one.fingerprint != Json().codec(Point).schema.fingerprint
    assert json.loads(one.text)["$defs"]["Line"]["required"] == ["item", "price"]
