"""A wrong setting is an error when the client is made, and the error names it and shows no secret."""

from typing import Any

import httpx
import pytest
from esim_partner import AsyncPartner, Keys, Partner, Waits

GOOD = {"base_url": "https://esim.example.com", "access_key": "ak_example", "secret_key": "c2VjcmV0LWtleQ=="}
WRONG: list[tuple[str, Any]] = [
    ("base_url", "esim.example.com"), ("base_url", "localhost:8080"), ("base_url", "ftp://esim.example.com"),
    ("base_url", ""), ("base_url", "https://"), ("base_url", "https:///path"), ("base_url", "https://x:port"),
    ("base_url", "https://x:99999"), ("base_url", "https://me:secret@x"), ("base_url", "https://x?y"), ("base_url", "https://x#y"),
    ("base_url", "https://x y"), ("base_url", "https://x\n"), ("base_url", " https://x"), ("base_url", "https://exämple.com"),
    ("base_url", "https://[::1"), ("base_url", None), ("base_url", b"https://x"),
    ("access_key", ""), ("access_key", "ak_example\n"), ("access_key", "ak example"), ("access_key", "äk"), ("access_key", None),
    ("access_key", "ak\x00"), ("access_key", 5),
    ("secret_key", ""), ("secret_key", "c2VjcmV0LWtleQ==\n"), ("secret_key", "c2VjcmV0LWtleQ"), ("secret_key", "not Base64!"),
    ("secret_key", "whsec_c2VjcmV0"), ("secret_key", "schlüssel"), ("secret_key", None), ("secret_key", b"c2VjcmV0LWtleQ=="),
    ("brand", ""), ("brand", "Ac me"), ("brand", "Acme\r\nX"), ("brand", "Äcme"), ("brand", "-"), ("brand", None),
    ("timeout", 0), ("timeout", -1), ("timeout", float("nan")), ("timeout", float("inf")), ("timeout", "30"), ("timeout", None),
    ("timeout", 1e12), ("timeout", True),
    ("waits", Waits(first=(-1,))), ("waits", Waits(then=0)), ("waits", Waits(on_its_way=float("nan"))),
]  # fmt: skip


@pytest.mark.parametrize("kind", [Partner, AsyncPartner])
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_setting_is_named(kind: type, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name) as error:
        kind(**{**GOOD, name: value})
    assert not value or "secret" in name or str(value) not in str(error.value).replace("https://esim.example.com", "")
    assert "secret@" not in str(error.value) and "c2Vj" not in str(error.value)


@pytest.mark.parametrize("kind", [Partner, AsyncPartner])
@pytest.mark.parametrize(
    "base_url", ["https://x", "http://127.0.0.1:8080/", "http://[::1]:8080", "https://x/esim//", "https://xn--exmple-cua.com/v1/api_partner"]
)
def test_good_settings_are_accepted(kind: type, base_url: str) -> None:
    partner = kind(**{**GOOD, "base_url": base_url}, brand="Acme-2", timeout=5)
    assert isinstance(partner.api.get_httpx_client(), httpx.Client)


def test_keys_are_checked_by_themselves() -> None:
    for name in ("access_key", "secret_key", "brand"):
        for wrong in (value for named, value in WRONG if named == name):
            with pytest.raises(ValueError, match=name):
                Keys(**{"access_key": "ak", "secret_key": GOOD["secret_key"], name: wrong})
