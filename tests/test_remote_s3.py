"""Containers in a real S3 server on this machine, over HTTP: moto, reached through s3fs."""

import os
from contextlib import suppress

import pytest

import lynxq
from lynxq.container import remote
from lynxq.errors import TruncatedError, WriterError
from tests.containers import METADATA, anchors_end, coded, decoded, error_of, readings, spans, stored, two

pytest.importorskip("s3fs", reason="no s3fs: pip install 'lynxq[test]'")
moto = pytest.importorskip("moto.server", reason="no moto: pip install 'lynxq[test]'")

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint():
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def requests(endpoint, monkeypatch):
    """What was asked of the server since the list was cleared; the bucket is empty and found by URL alone."""
    import s3fs

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    for bucket in ("hot", "cold"):
        if fs.exists(bucket):
            fs.rm(bucket, recursive=True)
        fs.mkdir(bucket)
    found = []
    original = s3fs.S3FileSystem._call_s3

    async def noted(self, method, *arguments, **more):
        found.append((method, more.get("Range")))
        return await original(self, method, *arguments, **more)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", noted)
    yield found
    s3fs.S3FileSystem.clear_instance_cache()


def large():
    return {"k": coded(6000, channels=8), "v": coded(5000, 1, channels=8, dtype="float16")}


def ranges(requests):
    """The ranges of all reads; every read must have one."""
    found = []
    for method, given in requests:
        if method == "get_object":
            begin, end = given.removeprefix("bytes=").split("-")
            found.append((int(begin), int(end) + 1))
    return found


def test_saving_and_every_reading(requests):
    for tensors in (two(), large()):
        lynxq.save("s3://hot/kv.lynx", tensors, metadata=METADATA)
        assert set(readings("s3://hot/kv.lynx", [tensors]).values()) == {None}
        assert lynxq.describe("s3://hot/kv.lynx") == lynxq.describe(stored(tensors))
        with lynxq.open("s3://hot/kv.lynx") as reader:
            assert reader.verify() == []


def test_opening_is_one_ranged_read_beside_the_size(requests):
    tensors = large()
    lynxq.save("s3://hot/kv.lynx", tensors, metadata=METADATA)
    requests.clear()
    with lynxq.open("s3://hot/kv.lynx") as reader:
        assert sorted(method for method, _ in requests) == ["get_object", "head_object"]
        assert ranges(requests) == [(0, remote.HEAD)]
        requests.clear()
        assert reader["k"].decode("anchor", tokens=(5000, 5100)).shape == (100, 8)
        assert [method for method, _ in requests] == ["get_object"]


@pytest.mark.parametrize("part", [remote.PART, 50_000])
def test_an_anchor_decode_touches_no_residual_byte(requests, monkeypatch, part):
    monkeypatch.setattr(remote, "PART", part)
    tensors = large()
    data = stored(tensors)
    end = anchors_end(data)
    assert remote.HEAD < end < len(data)
    lynxq.save("s3://hot/kv.lynx", tensors, metadata=METADATA)
    requests.clear()
    found = lynxq.load("s3://hot/kv.lynx", tier="anchor")
    asked = ranges(requests)
    assert {at for begin, stop in asked for at in range(begin, stop)} == set(range(end))
    assert len(asked) == 1 + -(-(end - spans(data)[0].header) // part)
    for name, encoded in tensors.items():
        assert found[name].tobytes() == decoded(encoded, "anchor").tobytes()


def test_the_same_over_plain_http(requests, endpoint):
    tensors = large()
    lynxq.save("s3://hot/kv.lynx", tensors, metadata=METADATA)
    url = f"{endpoint}/hot/kv.lynx"
    assert lynxq.load(url, tier="anchor")["k"].tobytes() == decoded(tensors["k"], "anchor").tobytes()
    assert set(readings(url, [tensors]).values()) == {None}
    with pytest.raises(WriterError, match="may be seen half written"):
        lynxq.save(url, tensors)
    with pytest.raises(FileNotFoundError):
        lynxq.open(f"{endpoint}/hot/none.lynx")


def test_hot_and_cold_files(requests, tmp_path):
    tensors = large()
    lynxq.save_split("s3://hot/kv.lynx", "s3://cold/kv.residual.lynx", tensors, metadata=METADATA)
    urls = {"source": "s3://hot/kv.lynx", "residual": "s3://cold/kv.residual.lynx"}
    assert lynxq.load(**urls)["v"].tobytes() == decoded(tensors["v"], "full").tobytes()
    requests.clear()
    assert lynxq.load(**urls, tier="anchor")["v"].tobytes() == decoded(tensors["v"], "anchor").tobytes()
    assert ranges(requests).count((0, remote.HEAD)) == 2
    assert len(ranges(requests)) == 3
    local = tmp_path / "kv.lynx"
    lynxq.save_split(local, "s3://cold/kv.residual.lynx", tensors, metadata=METADATA)
    found = lynxq.load(local, residual="s3://cold/kv.residual.lynx")
    assert found["k"].tobytes() == decoded(tensors["k"], "full").tobytes()


def test_a_failed_save_leaves_the_old_object_and_no_upload(requests):
    import s3fs

    fs = s3fs.S3FileSystem()
    lynxq.save("s3://hot/kv.lynx", two(), metadata=METADATA)
    with suppress(KeyError), lynxq.Writer("s3://hot/kv.lynx") as writer:
        writer.add("k", large()["k"])
        raise KeyError
    assert fs.cat_file("hot/kv.lynx") == stored(two())

    def fail_behind_the_first_part():
        with remote.replacing(remote.resolve("s3://hot/kv.lynx")) as file:
            file.write(bytes(60 << 20))
            assert fs.call_s3("list_multipart_uploads", Bucket="hot")["Uploads"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_behind_the_first_part()
    assert fs.cat_file("hot/kv.lynx") == stored(two())
    assert fs.call_s3("list_multipart_uploads", Bucket="hot").get("Uploads", []) == []
    with lynxq.Writer("s3://hot/kv.lynx", metadata=METADATA) as writer:
        for name, encoded in two(5).items():
            writer.add(name, encoded)
        assert fs.cat_file("hot/kv.lynx") == stored(two())
    assert fs.cat_file("hot/kv.lynx") == stored(two(5))


def test_what_an_object_store_cannot_do(requests):
    lynxq.save("s3://hot/kv.lynx", two(), metadata=METADATA)
    assert error_of(lynxq.append, "s3://hot/kv.lynx", two(7, first=(20, 9))) is WriterError
    for url in ("s3://hot/none.lynx", "s3://none/kv.lynx"):
        with pytest.raises(FileNotFoundError):
            lynxq.open(url)
    import s3fs

    s3fs.S3FileSystem().pipe_file("hot/empty.lynx", b"")
    assert error_of(lynxq.open, "s3://hot/empty.lynx") is TruncatedError
