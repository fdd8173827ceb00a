"""What can go wrong, and what to do then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .generated.models import Order


class PartnerError(Exception):
    """The base of all errors of this package."""


class InvalidWebhook(PartnerError):
    """The webhook is not from the service, or is too old. Answer with a 401, and do not trust its body."""


def printable(text: str) -> str:
    """Text of the other side, for errors that are logged or shown in a terminal: without control characters, without
    characters that change the direction of writing, and not longer than a few lines."""
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[:1000])
    return shown + "…" if len(text) > 1000 else shown


@dataclass(frozen=True)
class Answer:
    """An answer of the service."""

    status: int
    #: The codes of the errors, such as ``option_not_found``. Decide by them, because texts may change.
    codes: tuple[str, ...]
    #: The errors as text.
    messages: tuple[str, ...]
    #: Quote it when you ask about a request.
    request_id: str | None
    #: How many seconds to wait before the next request, if the answer says so.
    retry_after: int | None
    #: What the answer to a repeat of an order says: ``answered`` or ``undecided``.
    repeat: str | None = None
    #: The parsed body, if it is JSON. It may hold an activation code.
    json: Any = field(repr=False, default=None)

    def __str__(self) -> str:
        codes = ", ".join(self.codes) or "no code"
        text = "; ".join(self.messages)
        return printable(f"{self.status} ({codes}){': ' + text if text else ''} [request {self.request_id}]")


class ApiError(PartnerError):
    """The service refused the request. For an order that is not an :class:`OrderRefused`: this request stored nothing, and
    it says nothing about an earlier one. Correct what ``codes`` name, and call again with the same id."""

    def __init__(self, answer: Answer, message: str = "") -> None:
        super().__init__(f"{message}: {answer}" if message else str(answer))
        self.answer = answer

    @property
    def codes(self) -> tuple[str, ...]:
        return self.answer.codes


class OrderRefused(ApiError):
    """Nothing is stored or bought, now or later, also by no earlier call. You may use the same id again.

    If ``codes`` has ``external_order_id_taken``, an earlier request stored the order, and it was cancelled since.
    """


class OrderIdTaken(ApiError):
    """Another order has this id, so nothing was ordered. ``order`` is that order, if it can still be shown."""

    def __init__(self, answer: Answer, order: Order | None) -> None:
        super().__init__(answer, "nothing was ordered, because another order has this id")
        self.order = order


class Unavailable(PartnerError):
    """The service could not be reached or was too busy, and nothing is stored. Only a call with ``first_call=True``
    raises it, because other calls cannot know what an earlier one has stored."""


class InDoubt(PartnerError):
    """It is unknown whether the order is stored, by this call or by an earlier one: it may even be bought.

    Call :meth:`Partner.order` again with the same id and the same items until it returns or raises something else. Never
    change the id, because then both orders may be bought.
    """


class Unanswered(PartnerError):
    """A look-up or a list got no answer of the service. It says nothing: an order may be stored or not."""
