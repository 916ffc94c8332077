"""Records that wait to be sent: in order, counted, and none after the last word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lynxq.stream.control import ControlQueue
from lynxq.stream.records import Record, Type

STEPS = st.one_of(
    st.tuples(st.sampled_from(["add", "replace"]), st.integers(1, 99), st.integers(0, 1)),
    st.tuples(st.sampled_from(["take", "take_all", "close", "reopen", "clear"]), st.just(0), st.integers(0, 1)),
)


@given(st.lists(STEPS, max_size=30))
def test_it_is_two_lists_and_counts_their_bytes(steps):
    queue, lists, closed = ControlQueue(), ([], []), False
    for step, number, lane in steps:
        record = Record(Type.CANCEL, request=number)
        if step == "add":
            queue.add(record, lane)
            lists[lane].extend([] if closed else [record.pack()])
        elif step == "replace":
            queue.replace(record)
            lists = ([record.pack()], [])
        elif step == "take":
            assert queue.take(lane) == (lists[lane].pop(0) if lists[lane] else None)
        elif step == "take_all":
            assert queue.take_all(lane) == b"".join(lists[lane])
            lists[lane].clear()
        else:
            getattr(queue, step)()
            closed = {"close": True, "reopen": False}.get(step, closed)
            lists = ([], []) if step == "clear" else lists
        assert queue.size == sum(map(len, lists[0] + lists[1]))
        assert [queue.waits(0), queue.waits(1)] == [bool(lists[0]), bool(lists[1])]
