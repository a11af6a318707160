"""The page in a real browser: it shows the cluster, executes no shown text, and can be operated.

Without Chromium these tests are skipped, and the run's summary says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import pytest

import pymq
from pymq import web
from pymq.core.metadata.descriptions import TopicDescription
from pymq.web import letters, views
from pymq.web.app import WebApp
from pymq.web.authentication import Authentication, OneToken
from pymq.web.snapshots import ClusterSnapshot, ClusterSnapshots
from tests.web.browser import Browser, Page, find
from tests.web.helpers import TOKEN, bury

CHROMIUM = find()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium: install one, or name it with PYMQ_CHROMIUM; the page is NOT tested",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def server(mq: pymq.Client) -> Iterator[web.Server]:
    with web.serve(mq, token=TOKEN.replace(" ", "-"), writable=True) as serving:
        yield serving


@pytest.fixture
def page(browser: Browser, server: web.Server) -> Page:
    opened = browser.page(server.url)
    opened.wait("document.querySelector('table')")
    return opened


def go(page: Page, where: str, until: str) -> None:
    page.run(f"location.hash = {where!r}")
    page.wait(f"document.body.innerText.includes({until!r})")


@pytest.mark.slow
def test_the_token_goes_no_further_than_the_first_request(page: Page, server: web.Server) -> None:
    assert page.run("location.href") == f"{server.address}#/"
    assert page.run("document.cookie") == ""
    page.open(server.address)
    page.wait("document.querySelector('table')")
    page.run(
        "[...document.querySelectorAll('button')].find((b) => b.innerText === 'Leave').click()"
    )
    page.wait("document.querySelector('input[type=password]')")
    assert "orders" not in page.text()
    page.run(
        "document.querySelector('input[type=password]').value = "
        f"{TOKEN.replace(' ', '-')!r}; document.querySelector('form button').click()"
    )
    page.wait("document.body.innerText.includes('orders')")
    assert [text for text in page.complaints() if "401" not in text] == []


def test_it_shows_what_there_is(page: Page) -> None:
    text = page.text()
    for wanted in ("broker, alive", "orders", "clicks", "billing", "broker-0", "live"):
        assert wanted in text
    go(page, "#/topic/orders", "Partition 1")
    kinds = page.run("[...document.querySelectorAll('.copy')].map((e) => e.getAttribute('class'))")
    in_timeline = [kind for kind in kinds if kind in ("copy leader whole", "copy raft whole open")]
    assert in_timeline.count("copy raft whole open") == 2  # one of them is in the legend
    go(page, "#/records/orders/0/95", "Records 95 to 100")
    assert '{"n": 99}' in page.text()
    assert "00 ff" in page.text()
    go(page, "#/group/billing", "generation")
    assert "91" in page.text()
    assert page.complaints() == []


@pytest.mark.slow
def test_it_says_what_its_sums_cover(browser: Browser) -> None:
    """With more than 200 topics the page says how many topics the sums cover, until they cover
    all.
    """
    with pymq.open("memory:") as mq:
        for number in range(450):
            mq.create_topic(f"t{number:03}")
        with mq.producer() as producer:
            producer.send_many("t449", [b"x" * 10_000] * 30).wait()
        with web.serve(mq, token=TOKEN.replace(" ", "-")) as server:
            page = browser.page(server.url)
            page.wait("document.body.innerText.includes('Sums of 300 of 450 topics')")
            assert "250 more topics, by name" in page.text()
            page.wait("document.body.innerText.includes('Sums of all 450 topics')")
            page.wait("!document.body.innerText.includes('Sums of')")
            brokers = "document.querySelector('table[aria-label=Brokers]').innerText"
            assert page.run(f"{brokers}.includes('450') && {brokers}.includes('KiB')")
            assert page.complaints() == []


@pytest.mark.slow
def test_it_lives(page: Page, mq: pymq.Client) -> None:
    """Changes appear without a reload, and the focused element keeps the focus."""
    page.run("window.mark = document.querySelector('input[type=search]'); mark.focus()")
    mq.create_topic("appeared")
    page.wait("document.body.innerText.includes('appeared')")
    assert page.run("document.activeElement === window.mark && mark.isConnected")
    go(page, "#/topic/clicks", "Partition 0")
    page.wait("document.body.innerText.includes('blocks 1')")
    page.run("window.card = document.querySelector('section.card')")
    with mq.producer() as producer:
        producer.send_many("clicks", [b"x"] * 1234).wait()
    page.wait("document.body.innerText.includes('1,234')")
    assert page.run("window.card.isConnected")


@pytest.mark.slow
def test_a_timeline_is_read_with_the_keyboard(page: Page) -> None:
    go(page, "#/topic/orders", "Partition 1")
    page.run("document.querySelector('.column[tabindex=\"0\"]').focus()")
    said = "document.querySelector('.said').innerText"
    page.wait(f"{said}.includes('Open block: offsets 100 to 101')")
    page.press("ArrowLeft")
    page.wait(f"{said}.includes('offsets 0 to 100') && {said}.includes('led by broker-0')")
    label = page.run("document.activeElement.getAttribute('aria-label')")
    assert label == page.run(said)
    page.press("ArrowLeft")  # The first block has no previous one.
    assert page.run("document.activeElement.getAttribute('aria-label')") == label


@pytest.mark.slow
def test_a_group_is_shown_with_what_it_has_not_begun(page: Page, mq: pymq.Client) -> None:
    """An added partition is shown before any of its records was consumed."""
    go(page, "#/group/billing", "generation")
    assert "nothing was consumed" not in page.text()
    mq.create_partition("orders", "new")
    page.wait("document.body.innerText.includes('nothing was consumed of it yet')")
    row = "document.querySelector('[data-key=\"orders/new\"]').innerText.split(/\\s+/)"
    assert page.run(row) == ["orders", "new", *"\u2013" * 5]
    page.run("document.querySelector('[data-key=\"orders/new\"] a[href*=records]').click()")
    page.wait("document.body.innerText.includes('There is no record here')")
    assert page.complaints() == []


@pytest.mark.slow
def test_a_way_through_a_group_and_its_records(page: Page, mq: pymq.Client) -> None:
    """A user clicks through the list of groups, one group and its partition's records, and back."""

    def click(selector: str, until: str) -> None:
        page.wait(f"document.querySelector({selector!r})")
        page.run(f"document.querySelector({selector!r}).click()")
        page.wait(f"document.body.innerText.includes({until!r})")

    def press(name: str, until: str) -> None:
        page.run(
            "[...document.querySelectorAll('form button')]"
            f".find((b) => b.innerText.includes({name!r})).click()"
        )
        page.wait(f"document.body.innerText.includes({until!r})")

    click("nav a[href='#/groups']", "To redeliver")
    click("a[href='#/group/billing']", "generation")
    click("[data-key='orders/0'] a[href*=records]", "Records 10 to 59")
    press("Older", "Records 0 to 49")
    press("Newer", "Records 50 to 99")
    press("First", "Records 0 to 49")
    press("Last", "Records 51 to 100")
    with mq.producer() as producer:  # The last page of records grows while it is shown.
        producer.send("orders", b"while you look", partition=0).result()
    page.wait("document.querySelector('.records').innerText.includes('while you look')")
    assert page.complaints() == []


@pytest.mark.slow
def test_names_and_roles_are_there_for_those_who_do_not_see(page: Page) -> None:
    for where, until in (
        ("#/", "Throughput"),
        ("#/topic/orders", "Partition 1"),
        ("#/records/orders/0/95", "Records 95"),
        ("#/group/billing", "generation"),
    ):
        go(page, where, until)
        nameless = page.run(
            """[...document.querySelectorAll('a, button, input, select, textarea, [role=img]')]
            .filter((e) => !(e.textContent || e.ariaLabel || e.getAttribute('aria-label')
                             || e.labels?.length || e.alt)).map((e) => e.outerHTML)"""
        )
        assert nameless == []
        assert page.run("document.querySelectorAll('h1').length") == 1
        assert page.run("document.querySelectorAll('main, header, nav').length") == 3
        heads = page.run("[...document.querySelectorAll('thead th')].every((e) => e.scope)")
        assert heads


@pytest.mark.slow
@pytest.mark.parametrize("is_dark", [False, True])
def test_all_text_stands_out(page: Page, is_dark: bool) -> None:
    """All text has a contrast of at least 4.5 to 1 (WCAG 2.1), in both colour schemes."""
    page.dark(is_dark)
    for where, until in (("#/", "Throughput"), ("#/topic/orders", "Partition 1")):
        go(page, where, until)
        faint = page.run(CONTRAST)
        assert faint == []


CONTRAST = """(() => {
  const parts = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const back = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('svg, option') || e.disabled || !e.getClientRects().length) continue;
    if (e.closest('.skip')) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(back(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push([e.innerText, contrast]);
  }
  return faint;
})()"""


@pytest.mark.slow
def test_nothing_sticks_out_of_a_phone(page: Page) -> None:
    """On a phone the page is as wide as the screen; wider elements scroll separately."""
    page.resize(360, 740, is_phone=True)
    for where, until in (
        ("#/", "Throughput"),
        ("#/topic/orders", "Partition 1"),
        ("#/records/orders/0/95", "Records 95"),
        ("#/group/billing", "generation"),
        ("#/groups", "billing"),
    ):
        go(page, where, until)
        assert page.run("document.documentElement.scrollWidth") <= 360, where


@pytest.mark.slow
def test_nothing_jumps_when_it_is_brought_up_to_date(page: Page, mq: pymq.Client) -> None:
    page.run(
        """window.shift = 0; new PerformanceObserver((list) => {
        for (const e of list.getEntries()) window.shift += e.value;
        }).observe({ type: 'layout-shift', buffered: false })"""
    )
    with mq.producer() as producer:
        for number in (10, 5_000, 70_000):
            producer.send_many("clicks", [b"x"] * number).wait()
            total = {10: "10", 5_000: "5,010", 70_000: "75,010"}[number]
            page.wait(
                f"document.querySelector('table[aria-label=Topics]').innerText.includes('{total}')"
            )
    assert page.run("window.shift") < 0.02


@pytest.mark.slow
def test_it_changes_what_it_may(page: Page, mq: pymq.Client) -> None:
    """A user changes topics through the page's forms."""
    page.run(
        """(() => { const f = [...document.querySelectorAll('details')]
        .find((d) => d.innerText.includes('Create a topic')); f.open = true;
        f.querySelector('[name=topic]').value = 'by-hand';
        f.querySelector('button').click(); })()"""
    )
    page.wait("document.querySelector('table[aria-label=Topics]').innerText.includes('by-hand')")
    page.run(
        """[...document.querySelectorAll('details')]
        .find((d) => d.innerText.includes('Create a topic')).querySelector('button').click()"""
    )
    refused = "document.getElementById('status').innerText.includes('exists already')"
    page.wait(refused)
    mq.create_topic("meanwhile")
    page.wait("document.body.innerText.includes('meanwhile')")
    assert page.run(refused)  # the message stays while the page is updated
    go(page, "#/records/by-hand/0", "There is no record here")
    page.run(
        """(() => { const f = [...document.querySelectorAll('details')]
        .find((d) => d.innerText.includes('Send a record')); f.open = true;
        f.querySelector('[name=value]').value = 'hello'; f.querySelector('button').click(); })()"""
    )
    page.wait("document.querySelector('.records')?.innerText.includes('hello')")
    with mq.consumer("by-hand", mode="psb") as consumer:
        assert [record.value for record in consumer.until_end()] == [b"hello"]


@pytest.mark.slow
def test_dead_letters_are_sent_back(
    page: Page, mq: pymq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user finds a topic's letters, chooses by error, counts them and sends them back."""
    monkeypatch.setattr(letters, "STEP", 2)  # the page needs several requests
    errors = {b"%d" % n: f"no {'price' if n % 3 else 'stock'} <b>{n}</b>" for n in range(9)}
    bury(mq, errors)

    def press(name: str, until: str) -> None:
        page.run(
            "[...document.querySelectorAll('form button')]"
            f".find((b) => b.innerText.includes({name!r})).click()"
        )
        page.wait(f"document.body.innerText.includes({until!r})")

    page.wait("document.querySelector('a[href=\"#/letters/jobs.dlq\"]')")
    go(page, "#/topic/jobs", "Dead letters in jobs.dlq")
    page.run("document.querySelector('a[href=\"#/letters/jobs.dlq\"]').click()")
    page.wait("document.body.innerText.includes('9 letters, not sent back')")
    assert "no stock <b>3</b>" in page.text()
    assert "jobs/0/3" in page.text()
    page.run("document.querySelector('input[name=error]').value = 'price'")
    press("Show", "\n6 letters\n")
    press("Dry run", "6 letters would be sent back, 3 letters would stay.")
    press("Send 6 letters back", "6 letters sent back, 3 letters stayed.")
    page.wait("document.body.innerText.includes('3 letters, not sent back')")
    assert "There is no such letter." in page.text()
    with mq.consumer("jobs", mode="psb", offset=9) as consumer:
        found = [int(record.value) for record in consumer.until_end()]
    assert found == [1, 2, 4, 5, 7, 8]
    page.run("document.querySelector('input[name=error]').value = ''")
    press("Show", "\n3 letters\n")
    press("Dry run", "3 letters would be sent back")
    page.run("document.querySelector('input[name=rate]').value = '5'")
    began = time.monotonic()
    press("Send 3 letters back", "3 letters sent back.")
    assert time.monotonic() - began > 0.4  # two of the three, and then the third
    assert page.complaints() == []


@pytest.mark.slow
def test_it_says_when_nobody_answers(browser: Browser, mq: pymq.Client) -> None:
    server = web.serve(mq, token="t" * 20)
    try:
        opened = browser.page(server.url)
        opened.wait("document.body.innerText.includes('orders')")
        server.close()
        opened.wait("document.getElementById('status').innerText.includes('does not answer')")
        assert "orders" in opened.text()
        assert "not up to date" in opened.text()
    finally:
        server.close()


class DeadDesk(ClusterSnapshot):
    """Reports that the only broker is dead."""

    def state(self) -> dict[str, Any]:
        state = super().state()
        for broker in state["cluster"]["brokers"]:
            broker["alive"] = False
        return state


@pytest.mark.slow
def test_what_lies_on_a_dead_broker_is_told_apart(browser: Browser, mq: pymq.Client) -> None:
    """Partitions on a dead broker are marked by colour and in words."""
    app = WebApp(Authentication(None), mq.metrics, desks=OneDesk(DeadDesk(mq)))
    with web.Server("127.0.0.1:0", app) as server:
        page = browser.page(server.address)
        page.wait("document.body.innerText.includes('brokers, 1 dead')")
        go(page, "#/topic/orders", "Partition 1")
        assert page.run("document.querySelectorAll('.timeline .copy:not(.away)').length") == 0
        assert page.run("document.querySelectorAll('.who.away').length") == 2
        label = page.run("document.querySelector('.column').getAttribute('aria-label')")
        assert "on broker-0 (dead)" in label
        assert page.complaints() == []


class HolderlessDesk(ClusterSnapshot):
    """Reports that a sealed block has no holder."""

    def _topics(self, names: Iterable[str]) -> tuple[list[TopicDescription], list[str]]:
        found, hidden = super()._topics(names)
        return [without_holders(topic) for topic in found], hidden

    def topic(self, name: str) -> dict[str, Any]:
        return views.topic(without_holders(self.client.describe_topic(name)))


def without_holders(topic: TopicDescription) -> TopicDescription:
    parts = [
        attrs.evolve(part, blocks=tuple(attrs.evolve(block, in_sync=()) for block in part.blocks))
        for part in topic.partitions
    ]
    return attrs.evolve(topic, partitions=tuple(parts))


@pytest.mark.slow
def test_what_nobody_can_read_is_told(browser: Browser, mq: pymq.Client) -> None:
    """The page reports lost records even if their partition has a leader, is in sync and is
    writable.
    """
    app = WebApp(Authentication(None), mq.metrics, desks=OneDesk(HolderlessDesk(mq)))
    with web.Server("127.0.0.1:0", app) as server:
        page = browser.page(server.address)
        page.wait("document.body.innerText.includes('1 partly unreadable')")
        go(page, "#/topic/orders", "Partition 1")
        said = "100 records in 1 block from offset 0 on cannot be read: no living broker holds them"
        assert page.run("[...document.querySelectorAll('.problem')].map((p) => p.innerText)") == [
            said
        ]
        assert page.complaints() == []


EVIL = (
    "<img src=x onerror=window.pwned=1><script>window.pwned=2</script>"
    '"\' onfocus=window.pwned=3 autofocus x="javascript:window.pwned=4'
)


class EvilDesk(ClusterSnapshot):
    """A cluster whose names, keys and values all contain attacks."""

    def state(self) -> dict[str, Any]:
        return poisoned(super().state())

    def topic(self, name: str) -> dict[str, Any]:
        return poisoned(super().topic("orders"))

    def group(self, name: str) -> dict[str, Any]:
        return poisoned(super().group("billing"))

    def letters(self, query: object) -> dict[str, Any]:
        return poisoned(super().letters({"name": "jobs.dlq"}))

    def records(self, query: object) -> dict[str, Any]:
        return poisoned(super().records({"topic": "orders", "partition": "0", "offset": "95"}))


class OneDesk(ClusterSnapshots):
    def __init__(self, desk: ClusterSnapshot) -> None:
        super().__init__(lambda principal: desk.client, is_ours=False)
        self._desk = desk

    def of(self, principal: str) -> ClusterSnapshot:
        return self._desk


def poisoned(found: dict[str, Any]) -> dict[str, Any]:
    return {name: _poisoned(each) for name, each in found.items()} | {
        EVIL + name: _poisoned(each) for name, each in found.items() if name == "block_bytes"
    }


def _poisoned(found: Any) -> Any:
    if isinstance(found, dict):
        return poisoned(found)
    if isinstance(found, list):
        return [_poisoned(each) for each in found]
    return EVIL + found if isinstance(found, str) else found


def test_nothing_that_is_shown_is_obeyed(browser: Browser, mq: pymq.Client) -> None:
    """Names, keys, values, headers and errors are shown as text, and none of them is executed."""
    with mq.producer() as producer:
        evil = EVIL.encode()
        producer.send("orders", evil, key=evil, headers=[("h", evil)], partition=0).result()
    bury(mq, {evil: EVIL})
    app = WebApp(
        Authentication(OneToken("t" * 20)),
        mq.metrics,
        desks=OneDesk(EvilDesk(mq)),
        writable=True,
        title=EVIL,
    )
    with web.Server("127.0.0.1:0", app, token="t" * 20) as server:
        page = browser.page(server.url)
        page.wait("document.querySelector('table')")
        clean = page.run("document.querySelectorAll('script, img').length")
        for view in ("", "topic/x", "records/x/0", "group/x", "groups", "letters/x", "nothing"):
            where = f"#/{view}"
            page.run(f"location.hash = {where!r}")
            page.wait("document.body.innerText.includes('onerror')")
            page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            page.run("document.querySelector('.column')?.focus()")
            page.run(
                "new Promise((done) => setTimeout(done, 300))"
            )  # an injected element would have failed to load by then
            assert page.run("window.pwned") is None
            assert page.run("document.querySelectorAll('script, img').length") == clean
            assert (
                page.run("document.querySelectorAll('[onerror], [onfocus], [autofocus]').length")
                == 0
            )
            links = page.run(
                "[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))"
            )
            assert [link for link in links if not link.startswith("#")] == []
        assert page.complaints() == []
        # The policy also forbids scripts and links that were injected into the page.
        page.run(
            "try { document.body.innerHTML = '<b>x</b>' } catch (e) { window.stopped = e.name }"
        )
        assert page.run("window.stopped") == "TypeError"
