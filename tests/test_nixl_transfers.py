"""Transfers over NIXL, over a network of our own in one process."""

from __future__ import annotations

import functools
import queue
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq.errors import IncompleteError, SourceFailedError
from lynxq.stream import ContainerSource, Delivered, Done, EncodedSource, ResidualPage, ResidualReady, Source
from lynxq.stream.nixl.messages import Notice
from lynxq.stream.nixl.places import Place, slices
from tests.nixl_network import FakeAgent, Network, check_events, drive, pair, same, tensors


@given(
    st.integers(1, 5000),
    st.integers(1, 4),
    st.integers(0, 1000),
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_what_arrives_is_what_was_sent(slice_bytes, window, seed, requests):
    """Whatever the slices, and whatever order the network finishes them in."""
    rng = np.random.default_rng(seed)
    network, sender, receiver = pair(
        Network(lambda count: int(rng.integers(count))), slice_bytes=slice_bytes, window=window
    )
    given_, numbers = [], []
    for index, lengths in enumerate(requests):
        given_.append(tensors(seed + index, [(length, 2, 8) for length in lengths]))
        number, ticket = receiver.open(sender.offer(EncodedSource(given_[-1], metadata={"n": str(index)})))
        assert sender.accept(ticket) == index + 1
        numbers.append(number)
    sent, got = drive(network, sender, receiver)
    assert sorted(sent, key=lambda event: event.request) == [Delivered(index + 1) for index in range(len(requests))]
    for index, (number, encoded) in enumerate(zip(numbers, given_, strict=True)):
        received = receiver.received(number)
        assert received.metadata == {"n": str(index)}
        for name, each in encoded.items():
            same(received.encoded(name), each)
        check_events([event for event in got if event.request == number], encoded)
    assert all(not agent.memory for agent in network.agents.values())  # nothing stays registered
    last = (
        max(index for index, (notice, _) in enumerate(network.log) if notice.stream == "anchor") if network.log else -1
    )
    assert all(notice.stream == "anchor" for notice, _ in network.log[: last + 1])  # of all requests


def test_no_residual_is_written_while_an_anchor_is_under_way():
    """Also not for a request that comes while residuals of another one are being written."""
    network, sender, receiver = pair(slice_bytes=1, window=3)
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    while not any(notice.stream == "residual" for notice, _ in network.log):
        sender.poll()
        network.step()
    late = sender.accept(receiver.open(sender.offer(EncodedSource(tensors(1))))[1])
    begun = len(network.log)
    drive(network, sender, receiver)
    of_late = [index for index, (notice, _) in enumerate(network.log) if notice.stream == "anchor" and index >= begun]
    assert late == 2
    # Residuals that were under way end; no other is begun before the last anchor.
    assert of_late == list(range(begun, begun + len(of_late)))
    assert all(waiting == 0 for notice, waiting in network.log if notice.stream == "residual")


def test_requests_take_turns():
    network, sender, receiver = pair(slice_bytes=1, window=1)
    for seed in range(2):
        sender.accept(receiver.open(sender.offer(EncodedSource(tensors(seed))))[1])
    drive(network, sender, receiver)
    anchors = [notice.request for notice, _ in network.log if notice.stream == "anchor"]
    assert anchors == [1, 2] * (len(anchors) // 2)


def test_anchors_alone():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)), tier="anchor")
    sender.accept(ticket)
    _, got = drive(network, sender, receiver)
    assert not any(isinstance(event, ResidualPage | ResidualReady) for event in got)
    assert got[-1] == Done(number, 0)
    for name, each in encoded.items():
        same(receiver.received(number).encoded(name, "anchor"), each.anchor_only())
        with pytest.raises(IncompleteError):
            receiver.received(number).encoded(name)


def test_a_container_is_sent_as_it_is(tmp_path):
    encoded = tensors()
    lynxq.save(tmp_path / "kv.lynx", encoded, metadata={"model": "toy"})
    network, sender, receiver = pair()
    with lynxq.open(tmp_path / "kv.lynx") as reader:
        number, ticket = receiver.open(sender.offer(ContainerSource(reader)))
    sender.accept(ticket)
    drive(network, sender, receiver)
    received = receiver.received(number)
    lynxq.save(tmp_path / "again.lynx", {name: received.encoded(name) for name in encoded}, metadata=received.metadata)
    assert (tmp_path / "again.lynx").read_bytes() == (tmp_path / "kv.lynx").read_bytes()


def test_residuals_that_come_first_wait_for_anchors():
    encoded = tensors()
    network, sender, receiver = pair(slice_bytes=1)
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)
    held = network.agents["decode"]
    early = []
    for _ in range(100):
        assert sender.poll() == []
        network.step()
        early += held.notices()
    held.inbox = sorted(early, key=lambda each: Notice.unpack(each[1]).stream, reverse=True)
    half = held.inbox[: len(held.inbox) * 3 // 4]
    rest, held.inbox = held.inbox[len(half) :], half
    first = receiver.poll()
    assert not any(isinstance(event, ResidualPage) for event in first)
    held.inbox = rest
    check_events(first + receiver.poll(), encoded)
    assert number == 1


def test_a_source_whose_frames_do_not_exist_yet():
    class Later(Source):
        header = EncodedSource(tensors()).header

        def frame(self, stream, tensor, page):
            return None

    with pytest.raises(SourceFailedError):
        pair()[1].offer(Later())


def test_slices_are_whole_frames():
    frames = [Place(0, 10, 0, 0), Place(10, 20, 0, 1), Place(20, 50, 1, 0), Place(50, 55, 1, 1)]
    assert list(slices(frames, 20)) == [(0, 20), (20, 50), (50, 55)]
    assert list(slices(frames, 1)) == [(0, 10), (10, 20), (20, 50), (50, 55)]
    assert list(slices(frames, 1000)) == [(0, 55)]
    assert list(slices([], 10)) == []


def test_the_example_of_the_documentation(monkeypatch):
    """Its two sides, each in a thread of its own, over our network."""
    page = (Path(__file__).parents[1] / "docs" / "integrations" / "nixl.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    network, encoded = Network(by_itself=True), tensors()
    for side, name in ((lynxq.stream.nixl.sender, "prefill"), (lynxq.stream.nixl.receiver, "decode")):
        monkeypatch.setattr(side, "NixlAgent", functools.partial(FakeAgent, network, name))
    there, back = queue.Queue(), queue.Queue()
    names = [
        {"tensors": encoded, "send": there.put, "receive": back.get, "print": str},
        {"send": back.put, "receive": there.get},
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(exec, blocks, names))
    assert set(names[1]["cache"]) == set(encoded)
    for name, each in encoded.items():
        assert np.array_equal(names[1]["cache"][name], lynxq.decode_full(each))
