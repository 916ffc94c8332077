"""URLs: what is one, and how messages show one without the passwords, tokens and signatures that it may carry."""

from __future__ import annotations

import re
from typing import TypeGuard
from urllib.parse import parse_qsl, unquote

#: Also chains such as simplecache::s3://bucket/key. Two letters at least: one is a drive.
_URL = re.compile(r"([a-z0-9+.-]+::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)

#: A URL within a text, up to the next space; also of one slash, which is what a path makes of a URL. Without a longest
#: scheme, a long text without URLs would be read once for each of its letters.
_WITHIN = re.compile(r"[a-z][a-z0-9+.-]{1,30}:/\S+", re.IGNORECASE)
_PART = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]+:/{1,2})?(?P<place>[^?#]*)(?P<mark>[?#]?)(?P<query>.*)", re.DOTALL | re.IGNORECASE
)
_BEHIND = "'\")]}>,;:."

_HIDDEN = "***"
#: A shorter secret is found in a text by chance.
_SHORTEST = 4


def is_url(place: object) -> TypeGuard[str]:
    """Whether a value is a string that is a URL and not a path."""
    return isinstance(place, str) and _URL.match(place) is not None


def shown_url(url: str) -> str:
    """A URL with ``***`` for what may be a secret: all before the ``@`` of a host, a query, a fragment.

    Examples
    --------
    >>> from lynxq.urls import shown_url
    >>> shown_url("https://me:secret@host/kv.lynx?X-Amz-Signature=fe5f80")
    'https://***@host/kv.lynx?***'
    >>> shown_url("s3://bucket/kv.lynx")
    's3://bucket/kv.lynx'
    """
    return "::".join(_shown_part(part) for part in url.split("::"))


def hidden(text: str, *urls: str) -> str:
    """A text in which each URL is as :func:`shown_url` shows it.

    Parameters
    ----------
    text : str
        Such as the message of a library.
    urls : str
        Those that it may be about: their secrets are hidden on their own, too.
    """
    for url in urls:
        text = text.replace(url, shown_url(url))
        for secret in sorted(_secrets(url), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
    return _WITHIN.sub(_shown_match, text)


def _shown_match(match: re.Match[str]) -> str:
    url = match[0].rstrip(_BEHIND)  # what closes a quotation is no part of it
    return shown_url(url) + match[0][len(url) :]


def _shown_part(part: str) -> str:
    """A link of a chain."""
    scheme, credentials, place, mark, _ = _parts(part)
    return f"{scheme}{_HIDDEN + '@' if credentials else ''}{place}{mark + _HIDDEN if mark else ''}"


def _parts(part: str) -> tuple[str, str, str, str, str]:
    """Scheme with its slashes, credentials, place, the mark before a query, the query."""
    match = _PART.fullmatch(part)
    assert match is not None, "every text has such parts"  # noqa: S101 - the pattern matches everything
    scheme, place, mark, query = match["scheme"] or "", *match.group("place", "mark", "query")
    host, before = place.partition("/")[0], place.rpartition("@")[0]
    credentials = ""
    # A password may hold what should be escaped: slashes before its @, or a mark that ends the place too early.
    if not scheme:
        pass
    elif ":" in before:
        credentials, place = before, place[len(before) + 1 :]
    elif "@" in host:
        credentials = host.rpartition("@")[0]
        place = place[len(credentials) + 1 :]
    elif ":" in host and not host.rpartition(":")[2].isdigit():
        credentials, place = host, place[len(host) :]
    return scheme, credentials, place, mark, query


def _secrets(url: str) -> set[str]:
    """Texts that must not be shown."""
    found: set[str] = set()
    for part in url.split("::"):
        _, credentials, _, _, query = _parts(part)
        values = [value for _, value in parse_qsl(query, keep_blank_values=True)]
        raw = [pair.partition("=")[2] for pair in query.split("&")]
        found |= {credentials, credentials.partition(":")[2], *credentials.split(":")[1:], query, *values, *raw}
    return {form for secret in found for form in (secret, unquote(secret)) if len(form) >= _SHORTEST}
