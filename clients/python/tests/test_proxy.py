"""A shop behind a real proxy that throws the first answer to each request away and answers by itself, after the request
has reached the running system. PROXIES has the base URLs by status; see tests/contract/proxy.py of the service."""

import json
import os
import socket
import time
import uuid

import pytest
from esim_partner import ForeignAnswer, InDoubt, Item, OrderIdTaken, Partner, Unanswered, Waits
from esim_partner.generated.api.orders import cancel_order

pytestmark = pytest.mark.system
WAITS = Waits(first=(1, 1, 1))
STATUSES = ["401", "403", "404", "408", "413", "422", "429", "502"]


def shop(base_url: str, waits: Waits = WAITS) -> Partner:
    return Partner(base_url, os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"], waits=waits)


@pytest.fixture(scope="module")
def direct() -> Partner:
    return shop(os.environ["BASE_URL"])


@pytest.fixture(scope="module")
def options(direct: Partner) -> dict[str, uuid.UUID]:
    return {option.name: option.option_id for option in direct.options()}


def proxy(status: str) -> str:
    url: str = json.loads(os.environ["PROXIES"])[status]
    return url


def nobody() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("status", STATUSES)
def test_an_order_that_passed_the_proxy_is_found(direct: Partner, options: dict[str, uuid.UUID], status: str) -> None:
    external_order_id = f"Python proxy/{uuid.uuid4()}"
    placed = shop(proxy(status)).order(external_order_id, [Item(options["ready"], 2)], first_call=True)
    assert placed.stored_before
    found = direct.find_order(external_order_id)
    assert found and [topup.topup_id for topup in found.topups] == [topup.topup_id for topup in placed.topups]


@pytest.mark.parametrize("status", STATUSES)
def test_no_call_says_that_nothing_is_stored(direct: Partner, options: dict[str, uuid.UUID], status: str) -> None:
    external_order_id = f"Python proxy/{uuid.uuid4()}"
    items = [Item(options["ready"])]
    with pytest.raises(InDoubt):
        shop(proxy(status)).order(external_order_id, items, first_call=True, patience=0.9)
    # The job of the shop is run again, in another process and while nobody answers.
    with pytest.raises(InDoubt):
        shop(nobody()).order(external_order_id, items, patience=0.9)
    assert direct.order(external_order_id, items).stored_before
    with pytest.raises(OrderIdTaken):
        direct.order(external_order_id, [Item(options["ready"], 2)])


@pytest.mark.parametrize("status", STATUSES)
def test_a_look_up_believes_only_the_service(options: dict[str, uuid.UUID], status: str) -> None:
    external_order_id = f"Python proxy/{uuid.uuid4()}"
    behind = shop(proxy(status))
    behind.order(external_order_id, [Item(options["ready"])])
    assert behind.find_order(external_order_id)
    with pytest.raises(Unanswered):
        shop(proxy(status), Waits(first=())).find_order(f"Python proxy/{uuid.uuid4()}")


@pytest.mark.parametrize("status", STATUSES)
def test_a_cancellation_is_repeated(direct: Partner, options: dict[str, uuid.UUID], status: str) -> None:
    """For every generated request, too, an error without a code of the service is no answer."""
    external_order_id = f"python-proxy-{uuid.uuid4()}"
    direct.order(external_order_id, [Item(options["cancellable"])])
    api = shop(proxy(status)).api
    with pytest.raises(ForeignAnswer, match=status):
        cancel_order.sync_detailed(external_order_id, client=api)
    # Until its purchase was rejected for the first time it cannot be cancelled.
    end = time.monotonic() + 60
    while cancel_order.sync_detailed(external_order_id, client=api).status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.1)
    order = direct.find_order(external_order_id)
    assert order and order.state == "cancelled"
