"""From the command line and Ray's environment variables to one URL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.cluster.address import DEFAULT_URL, Address, resolve
from raydiag.errors import UsageError

API, RAY = "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (API, RAY):
        monkeypatch.delenv(name, raising=False)


def test_default() -> None:
    assert resolve(None) == Address("http://127.0.0.1:8265", "the default")


@pytest.mark.parametrize(
    ("given_", "api", "ray", "url", "origin"),
    [
        ("http://a:1", "http://b:2", "http://c:3", "http://a:1", "--address"),
        ("http://a:1", None, "http://c:3", "http://a:1", "--address"),
        (None, "http://b:2", "http://c:3", "http://b:2", API),
        (None, None, "http://c:3", "http://c:3", RAY),
        ("", "http://b:2", None, "http://b:2", API),  # an empty value says nothing
        (None, "", "http://c:3", "http://c:3", RAY),
        (None, "", "", DEFAULT_URL, "the default"),
        ("local", "http://b:2", "http://c:3", "", "--address"),
    ],
)
def test_precedence(
    given_: str | None,
    api: str | None,
    ray: str | None,
    url: str,
    origin: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ((API, api), (RAY, ray)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert resolve(given_) == Address(url, origin)


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("http://head:8265", "http://head:8265"),
        ("https://ray.example.com/cluster1", "https://ray.example.com/cluster1"),
        ("HTTP://head:8265", "HTTP://head:8265"),
        (" http://head:8265\n", "http://head:8265"),
        ("head:8265", "http://head:8265"),
        ("head:9000", "http://head:9000"),
        ("head", "http://head:8265"),
        ("10.0.0.1", "http://10.0.0.1:8265"),
        ("[fe80::1]:9000", "http://[fe80::1]:9000"),
        ("[fe80::1]", "http://[fe80::1]:8265"),
        ("ray://head:10001", "http://head:8265"),
        ("auto", DEFAULT_URL),
    ],
)
@pytest.mark.parametrize("origin", ["--address", API])
def test_url(value: str, url: str, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if origin == API:
        monkeypatch.setenv(API, value)
    assert resolve(value if origin == "--address" else None) == Address(url, origin)


@pytest.mark.parametrize(
    ("value", "url", "gcs_address"),
    [
        ("10.0.0.1:6379", "http://10.0.0.1:8265", "10.0.0.1:6379"),
        ("head:6380", "http://head:8265", "head:6380"),
        ("[fe80::1]:6379", "http://[fe80::1]:8265", "[fe80::1]:6379"),
        ("10.0.0.1", "http://10.0.0.1:8265", None),
        # Ray's client port is not the one by which the cluster knows itself.
        ("ray://10.0.0.1:10001", "http://10.0.0.1:8265", None),
        ("http://head:8265", "http://head:8265", None),
        ("auto", DEFAULT_URL, None),
    ],
)
def test_ray_address_names_the_control_store(
    value: str, url: str, gcs_address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RAY, value)
    assert resolve(None) == Address(url, RAY, gcs_address)


def test_local() -> None:
    assert resolve("local").is_local
    assert not resolve(None).is_local


BAD = [
    " ",
    "http://",
    "ftp://head:8265",
    "file:///etc/hosts",
    "http://head:port",
    "http://head:99999",
    "head:-1",
    "http://[::1",
    "[::1",
    ":8265",
    "http://:8265",
    "://",
    "/tmp/ray",
]


@pytest.mark.parametrize("value", BAD)
def test_bad_value_says_where_it_stands_and_what_would_do(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(value)
    message = str(caught.value)
    assert message.startswith(f"--address: {value.strip()!r} is not an address")
    assert "http://HEAD:8265" in message


@pytest.mark.parametrize("name", [API, RAY])
def test_bad_value_in_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "tcp://head")
    with pytest.raises(UsageError, match=f"^{name}: 'tcp://head' is not an address"):
        resolve(None)


@given(st.text())
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        address = resolve(text)
    except UsageError:
        return
    assert address.is_local or address.url.lower().startswith(("http://", "https://"))
