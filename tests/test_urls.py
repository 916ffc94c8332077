"""Passwords, tokens and signatures in URLs are in no message, no repr and no output."""

import re
import sys
import traceback
from io import BytesIO
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import lab
from lynxq.arguments import shown
from lynxq.cli import console, main
from lynxq.container.remote import of_url
from lynxq.integrations.stores import open_store
from lynxq.lab import texts
from lynxq.urls import hidden, shown_url

PASSWORD, SIGNATURE = "pa55word", "s1gnature"
SECRETS = (PASSWORD, SIGNATURE)
TENSORS = {"k": lynxq.encode(np.ones((300, 2, 8), np.float32), token_axis=0)}


def silent(text):
    return not any(secret in text for secret in SECRETS)


# --- what is shown -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://me:{PASSWORD}@host:8080/kv.lynx", "https://***@host:8080/kv.lynx"),
        (f"https://{PASSWORD}@host/kv@2.lynx", "https://***@host/kv@2.lynx"),
        (f"ftp://me:{PASSWORD}@{PASSWORD}@host/kv", "ftp://***@host/kv"),
        (f"s3://key:a/{PASSWORD}/b@bucket/kv", "s3://***@bucket/kv"),
        (f"https://me:{PASSWORD}?x@host/kv", "https://***@?***"),
        (f"https://me:{PASSWORD}#x@host/kv", "https://***@#***"),
        (f"https://me:{PASSWORD}", "https://***@"),
        (f"https://host/kv?X-Amz-Signature={SIGNATURE}&a=b", "https://host/kv?***"),
        (f"https://host/kv?{SIGNATURE}", "https://host/kv?***"),
        (f"https://host/kv#access_token={SIGNATURE}", "https://host/kv#***"),
        (
            f"simplecache::https://me:{PASSWORD}@h/x?s={SIGNATURE}::s3://b/k",
            "simplecache::https://***@h/x?***::s3://b/k",
        ),
        (f"https:/me:{PASSWORD}@host/kv", "https:/***@host/kv"),
        ("s3://bucket/kv@2.lynx", "s3://bucket/kv@2.lynx"),
        ("https://host:8080/kv.lynx", "https://host:8080/kv.lynx"),
        ("file:///C:/kv.lynx", "file:///C:/kv.lynx"),
        ("memory://kv.lynx", "memory://kv.lynx"),
        ("zip://inner/kv.lynx::file:///kv.zip", "zip://inner/kv.lynx::file:///kv.zip"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url, shown):
    assert shown_url(url) == shown
    assert shown_url(shown) == shown


SAFE = st.text("abcxyz0189-._~", min_size=1, max_size=8)
#: Also what should have been escaped; a space ends a URL within a text.
SECRET = st.text("abcXYZ0189%+/=:@'\"()", max_size=12).map(lambda text: f"{PASSWORD}{text}")


@given(host=SAFE, path=SAFE, user=SAFE, password=SECRET, query=SECRET, before=SAFE, after=SAFE)
def test_no_secret_is_left_in_any_text(host, path, user, password, query, before, after):
    url = f"https://{user}:{password}@{host}/{path}?sig={query}"
    for text in (shown_url(url), shown(url), console.plain(url), hidden(f"{before} '{url}' {after}")):
        assert PASSWORD not in text
        assert "https://***@" in text
    assert PASSWORD not in hidden(f"{before}{password}{after} {query}", url)


@given(st.text())
def test_any_text_has_something_to_show(text):
    assert isinstance(shown_url(text), str)
    if not re.search(":/", text):
        assert hidden(text) == text


def test_a_long_text_is_read_once():
    for text in ("a" * 200_000, "a::" * 70_000, "a://" * 50_000, ")" * 200_000, "https://h?" + "'" * 200_000):
        assert hidden(text) or True
        assert shown(text)


# --- where it is shown ---------------------------------------------------------------------------------


class Guarded(MemoryFileSystem):
    """Files behind a password, as signed URLs have them; every error tells all that it knows, as libraries do."""

    protocol = "guarded"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    broken: ClassVar = [None]

    @classmethod
    def _strip_protocol(cls, path):
        return path if "://" in path else f"guarded://{path.lstrip('/')}"

    @classmethod
    def _parent(cls, path):
        return path.rpartition("/")[0]

    def unstrip_protocol(self, name):
        return name

    def _fail(self, path):
        for secret in SECRETS:  # also outside of a URL
            if self.broken[0] is not None:
                raise self.broken[0](f"{secret} is wrong for {path}")

    def info(self, path, **kwargs):
        self._fail(path)
        if path not in self.store:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.store[path]), "type": "file"}

    def isfile(self, path):
        self._fail(path)
        return path in self.store

    def cat_file(self, path, start=None, end=None, **kwargs):
        self._fail(path)
        return self.store[path][start:end]

    def makedirs(self, path, exist_ok=False):
        self._fail(path)

    def pipe_file(self, path, value, **kwargs):
        self._fail(path)
        self.store[path] = value

    def rm_file(self, path):
        self._fail(path)
        del self.store[path]


class Unmakeable(MemoryFileSystem):
    """A file system that cannot be made."""

    protocol = "unmakeable"
    error: ClassVar = [ValueError]

    @classmethod
    def _get_kwargs_from_urls(cls, path):
        raise cls.error[0](f"{PASSWORD} and {SIGNATURE} do not fit {path}")


for kind in (Guarded, Unmakeable):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)

URL = f"guarded://me:{PASSWORD}@host/kv.lynx?X-Amz-Signature={SIGNATURE}"


@pytest.fixture(autouse=True)
def guarded():
    Guarded.store.clear()
    Guarded.broken[0] = None
    Guarded.store[URL] = container()


def container():
    buffer = BytesIO()
    lynxq.save(buffer, TENSORS)
    return buffer.getvalue()


def said(call, *arguments, **options):
    """All that an error tells: its message, its repr, and its traceback as a log shows it, without our own lines."""
    with pytest.raises((lynxq.LynxqError, OSError)) as caught:
        call(*arguments, **options)
    lines = traceback.TracebackException.from_exception(caught.value)
    chain = []
    while lines is not None:
        chain += list(lines.format_exception_only())
        lines = lines.__cause__ or (None if lines.__suppress_context__ else lines.__context__)
    return "\n".join([str(caught.value), repr(caught.value), *chain, *getattr(caught.value, "__notes__", [])])


READING = {
    "open": lynxq.open,
    "load": lynxq.load,
    "describe": lynxq.describe,
    "open lazy": lambda url: lynxq.open(fsspec.open(url)),
    "residual": lambda url: lynxq.open(container(), residual=url),
}


def written(url):
    with lynxq.Writer(url) as writer:
        writer.add("k", TENSORS["k"])


WRITING = {
    "save": lambda url: lynxq.save(url, TENSORS),
    "save_split": lambda url: lynxq.save_split(url, "memory://x", TENSORS),
    "save_split twice": lambda url: lynxq.save_split(url, url, TENSORS),
    "Writer": written,
    "append": lambda url: lynxq.append(url, TENSORS),
}


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("kind", [PermissionError, RuntimeError, KeyError, TimeoutError])
def test_errors_of_a_store_that_is_read(name, kind):
    Guarded.broken[0] = kind
    text = said(READING[name], URL)
    assert silent(text)
    assert "guarded://***@host/kv.lynx?***: " in text


@pytest.mark.parametrize("name", READING | WRITING)
@pytest.mark.parametrize("kind", [ValueError, TypeError, ImportError, PermissionError])
def test_errors_of_a_file_system_that_cannot_be_made(name, kind):
    Unmakeable.error[0] = kind
    url = URL.replace("guarded", "unmakeable")
    if name != "open lazy":  # there fsspec itself makes it
        assert silent(said((READING | WRITING)[name], url))


@pytest.mark.parametrize("name", WRITING)
def test_errors_of_writing(name):
    assert silent(said(WRITING[name], URL))


def test_errors_of_what_is_read():
    Guarded.store[URL] = container()[:100]
    assert silent(said(lynxq.open, URL))
    Guarded.store.clear()
    assert silent(said(lynxq.open, URL))
    with pytest.raises(FileNotFoundError):
        lynxq.open(URL)
    for mode in ({"compression": "gzip"}, {"mode": "rt"}):
        assert silent(said(lynxq.open, fsspec.open(URL, **mode)))
    assert silent(said(lynxq.open, URL.replace("guarded", "nonsense")))
    assert silent(said(lynxq.open, f"guarded://a?{SIGNATURE}::memory://b"))
    assert silent(said(lynxq.save, [URL], TENSORS))


def test_a_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert silent(said(lynxq.open, URL))


def test_reprs():
    remote = of_url(URL)
    assert silent(repr(remote) + str(remote))
    assert remote.url == URL
    with lynxq.open(URL) as reader:
        assert silent(repr(reader) + repr(reader["k"]))
    assert silent(repr(open_store(URL)))


@pytest.mark.parametrize("call", ["contains", "write", "open", "delete"])
def test_errors_of_stores_of_integrations(call):
    store = open_store(f"guarded://me:{PASSWORD}@host?X-Amz-Signature={SIGNATURE}")
    Guarded.broken[0] = RuntimeError

    def use():
        if call == "open":
            with store.open("page") as source, lynxq.open(source):
                pass
        else:
            getattr(store, call)("page", *([b"x"] if call == "write" else []))

    assert silent(said(use))


def test_what_is_no_store_and_no_model_and_no_text():
    assert silent(said(open_store, (URL,)))
    assert silent(said(lab.load, URL))
    assert silent(said(texts.read, URL))


def test_an_error_that_tells_no_secret_stays_the_cause():
    Guarded.store["guarded://host/kv.lynx"] = b""
    Guarded.broken[0] = RuntimeError
    with pytest.raises(OSError, match="is wrong for") as caught:
        lynxq.open("guarded://host/kv.lynx")
    assert isinstance(caught.value.__cause__, RuntimeError)


# --- the command line ------------------------------------------------------------------------------------

COMMANDS = [
    ("info", URL),
    ("info", URL, "--residual", URL),
    ("verify", URL),
    ("decode", URL, "-o", "kv.safetensors"),
    ("decode", URL, "-o", URL),
    ("encode", URL, "-o", "kv.lynx"),
    ("encode", URL, "-o", "kv.lynx", "--params", URL),
    ("eval", URL),
    ("calibrate", URL),
    ("lab", "capture", URL, "-o", "kv.safetensors", "--model", URL),
    ("lab", "quality", URL, "--model", URL),
    ("e2e", "--text", URL),
    ("e2e", "--plot", URL),
    ("info", "a.lynx", URL),
    (URL,),
    ("info", f"--{URL}"),
]


@pytest.mark.parametrize("broken", [None, RuntimeError])
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments).replace(URL, "URL"))
def test_commands_show_no_secret(arguments, broken, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Guarded.broken[0] = broken
    monkeypatch.setattr(sys, "argv", ["lynxq", *arguments])
    with pytest.raises(SystemExit):
        sys.exit(main())
    out, err = capsys.readouterr()
    assert out + err
    assert silent(out + err)
