//! What each error code means and what to do, for partners: one paragraph of Markdown without links
//! for each. `X-Service-` in it becomes the brand's prefix.
//!
//! Guarantee: a code without an explanation does not compile. [`crate::pages::errors`] makes the
//! page of them, and `docs/errors.md`. What a response says is in [`super::codes`].

use crate::http::codes::ErrorCode;

#[expect(clippy::too_many_lines, reason = "one paragraph for each code")]
pub(crate) fn explanation(code: ErrorCode) -> &'static str {
    match code {
        // The head of the request, and its body.
        ErrorCode::Host => {
            "The request has no `Host` header, or several. Send exactly one, because a proxy \
             could otherwise read the request differently from us. HTTP libraries add this \
             header by themselves."
        }
        ErrorCode::RepeatedHeader => {
            "An authentication header appears more than once. Send each of them once. A usual \
             cause is a library that, on a retry, adds the new headers to those of the \
             earlier attempt."
        }
        ErrorCode::RepeatInvalid => {
            "`X-Service-Repeat` has another value than `answer`. Send it exactly like this, or leave \
             the header out."
        }
        ErrorCode::InvalidJson => {
            "The body is missing, empty or not valid JSON, or its objects and arrays are \
             nested more than 128 deep."
        }
        ErrorCode::ContentEncodingUnsupported => {
            "The body has a `Content-Encoding`, for example because it is compressed. We read \
             bodies exactly as they arrive, so send it uncompressed and without this header."
        }
        ErrorCode::BodyNotObject => {
            "The body is JSON, but not an object with fields. Send an object, as the \
             description of the request says."
        }
        ErrorCode::BodyTooLarge => {
            "The body is larger than we accept, which is 64 KiB unless we changed it; `GET \
             /account` shows the limit as `body_bytes`. Split the order into several orders, \
             each with an `external_order_id` of its own."
        }
        ErrorCode::BodyTimeout => {
            "The body did not arrive in time. Send it right after the headers, and check that \
             `Content-Length` is its length in bytes and not in characters."
        }
        ErrorCode::NotFound => {
            "Nothing has this path or id, or it is of another partner. Check the path, and \
             percent-encode the ids in it once. An order that you look up is not stored at \
             this moment, but an earlier request may still be on its way: repeat the order, \
             or look it up again one minute after your last request."
        }
        ErrorCode::OrderArchived => {
            "The order, or the order of this topup, is finished and so old that we have \
             moved it out of our system, so it can be neither shown nor changed. Its \
             `external_order_id` stays taken for a year after that, unless we agreed on \
             another time. Use the copy that you stored, or ask us."
        }
        ErrorCode::MethodNotAllowed => {
            "The path exists, but does not accept this method. The header `Allow` names the \
             methods that it accepts."
        }

        // Authentication.
        ErrorCode::AuthenticationHeaderMissing => {
            "At least one of the three authentication headers is missing or blank. They are \
             `X-Service-Access-Key`, `X-Service-Signature` and `X-Service-Timestamp`."
        }
        ErrorCode::TimestampInvalid => {
            "The timestamp is not the Unix time in seconds (milliseconds are a frequent \
             mistake), or it differs by more than 300 s from our clock, whose time is in \
             the `Date` header of the answer. Correct your clock, and sign each request \
             anew."
        }
        ErrorCode::AccessKeyUnknown => {
            "No active account has this access key. Check that it is complete and belongs \
             to the system at this base URL. If the keys were changed, use the new pair, \
             because the old one is accepted only during the overlap. Otherwise ask us: we \
             may have disabled your account."
        }
        ErrorCode::SecretKeyMissing => {
            "No secret key is stored for your account, so we cannot check any signature. \
             Ask us for new keys."
        }
        ErrorCode::SignatureInvalid => {
            "The signature is not the one that we compute from your request. Check your \
             code with the test vector of the guide. Frequent mistakes: the secret key is \
             not decoded from Base64 first; the signed path lacks its prefix \
             (`/api/v1/api_partner`) or its percent-encoding; the query is signed although \
             `X-Service-Content-SHA256` is not sent, or is not signed although it is; the \
             signed text ends with a line feed; the timestamp in the header is not the \
             signed one; the signature is not in lowercase hexadecimal."
        }
        ErrorCode::ContentSha256Missing => {
            "Your account, or this kind of request, accepts only signatures that cover the \
             query and the body; the message says which. Send the SHA-256 of the body in \
             `X-Service-Content-SHA256`, and sign it as the fifth line of the text."
        }
        ErrorCode::ContentSha256Invalid => {
            "`X-Service-Content-SHA256` is not the SHA-256 of the body as it arrived, in \
             lowercase hexadecimal. Compute it over the bytes that you send."
        }
        ErrorCode::NetworkNotAllowed => {
            "The key may be used from some networks only, and the address in the message, from which \
             we received the request, is in none of them. Change its networks with `PUT \
             /account/keys/{key_id}`."
        }
        ErrorCode::RightMissing => {
            "The key lacks the right in the message. Use a key that has it, or give it to this one \
             with such a key."
        }
        ErrorCode::FirstKeyRequired => {
            "A further key cannot replace the first one, which has all rights."
        }
        ErrorCode::KeyNotGiven => {
            "A key can give another one only what it has itself; the message says what it lacks. The \
             first key may give everything."
        }
        ErrorCode::SandboxOnly => {
            "Only sandbox accounts may send this request, because it is meant for \
             development. A live account receives webhooks at its webhook URL, and events \
             when they happen."
        }

        // Create-order.
        ErrorCode::ExternalOrderIdBlank => {
            "`external_order_id` is missing, is null, or consists of white space only. Send \
             your own id of the order as a string."
        }
        ErrorCode::ExternalOrderIdInvalid => {
            "`external_order_id` is not a string, has more than 255 characters, or contains a \
             NUL character. The message says which of them it is."
        }
        ErrorCode::ExternalOrderIdTaken => {
            "An earlier order has this id and is stored. This request ordered nothing, even \
             if its body differs. `Location` names the earlier order; look it up, and \
             refund your customer only for units that are `failed`. With the header \
             `X-Service-Repeat: answer` a repeat gets the answer of the earlier order \
             instead. If you meant another order, choose a new id for it."
        }
        ErrorCode::OrderDiffers => {
            "Your request has `X-Service-Repeat: answer`, but the stored order with this id has \
             other units: other options, other numbers of units, or the same ones in another \
             order. This request ordered nothing. `Location` names the stored order. If this \
             is a repeat, send the same items as the first time; if you meant another order, \
             choose a new id for it."
        }
        ErrorCode::ProductsBlank => "`products` is missing or empty. Send at least one item.",
        ErrorCode::ProductsInvalid => {
            "`products` is not an array. Send an array of items, even for a single one."
        }
        ErrorCode::ItemInvalid => {
            "The item is not a JSON object. Send an object with `option_id` and `qty`."
        }
        ErrorCode::OptionIdBlank => {
            "The item has no `option_id`, or a blank one. `GET /options` lists the options \
             that you may order."
        }
        ErrorCode::OptionNotFound => {
            "No option that you may order has this id. `GET /options` lists those that you \
             may order."
        }
        ErrorCode::QtyInvalid => {
            "`qty` is not a positive integer. Write it as a number in digits only: no string, \
             no sign, no fraction and no exponent."
        }
        ErrorCode::MetadataInvalid => {
            "`metadata` is no object of at most 10 named texts, or has more than 1,024 bytes."
        }
        ErrorCode::TooManyItems => {
            "The order has more items than we accept in one order; `GET /account` shows the \
             limit. Split it into several orders, each with an `external_order_id` of its \
             own."
        }
        ErrorCode::TooManyUnits => {
            "The order has more units in total than we accept in one order; `GET /account` \
             shows the limit. Split it into several orders, each with an `external_order_id` \
             of its own."
        }
        ErrorCode::UnitsPerDayReached => {
            "The order has more units than its key may still order until 00:00 UTC. Nothing of it was \
             stored. Send a smaller order, or use another key."
        }
        ErrorCode::BalanceInsufficient => {
            "The order costs more than is available in your account, so nothing of it was stored, bought \
             or held. The error header has `required`, `available` and `currency`, in minor units. Send \
             the same order again after a deposit; `GET /balance` shows what there is."
        }
        ErrorCode::PriceAboveMax => {
            "An item costs more than its `max_price`, and nothing was bought. `GET /options` shows \
             today's prices."
        }
        ErrorCode::MaxPriceInvalid => {
            "Send `max_price` of an item as a whole number of the minor unit of your currency, such as \
             `1250` for 12.50 USD, or leave it out."
        }
        ErrorCode::ProviderRejected => {
            "The provider rejected the order. The message says why: after `eSIM Request failed` it has \
             the code and the text of the provider. You can use the `external_order_id` again. \
             Order something else, or send the order again later."
        }
        ErrorCode::ProviderUnreachable => {
            "We could not reach the provider, so nothing was bought. The message is `API connection \
             error`, with the id of the order. You can use the `external_order_id` again, so send the same order again \
             later."
        }
        ErrorCode::ProviderUnavailable => {
            "The provider had too much to do or does not serve us at the moment, so nothing \
             was bought. You can use the `external_order_id` again, so send the same order \
             again later."
        }

        // Everything else that partners send.
        ErrorCode::ParameterUnknown => {
            "The query or the body has a parameter that this request does not have; the \
             message names it. Correct its spelling, or leave it out."
        }
        ErrorCode::ParameterRepeated => {
            "The query or an object of the body has this parameter twice. Send it once, \
             because we could only guess which of the two you mean. An order with a \
             repeated key buys nothing."
        }
        ErrorCode::LimitInvalid => {
            "`limit` is not an integer from 1 to 100. Leave it out to get pages of 20 \
             entries."
        }
        ErrorCode::CursorInvalid => {
            "`cursor` is not a `next_cursor` from an earlier answer to the same kind of \
             request. Send it unchanged and percent-encoded, or leave it out to begin with \
             the first page."
        }
        ErrorCode::CreatedAfterInvalid => {
            "`created_after` is not an RFC 3339 time such as `2026-11-22T00:00:00Z`. In a \
             query, write the `+` of a time zone as `%2B`, because a plain `+` means a space \
             there."
        }
        ErrorCode::StateInvalid => {
            "`state` is not a state of orders. The states are `processing`, `ready`, \
             `partly_failed`, `failed`, `refused` and `cancelled`."
        }
        ErrorCode::TimeInvalid => {
            "`since`, `until` or `updated_since` is not an RFC 3339 time such as `2026-11-22T00:00:00Z`, or \
             `since` is missing where it is required; `parameter` names which of them. In a \
             query, write the `+` of a time zone as `%2B`, because a plain `+` means a space \
             there."
        }
        ErrorCode::CurrencyInvalid => {
            "`currency` is not a code of ISO 4217 in capital letters, such as `USD`."
        }
        ErrorCode::AfterInvalid => {
            "`after` is not the number of an entry. Send `next_after` of the page before, or leave it out."
        }
        ErrorCode::AmountInvalid => {
            "`parameter` names an amount that is missing, or no whole number of the currency's minor unit from 0 to \
             1000000000000, such as `1250` for 12.50 USD."
        }
        ErrorCode::CountryInvalid => {
            "`country` is not a country code of ISO 3166-1 alpha-2 in capital letters, such \
             as `JP`. Regions have no code; filter by one of their countries."
        }
        ErrorCode::NetworkInvalid => {
            "`network` is not the name of a network, one line such as `NTT Docomo`. The facts of an \
             option name its networks."
        }
        ErrorCode::KindInvalid => {
            "`kind` is neither `data` nor `data_voice_text`. Leave it out to get both."
        }
        ErrorCode::OptionNumberInvalid => {
            "`min_data_mb`, `max_data_mb`, `min_days` or `max_days` is not a whole number from \
             1 to 2147483647; `parameter` names which of them."
        }
        ErrorCode::UnlimitedInvalid => {
            "`unlimited` is neither `true` nor `false`. Leave it out to get both."
        }
        ErrorCode::WebhookStateInvalid => {
            "`state` is not a state of webhooks that this request accepts: `pending`, \
             `exhausted`, `no_endpoint` or `delivered`. Webhooks that wait for a URL \
             (`no_endpoint`) cannot be sent again; they are sent when you set one."
        }
        ErrorCode::WaitInvalid => {
            "`wait` is not a whole number of seconds from 0 to 65535. We wait for at most \
             about 20 s, also if you send a larger number."
        }
        ErrorCode::CauseInvalid => {
            "`cause` is none of `installation_failure`, `no_coverage`, `change_of_plan`, \
             `wrong_purchase` and `other`. Leave it out if none fits."
        }
        ErrorCode::IccidInvalid => {
            "`iccid` is missing, or is neither an ICCID of 18 to 20 digits nor the last six \
             digits of one. Blanks and hyphens between the digits do not matter."
        }
        ErrorCode::EndpointIdInvalid => {
            "`endpoint_id` is not the id of an endpoint, which is a UUID with hyphens. `GET \
             /endpoints` lists yours."
        }
        ErrorCode::EventsInvalid => {
            "`events` is not a list of names of further events. The message names the events \
             that you can ask for. An empty list means that you want none."
        }
        ErrorCode::EventTypeInvalid => {
            "`type` does not name an event that can be made in the sandbox; the message \
             names those that can. The others follow from what you do; the description of \
             each says from what."
        }
        ErrorCode::HeadersInvalid => {
            "`headers` cannot be used; the message says why. It must be an object of at most \
             10 headers with string values, together at most 4096 bytes. A name has letters, \
             digits, `-` and `_`. Names that frame a request or that we set ourselves are \
             refused, for example `Host`, `Connection`, `Content-Type` and those that begin \
             with `webhook-`."
        }
        ErrorCode::UrlMissing => {
            "The body has nothing to change: neither `url` nor `events`, nor `headers` for \
             a further endpoint, where `null` counts as missing. To create an endpoint, \
             `url` is required. `null` removes your webhook URL; a further endpoint has to \
             be deleted instead."
        }
        ErrorCode::UrlInvalid => {
            "The webhook URL cannot be used; the message says why. It must be an `http` or \
             `https` URL of at most 2048 bytes, without a user name, a password, a fragment \
             (`#…`) and white space."
        }
        ErrorCode::UrlForbidden => {
            "We do not send webhooks to this address or port. Use a host name all of whose \
             addresses are public. The port must be 80, 443 or at least 1024, unless we \
             have allowed others. A live account needs `https`."
        }
        ErrorCode::NoticeChannelMissing => {
            "The body must name either a `url` or an `email` for notices, and only one of \
             them. Remove the channel with `DELETE /notices`."
        }
        ErrorCode::EmailInvalid => {
            "The e-mail address cannot be used; the message says why. It must have the form \
             `name@example.com`, without a display name, quotes and an IP address."
        }
        ErrorCode::EmailNotOffered => {
            "We send no mails, so notices can only go to a URL. Send a `url`."
        }
        ErrorCode::NoticeCodeInvalid => {
            "The code is not the one that we sent last to your channel for notices, or none \
             is valid any more, because half an hour has passed or five wrong ones were \
             tried. Set the channel again with `PUT /notices` to get a new code."
        }
        ErrorCode::OrderNotAnswered => {
            "The create-order request of this order may still be waiting for its answer, \
             and you could get a 201 for a cancelled order. Try again after `Retry-After` \
             seconds, which are about 6 at most."
        }
        ErrorCode::OrderNotWaiting => {
            "At least one unit of the order is bought, or may be bought, so the order can no \
             longer be cancelled. Look the order up to see the states of its units."
        }
        ErrorCode::OrderRefused => {
            "The create-order request of this order got a 422, so nothing was bought and \
             there is nothing to cancel."
        }
        ErrorCode::TopupNotReady => {
            "The eSIM of this topup is not ready, so there is no webhook to send again, no \
             use to show and nothing to give back. Look the topup up to see its state."
        }
        ErrorCode::TopupErased => {
            "We have erased the fields of this eSIM, usually 90 days after its delivery. We \
             can neither show nor send them again, so use the copy that you stored. The \
             eSIM can no longer be given back."
        }
        ErrorCode::TopupReturned => {
            "You have given the eSIM of this topup back, so nobody can install it any more. \
             There is nothing to send again and no use to show."
        }
        ErrorCode::UsageNotAvailable => {
            "The provider of this eSIM does not show its data use. Asking again does not \
             help."
        }
        ErrorCode::GiveBackNotAvailable => {
            "The provider of this eSIM takes no eSIM back. It stays yours."
        }
        ErrorCode::EsimInstalled => {
            "The eSIM is installed on a device, or its installation has begun, so it cannot \
             be given back. It stays yours."
        }
        ErrorCode::GiveBackRefused => {
            "The provider does not take this eSIM back; the message says why if the provider \
             did. For example, it has expired. It stays yours."
        }
        ErrorCode::GiveBackFailed => {
            "The eSIM is not given back, because its provider could not be asked for half \
             an hour, or because we looked into it and found it in its place. Ask again \
             later."
        }
        ErrorCode::EsimExtending => {
            "An extension of the eSIM is under way or on hold. Ask again when that has ended."
        }
        ErrorCode::GiveBackOpen => {
            "The eSIM is being given back, or may be, so it cannot be extended."
        }
        ErrorCode::SuspensionNotAvailable => {
            "The provider of this eSIM neither suspends nor resumes eSIMs. Asking again does not \
             help."
        }
        ErrorCode::SuspensionRefused => {
            "The provider neither suspends nor resumes this eSIM; the message says why if the \
             provider did. For example, it has expired. It is as it was."
        }
        ErrorCode::SuspensionFailed => {
            "The eSIM is as it was, because its provider could not be asked for half an hour. Ask \
             again later."
        }
        ErrorCode::SuspensionOpen => {
            "You have asked for the opposite, to resume or to suspend the eSIM, and that is under \
             way. Ask again when it has ended."
        }
        ErrorCode::InstallPagesNotSet => {
            "Your pages to install from have no name, colours and help yet, so there are none. Set \
             them once with PUT …/account/install-pages."
        }
        ErrorCode::InstallPageInvalid => "The message names the field and what it must be.",
        ErrorCode::ContrastTooLow => {
            "Travellers could not read the text on your colour. Make one of the two colours lighter \
             or darker: on any colour, either white or black can be read."
        }
        ErrorCode::ExtensionDiffers => {
            "You have ordered another extension with this external_id: of another eSIM, or by \
             another option. This request bought nothing. Use a new id."
        }
        ErrorCode::ExtensionOpen => {
            "Another extension of this eSIM, which the message names, is under way or on hold. \
             This request bought nothing. Order again when that has ended."
        }
        ErrorCode::ExtensionNotOffered => {
            "The option cannot be added to this eSIM: we do not sell it, or its provider does \
             not extend this eSIM. `GET /topups/{topup_id}/extensions` lists what can be added."
        }
        ErrorCode::ExtensionRefused => {
            "The provider does not add this to the eSIM; the message says why if the provider \
             did. For example, the eSIM has expired. Nothing was added, and nothing is to be paid."
        }
        ErrorCode::ExtensionFailed => {
            "Nothing was added, because the provider could not be asked for half an hour, or \
             because we looked into it and found nothing. Order it again later, with a new \
             external_id."
        }
        ErrorCode::EventVoid => {
            "The event cannot be sent again: it is a test, you no longer ask for events of \
             its type, or it is no longer true, because the failed topup has become ready \
             after all or its order was cancelled."
        }
        ErrorCode::EventNotWanted => {
            "You do not ask for events of this type, so we would not send it. Ask for them \
             with `PUT /webhook` and the list `events`, and make the event then."
        }
        ErrorCode::WebhookUrlMissing => {
            "Your account has no webhook URL, so there is nowhere to send the webhook. Set a \
             URL with `PUT /webhook`; the webhooks that wait for a URL are then sent."
        }
        ErrorCode::WebhookPaused => {
            "The endpoint is paused, so nothing is sent to it. Resume it with `POST \
             /endpoints/{endpoint_id}/resume`, or ask us if we paused it. The webhooks that \
             wait are then sent."
        }
        ErrorCode::RedeliveryRunning => {
            "A redelivery of many webhooks is running, which `Location` and the message name. \
             Wait until it has ended, or cancel it with `DELETE`."
        }
        ErrorCode::TooManyEndpoints => {
            "Your account has as many endpoints as an account can have, which is ten with the \
             first one. Delete one that you no longer need."
        }
        ErrorCode::FirstEndpoint => {
            "This is the first endpoint of your account, which cannot be deleted and has no \
             headers of its own. Change or remove its URL and its events with `PUT \
             /webhook`."
        }
        ErrorCode::KeyNameInvalid => {
            "The name of a key is missing, too long, or has a control character."
        }
        ErrorCode::RightsInvalid => "A key needs at least one of the rights in the message.",
        ErrorCode::NetworksInvalid => {
            "Send a list of at most 50 addresses such as `198.51.100.7` and networks such as \
             `198.51.100.0/24`. An empty list allows every address."
        }
        ErrorCode::UnitsPerDayInvalid => "Send a whole number, or null for no limit.",
        ErrorCode::TooManyKeys => {
            "An account has at most ten keys with the first one. End one that you no longer need."
        }
        ErrorCode::FirstKey => {
            "The first key has all rights. Replace it with `POST /keys`, or ask us to end it."
        }
        ErrorCode::NoticesNotSet => {
            "There is no channel for notices that could be verified. Set one with `PUT \
             /notices`."
        }
        ErrorCode::RotationUnderWay => {
            "The old keys, or the old webhook secret, of an earlier change are still valid, \
             and there can be only one old one. Try again when the overlap has ended, or \
             ask us to end it."
        }

        // Load, and our faults.
        ErrorCode::OrderUndecided => {
            "An earlier create-order request with this id has no answer yet, and its order \
             may still be refused. Send the same request again in a few seconds: if the \
             earlier order stands, you get `external_order_id_taken`, or its answer if you \
             send `X-Service-Repeat: answer`; if it was refused, the repeat places a new \
             order."
        }
        ErrorCode::RateLimited => {
            "Your account sends more requests, orders or units per second than it may, or \
             asks providers about eSIMs more often; the message says which. This request \
             stored nothing. Send it again after `Retry-After` seconds. `RateLimit-Limit` is \
             the limit per second."
        }
        ErrorCode::UsageUnanswered => {
            "The provider of this eSIM does not answer now, and we have no earlier answer \
             about its data use. Ask again after `Retry-After` seconds."
        }
        ErrorCode::TooManyInFlight => {
            "Too many create-order requests of your account are waiting for their answers at \
             the same time. This request stored nothing. Send it again after `Retry-After` \
             seconds, and send fewer orders at the same time."
        }
        ErrorCode::ShareInUse => {
            "Your account has as many such requests in progress as it may have now. A single \
             account can use at most half of what the others leave free, so that nobody is \
             shut out, and only a few requests of `GET /webhook/listen`. This request changed \
             nothing. Send it again after `Retry-After` seconds, and send fewer requests at \
             the same time. `RateLimit-Limit` is the number that was in progress."
        }
        ErrorCode::RedeliveredRecently => {
            "The last attempt to send this webhook began less than a minute ago, whoever \
             caused it, or your last redelivery of many webhooks did. Ask again after \
             `Retry-After` seconds."
        }
        ErrorCode::TestedRecently => {
            "The last test of your endpoint, or the last event that you made in the sandbox, \
             was less than 10 s ago. Ask for the next one after `Retry-After` seconds."
        }
        ErrorCode::VerificationLimited => {
            "Your account has had a code for its channel for notices less than a minute ago, \
             or five codes within a day. This limit protects people whose address somebody \
             names by mistake. Set the channel after `Retry-After` seconds."
        }
        ErrorCode::Overloaded => {
            "We are overloaded, and this request stored nothing. An earlier request with the \
             same `external_order_id` may have stored its order. Send the request again after \
             `Retry-After` seconds, or after a few seconds if there is no such header."
        }
        ErrorCode::InternalError => {
            "Something failed on our side. If the request was an order, it may be stored and \
             bought. Send it again with the same `external_order_id` until you get a definite \
             answer, as the guide says. If the error persists, send us the `X-Request-Id` of \
             the answer."
        }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;

    #[test]
    fn an_explanation_is_one_paragraph() {
        for code in ErrorCode::VARIANTS {
            let text = explanation(*code);
            assert!(
                text.ends_with('.') && !text.contains('\n') && !text.contains("  "),
                "{text}"
            );
        }
    }
}
