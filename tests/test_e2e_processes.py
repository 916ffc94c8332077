"""The demonstration with two real processes and a tiny random model: what comes of it, and what if one of them dies.

Those that start processes again take long: they run where LYNXQ_SLOW_TESTS is set.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lynxq import calibrate, synthetic
from lynxq.cli import app
from lynxq.e2e import Job, Outcome, Session
from lynxq.errors import ParamsError, ShapeError, WorkerError
from tests import tiny_model

PROMPT = 700
LIMIT = 240  # seconds for anything that must not hang

slow = pytest.mark.skipif(not os.environ.get("LYNXQ_SLOW_TESTS"), reason="starts processes again: LYNXQ_SLOW_TESTS=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model.save(tmp_path_factory.mktemp("model"))


class Lab:
    """A session on a loop of its own, and what its processes told."""

    def __init__(self, folder):
        self.messages = []
        self.runner = asyncio.Runner()
        self.session = Session(str(folder), watcher=self.messages.append)
        self.do(self.session.__aenter__())
        ids = np.random.default_rng(1).integers(0, tiny_model.VOCABULARY, PROMPT).tolist()
        self.do(self.session.prefill(ids))

    def do(self, awaitable):
        async def within():
            async with asyncio.timeout(LIMIT):
                return await awaitable

        return self.runner.run(within())

    def run(self, method, *, when=None, then=None, **options):
        """A run; as soon as `when` holds for a progress message, `then` is called."""
        self.messages.clear()
        job = Job(**{"method": method, "prompt_tokens": PROMPT, "new_tokens": 24, "cap": 24, **options})

        async def both():
            task = asyncio.create_task(self.session.run(job))
            done = when is None
            while not task.done():
                last = next((m for m in reversed(self.messages) if m["kind"] == "progress"), None)
                if not done and last is not None and when(last):
                    then()
                    done = True
                await asyncio.sleep(0.005)
            assert done, "the run was over before what was waited for"
            return await task

        return self.do(both())

    def kill(self, name, number=signal.SIGKILL):
        os.kill(self.session.pid(name), number)

    def close(self):
        self.do(self.session.close())
        self.runner.close()


@pytest.fixture(scope="module")
def processes(folder):
    made = Lab(folder)
    yield made
    made.close()


def some_anchors(message):
    return 0 < message["anchor"][0] < message["anchor"][1]


def all_anchors(message):
    return 0 < message["anchor"][0] == message["anchor"][1]


def some_residual(message):
    return message["drafted"] >= 1 and message["residual"][0] < message["residual"][1]


# --- what comes of it ----------------------------------------------------------------------------------


def test_all_transfers_come_to_their_tokens(processes):
    # 4 layers of 2 heads of 16 channels: 358 KB in BF16
    outcomes = {}
    for method in ("bf16", "int8", "int8-token", "int4", "kivi4", "lynx", "lynx-encoded"):
        outcome = outcomes[method] = processes.run(method, rate=400e3)
        assert outcome.error is None
        assert len(outcome.tokens) == 24
        assert outcome.first_drafted <= outcome.first_final == outcome.final_at[0]
        assert outcome.final_at == sorted(outcome.final_at)
        assert outcome.text.startswith("w")
    elements = 2 * 4 * 2 * 16 * (PROMPT - 1)
    bits = {name: 8 * (o.anchor_bytes + o.residual_bytes) / elements for name, o in outcomes.items()}
    assert 16 <= bits["bf16"] < 16.1
    assert 8 <= bits["int8"] < 8.1
    assert bits["int4"] < bits["kivi4"] < bits["int8-token"]
    lynx = outcomes["lynx"]
    assert lynx.anchor_bytes == outcomes["lynx-encoded"].anchor_bytes
    assert lynx.residual_bytes == outcomes["lynx-encoded"].residual_bytes
    assert lynx.same_as_full is True or lynx.tie
    assert lynx.rounding < 1e-3
    assert 1 <= lynx.drafted <= 24
    assert lynx.passes["verify"] == 1
    assert 0 <= lynx.kept <= lynx.proposed
    after = lynx.passes.get("step", 0) + lynx.passes.get("lookup", 0)
    assert lynx.accepted + 1 + after + lynx.kept == max(24, lynx.accepted + 1)
    assert outcomes["int8"].passes == {"step": 24}
    assert lynx.anchor_at < lynx.residual_at
    assert {(s.actor, s.what) for s in lynx.spans} >= {
        ("prefill", "encode"), ("link", "anchor"), ("link", "residual"), ("decode", "fill anchor"),
        ("decode", "fill residual"), ("decode", "draft"), ("decode", "verify"),
    }  # fmt: skip
    assert all(o.drafted == 0 and o.same_as_full is None for name, o in outcomes.items() if not name.startswith("lynx"))
    for outcome in outcomes.values():
        assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_sampled_runs_are_replayed_token_by_token(processes):
    outcome = processes.run("lynx", temperature=0.8, seed=3, rate=400e3)
    assert outcome.same_as_full is True
    again = processes.run("lynx", temperature=0.8, seed=4, rate=400e3)
    assert again.same_as_full is True
    assert again.tokens != outcome.tokens


def test_progress_shows_both_streams_and_the_tokens(processes):
    processes.run("lynx", rate=400e3)
    progress = [m for m in processes.messages if m["kind"] == "progress"]
    assert progress[-1]["final"] >= 24
    assert progress[-1]["anchor"][0] == progress[-1]["anchor"][1] > 0
    assert progress[-1]["residual"][0] == progress[-1]["residual"][1] > 0
    assert any(m["residual"][0] < m["residual"][1] and m["drafted"] for m in progress)
    assert progress[-1]["final_text"].startswith("w")


# --- faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [some_anchors, some_residual])
def test_a_run_is_cancelled(processes, when):
    outcome = processes.run("lynx", rate=40e3, when=when, then=processes.session.cancel)
    assert outcome.cancelled
    assert not outcome.complete
    assert outcome.error is None
    assert outcome.tokens == []
    assert processes.run("lynx").error is None


@pytest.mark.parametrize("when", [some_anchors, some_residual])
def test_the_link_stalls(processes, when):
    try:
        begin = time.monotonic()
        outcome = processes.run(
            "lynx", rate=40e3, residual_timeout=2.0, when=when,
            then=lambda: processes.kill("prefill", signal.SIGSTOP),
        )  # fmt: skip
        assert time.monotonic() - begin < LIMIT / 2
    finally:
        processes.kill("prefill", signal.SIGCONT)
    assert "will not arrive: nothing has arrived for 2 s" in outcome.error
    assert outcome.tokens == []


@slow
def test_prefill_dies_while_anchors_are_sent(processes):
    outcome = processes.run(
        "lynx", rate=40e3, allow_approximate=True, when=some_anchors, then=lambda: processes.kill("prefill")
    )
    assert "will not arrive" in outcome.error
    assert outcome.tokens == outcome.draft == []
    assert not outcome.approximate
    assert processes.run("lynx").error is None  # it is started again, and computes the cache again


@slow
def test_prefill_dies_while_the_residual_is_sent(processes):
    outcome = processes.run("lynx", rate=40e3, when=some_residual, then=lambda: processes.kill("prefill"))
    assert "the residual of layer" in outcome.error
    assert outcome.drafted >= 1
    assert outcome.tokens == []  # nothing that was drafted is ever called final
    assert outcome.first_final is None


@slow
@pytest.mark.parametrize("when", [some_anchors, all_anchors, some_residual])
def test_decode_dies(processes, when):
    outcome = processes.run("lynx", rate=40e3, when=when, then=lambda: processes.kill("decode"))
    assert "the decode process ended with code -9" in outcome.error
    assert outcome.tokens == []
    assert processes.run("int8").error is None


@slow
def test_a_run_that_takes_too_long_is_ended(processes):
    job = Job(method="bf16", prompt_tokens=PROMPT, rate=1e3)
    outcome = processes.do(processes.session.run(job, timeout=1.0))
    assert "had not ended after 1 s" in outcome.error
    assert processes.run("int8").error is None


@slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_a_prefill_process_that_answers_no_more_is_ended_and_the_next_run_starts_it_again(processes):
    os.kill(processes.session.pid("prefill"), signal.SIGSTOP)
    job = Job(method="bf16", prompt_tokens=PROMPT)
    outcome = processes.do(processes.session.run(job, timeout=1.0))
    assert "had not ended after 1 s" in outcome.error
    assert processes.run("int8").error is None


def test_a_prompt_that_cannot_be_prefilled_is_not_mixed_with_the_one_before(processes):
    ids, session = list(processes.session._ids), processes.session
    with pytest.raises(ParamsError, match="a token must be an integer"):
        processes.do(session.prefill("abc"))
    assert processes.run("int8", check=False).error is None  # refused before anything changed
    with pytest.raises(WorkerError, match="prefill process: IndexError"):
        processes.do(session.prefill([*ids[::-1][:20], tiny_model.VOCABULARY, 0]))
    outcome = processes.run("int8", prompt_tokens=10)
    assert "prefill process: IndexError" in outcome.error
    assert outcome.tokens == []
    processes.do(session.prefill(np.array(ids)))  # any integers
    assert processes.run("int8").error is None


def test_a_session_that_was_not_entered_or_is_closed_starts_no_process(folder):
    session = Session(str(folder))

    async def refused():
        for awaitable in (session.prefill([1, 2]), session.tokens("a"), session.costs(1), session.kill("decode")):
            with pytest.raises(WorkerError):
                await awaitable
        with pytest.raises(WorkerError, match="no process 'decode'"):
            session.pid("decode")
        session.cancel()

    asyncio.run(refused())
    assert not session._children


def test_more_tokens_than_there_are_is_refused(processes):
    with pytest.raises(WorkerError, match="has 700 tokens, 701 are wanted"):
        processes.run("lynx", prompt_tokens=701)


def test_the_runs_of_a_session_come_one_after_another(processes):
    """Two at once would mix what their processes tell."""

    async def both():
        jobs = [Job(method=name, prompt_tokens=40, new_tokens=4) for name in ("int8", "bf16")]
        return await asyncio.gather(*map(processes.session.run, jobs), return_exceptions=True)

    first, second = processes.do(both())
    assert first.error is None
    assert len(first.tokens) == 4
    assert isinstance(second, WorkerError)
    assert "one after another" in str(second)
    assert processes.run("int8", prompt_tokens=40, new_tokens=4, cap=4).tokens == first.tokens


def test_more_tokens_than_the_model_has_positions_are_refused_and_what_was_prefilled_stays(processes):
    with pytest.raises(ShapeError, match="has 2048 positions, got 700 tokens and 1349 after them, which is 2049"):
        processes.run("lynx", new_tokens=1349)
    with pytest.raises(ShapeError, match="has 2048 positions, got 2049 tokens"):
        processes.do(processes.session.prefill([0] * 2049))
    assert processes.run("int8").error is None


@slow
def test_a_prompt_and_its_tokens_may_take_every_position(folder):
    async def all_of_them():
        async with asyncio.timeout(LIMIT), Session(str(folder)) as session:
            await session.prefill([1] * 2040)
            return [await session.run(Job(method=m, prompt_tokens=2040, new_tokens=8)) for m in ("lynx", "int8")]

    for outcome in asyncio.run(all_of_them()):
        assert outcome.error is None
        assert len(outcome.tokens) == 8


@slow
def test_the_command_line_refuses_a_long_prompt_before_it_is_read(folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w3", encoding="utf-8")
    arguments = ["e2e", "--model", str(folder), "--text", str(text), "--tokens", "2000", "--new", "49"]
    result = CliRunner().invoke(app, arguments)
    assert str(result.exception) == "the model has 2048 positions, got 2000 tokens and 49 after them, which is 2049"


def test_the_caller_may_accept_the_anchor(processes):  # the last one: prefill is dead then
    outcome = processes.run(
        "lynx", rate=40e3, allow_approximate=True, when=some_residual, then=lambda: processes.kill("prefill")
    )
    assert outcome.error is None
    assert outcome.approximate is True
    assert len(outcome.tokens) == 24
    assert outcome.same_as_full is None


@slow
def test_a_model_that_is_not_there_is_an_error_and_no_process_stays(tmp_path):
    session = Session(str(tmp_path / "nothing"))

    async def start():
        async with asyncio.timeout(LIMIT), session:
            pass

    with pytest.raises(WorkerError, match="process ended with code"):
        asyncio.run(start())
    children = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text(encoding="utf-8").split()]
    names = [Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8") for pid in pids]
    assert not any("lynxq.e2e" in name and str(tmp_path) in name for name in names)


@slow
def test_processes_end_when_the_one_who_started_them_does(folder):
    code = f"""
import asyncio, os
from lynxq.e2e import Session
async def main():
    session = Session({str(folder)!r})
    await session.__aenter__()
    print(session.pid("prefill"), session.pid("decode"), flush=True)
    os._exit(1)
asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pids = [int(word) for word in result.stdout.split()]
    assert len(pids) == 2
    end = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)


# --- the command line ------------------------------------------------------------------------------------


@slow
@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_line(folder, tmp_path, as_json):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{n}" for n in np.random.default_rng(2).integers(0, 128, 300)), encoding="utf-8")
    result = CliRunner().invoke(
        app,
        ["e2e", "--model", str(folder), "--text", str(text), "--tokens", "280", "--new", "8", "--rate", "0.2",
         "--methods", "bf16,lynx", "--plot", str(tmp_path / "r.png"), *(["--json"] if as_json else [])],
        catch_exceptions=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    if not as_json:
        assert "8 final" in result.stdout
        return
    rows = json.loads(result.stdout)
    assert [row["job"]["method"] for row in rows] == ["bf16", "lynx"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "lynx,zip"], "a transfer must be one of"),
        (["--methods", "lynx,int8, lynx"], "lynx is named more than once"),
        (["--methods", "lynx,,int8"], "--methods must be names with commas between them"),
        (["--methods", ","], "--methods must be names with commas between them"),
        (["--plot", "there.png"], "pass --force to replace it"),
        (["--plot", "nowhere/r.png"], "nowhere is not a folder"),
        (["--plot", "r.bogus"], "bogus"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_the_command_line_refuses_before_it_loads_a_model(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.png").write_text("kept", encoding="utf-8")
    monkeypatch.setattr("lynxq.e2e.Session", None)
    result = CliRunner().invoke(app, ["e2e", *options])
    assert message in str(result.exception)
    assert Path("there.png").read_text(encoding="utf-8") == "kept"


class Asked:
    """A session that runs nothing, and says which jobs it was given."""

    def __init__(self, *_, **__):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def check_length(self, *_):
        pass

    async def tokens(self, _):
        return list(range(16))

    async def prefill(self, _):
        pass

    async def costs(self, _):
        return {"step": 0.1}

    async def run(self, job):
        return Outcome(job=job)


@pytest.mark.parametrize(
    ("named", "expected"),
    [("int8,lynx", ["int8", "lynx", "lynx-calibrated"]), ("lynx-calibrated,int8", ["lynx-calibrated", "int8"])],
)
def test_a_calibration_is_one_more_method(named, expected, tmp_path, monkeypatch):
    found = calibrate(synthetic.cache(256, 1, 16), token_axis=0)
    (tmp_path / "params.json").write_text(found.to_json(), encoding="utf-8")
    monkeypatch.setattr("lynxq.e2e.Session", Asked)
    options = ["--params", str(tmp_path / "params.json"), "--tokens", "16", "--rate", "1", "--json"]
    result = CliRunner().invoke(app, ["e2e", "--methods", named, *options], catch_exceptions=False)
    jobs = [row["job"] for row in json.loads(result.stdout)]
    assert [job["method"] for job in jobs] == expected
    assert [job["calibration"] for job in jobs] == [
        found.to_json() if job["method"] == "lynx-calibrated" else None for job in jobs
    ]
