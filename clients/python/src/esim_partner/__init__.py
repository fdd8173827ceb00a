"""A client for partners who order eSIMs: see README.md."""

from importlib.metadata import version

from .errors import (
    Answer,
    ApiError,
    InDoubt,
    InvalidWebhook,
    OrderIdTaken,
    OrderRefused,
    PartnerError,
    Unanswered,
    Unavailable,
)
from .flow import Item, PlacedOrder, PlacedTopup, Waits
from .generated import events
from .generated.events import *
from .generated.models import Esim, Order, OrderState
from .http import ForeignAnswer
from .partner import AsyncPartner, Partner
from .signing import Keys, Signature
from .webhooks import Webhook, WebhookVerifier

__version__ = version("esim-partner")

__all__ = [
    "Answer",
    "ApiError",
    "AsyncPartner",
    "Esim",
    "ForeignAnswer",
    "InDoubt",
    "InvalidWebhook",
    "Item",
    "Keys",
    "Order",
    "OrderIdTaken",
    "OrderRefused",
    "OrderState",
    "Partner",
    "PartnerError",
    "PlacedOrder",
    "PlacedTopup",
    "Signature",
    "Unanswered",
    "Unavailable",
    "Waits",
    "Webhook",
    "WebhookVerifier",
]
# The types of further events.
__all__ += events.__all__
