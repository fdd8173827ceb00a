//! What the `OpenAPI` document says about all requests, and about each group of them: what is true
//! of more than one request, and so stands beside no handler. The reference for partners shows it
//! as it is here, so a heading begins with two signs, and what stands below a group has no heading.

use domain::{sandbox, sandbox_option};
use serde_json::{Value, json};

/// What is true of all requests.
pub(super) const INTRODUCTION: &str = "\
Order eSIMs, look orders up, and receive each eSIM by webhook.

## Errors

Each error response has stable codes in `X-Service-Error`, by which your program should decide; the texts of messages may change. Treat a code that you do not know like its status: a request that got a 4xx bought nothing, and after a 5xx an order may be stored. An error without `X-Service-Error` is not from us, but from something in between, such as a proxy, and counts as no answer, whatever its status is. After a 5xx or without an answer, repeat an order with the same `external_order_id` until you get a definite answer, which the guide defines. If the head of a request is not HTTP, takes too long to arrive or has more than 16 KiB, the answer has no code.

## Requests

Percent-encode each id in a path once, and sign the path as you send it. Send bodies as JSON and uncompressed. A request other than an order is refused if it has a parameter that we do not know, or the same parameter twice. Each `GET` request may also be sent as `HEAD`, which gets the same status and headers without a body. If a cancellation, a redelivery or a give-back gets no answer, repeat it: repeating changes nothing that has happened already.

## Lists and times

Lists come in pages: `limit` is the size of a page, and `cursor` is the `next_cursor` of the previous one. With a filter a page may be empty although it is not the last one, so continue until `next_cursor` is null. Times are in UTC, in the format of RFC 3339.

## Generated clients

You can generate a client from the OpenAPI document. Add the signature in a hook that sees the final URL of each request, because the signature covers the path and the query as they are sent. Take an error without `X-Service-Error` for no answer.

## Compatibility

Within `v1` we change nothing that a program relies on which follows the guide. If there ever is a `v2`, both work side by side, and we tell you in good time when `v1` ends.

- **Never changed**: paths and methods, names and types of fields, the meaning of a code and of a state, the signatures, and the nine fields of the webhook of an eSIM.
- **Added at any time**: requests, optional parameters, fields of answers and events, headers, codes, outcomes of attempts, and kinds of events, which you get only if you ask for them. Ignore what you do not know.
- **Changed at any time**: texts of messages, the sequence of fields, the form of cursors and of ids that begin with `evt_`, our speed, and limits, which `GET /account` shows.
";

const ORDERS: &str = "\
An order has items, each with an option and a quantity, and each unit of an item becomes a topup. The guide explains how to order so that a lost answer never buys twice.
";

const TOPUPS: &str = "\
A topup is one unit of an order. In rare cases a `failed` topup becomes `ready` after all, because the provider had sold the eSIM although it had said no. You then get its normal webhook. If you have refunded your customer by then, keep the eSIM back and tell us.

**Install links.** A customer who reads your message on the phone that gets the eSIM cannot scan a QR code there, so send a link, too. The look-up of a ready topup shows two `install_links`, and you can make them from the webhook: `https://esimsetup.apple.com/esim_qrcode_provisioning?carddata=` followed by the `download_link` as it is, for iOS 17.4 or newer, and `https://esimsetup.android.com/esim_qrcode_provisioning?carddata=` followed by the percent-encoded `download_link`, for Android phones that support such links (many since 2024). They contain the activation code, so keep them out of your logs. You can pass on this text; replace the words in capitals:

```text
Your eSIM is ready. Install it while you have Wi-Fi, before EXPIRED_DATE. It can be installed once only, so do not delete it afterwards.

iPhone (iOS 17.4 or newer): open IOS_LINK on the phone and follow the steps.
Android: open ANDROID_LINK on the phone and follow the steps.

If the link does nothing, scan the picture QRCODE_IMG_URL with another screen:
iPhone: Settings > Mobile Service > Add eSIM > Use QR Code.
Android: Settings > Network & internet > SIMs > Add eSIM > Scan the QR code.

Without another screen, choose \"Enter details manually\" there:
SM-DP+ address: SMDP
Activation code: ACTIVATE_CODE

Abroad, switch on \"Data roaming\" for this eSIM.
```
";

const OPTIONS: &str = "\
An option is an eSIM product that you may order, for example 5 GB for Japan.
";

const WEBHOOK: &str = "\
Your webhook URL is the first endpoint of your account. The guide explains how to verify a webhook, and what each event says is below.

**Retries.** Any answer other than a 2xx, or none within 15 s, is a failed attempt; we do not follow redirects. We retry after about 5 s, 5 min, 30 min, 2 h, 5 h, 10 h and 10 h, each counted from the end of the attempt before, so the last of the eight attempts is made after about 28 hours. If your answer has `Retry-After` (seconds or a date), we wait at least that long, up to a day. A 410 ends the retries at once. Each attempt is signed with its own timestamp, so verify a webhook when it arrives and not later. After the last retry the webhook is `exhausted`, and nothing is lost: its eSIM is kept until it has been delivered, without a time limit.

**Repeats.** A webhook that is sent again has the same `webhook-id`. If you have lost data, remove its id from those that your program has processed first, or read the eSIM from the topup.

**Sequence.** Webhooks arrive in any sequence, and many at the same time: each of our processes sends up to 64 at once to your endpoint, and 8 if it takes 3 s or more to answer.

**Blocks.** If your endpoint fails at least 20 times in a row, counted over all its webhooks, we block it. Its webhooks then wait without using up retries. After 5 s we send one of them as a test; if you acknowledge it, the block is over, and otherwise it goes on for twice as long, at most 5 min. A new URL, and `POST /webhook/test`, are tried at once.

**If your host moves**, keep the old address answering for the TTL of its DNS record and one more minute. We cache an address for its TTL, at most 5 minutes, and begin no request on a connection that is older than 60 s.

**Source addresses.** `GET /account` lists the addresses from which webhooks come, and a notice tells you of changes. An address does not prove who sent a webhook; only the signature does.

**Public keys.** Where no secret may lie, for example in an app or at an auditor, verify by a public key. If `GET {base_url}/.well-known/webhook-keys.json` lists `keys`, each webhook also has a signature `v1a,` by each of them: the Base64 of the Ed25519 signature of the same text. `whpk_` precedes the Base64 of the 32 bytes of a key. The keys are the same for all partners, so check also that the webhook is about an order of yours. We announce a new key a week before the old one ends, and sign with both; read the list once a day, or when no signature matches, but at most once an hour.

<!-- public key vector -->
```
public key: whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=
webhook-id: 20250129123456123456789012
webhook-timestamp: 1700000000
body: {\"topup_id\":\"20250129123456123456789012\"}
webhook-signature: v1,MQgk/g+qFxYZTs5tllD+Rn948Pdct6Fvz36rQXgA1pE= v1a,3bdSApsacf6zJT+PkXFcVmO0P8KXoErmZAC0fpG/oAYAlphCbAsdik/W7HbHr+uT6EhNih0zk5pgOF3exfL+Bg==
```
";

const ENDPOINTS: &str = "\
The webhook URL is the first endpoint of your account. You can add nine more, for example for your accounting. Each has its own secret, events, headers, state and pause, and one that fails does not affect the others. The webhook of an eSIM has the same `webhook-id` at each endpoint; a further event has an id of its own at each.

**The host that a sandbox account sets proves itself once**, so that nobody floods a stranger with a free account. Until then it gets at most one webhook a second, and a single failure blocks it. Ask for a test, and return its `challenge` in the body of your 2xx, as JSON or as text; the example programs do so. URLs that we set, and those of live accounts, need no proof.
";

const NOTICES: &str = "\
If your endpoint is down, a webhook cannot tell you so. Therefore name a second channel, which is a URL on another server or an e-mail address. A notice comes within seconds of what it reports, and once for it; you get at most 50 a day about your endpoints. It never holds an activation code, nor more of an endpoint's URL than its host. A notice to a URL is signed like a further event, with a secret of its own that the answer to `PUT /notices` shows once.

| type | sent |
|---|---|
| `notice.verify` | when you set the channel; it brings the code, valid for half an hour |
| `notice.endpoint_failing` | when half of the failures in a row have happened that block an endpoint, usually 10 |
| `notice.endpoint_blocked` | when an endpoint gets blocked |
| `notice.endpoint_recovered` | when it acknowledges a webhook again |
| `notice.webhook_exhausted` | when the retries of a webhook have ended; further ones not until the endpoint has recovered or a day has passed |
| `notice.keys_expire` | as `key.expiring`, whether or not you ask for that event |
| `notice.source_addresses` | when the addresses from which we send webhooks have changed |
";

const ACCOUNT: &str = "\
You can replace your keys and your webhook secret yourself at any time. Old and new ones are both valid during an overlap of a day, unless we agreed on another time, so that you can change your programs one after another. Access key and secret key change together; never use one of the old pair with one of the new pair. Ask us if you lose the answer with the new ones. If your keys may have leaked, ask us to end them at once, because whoever has them can replace them, too.

**Keys for people and programs.** Beside this first pair an account can have nine further keys. Each has a name, rights (`order`, `read`, `webhooks`, `keys`), and if you want networks that it may be used from and a number of units that it may order in a day of UTC. Each request says which right it needs. A request without the right, or from another network, gets a 403 and does nothing. Give each program and each agent a key of its own with no more than it needs: whoever steals or misleads it can do no more. A key that you change or end is changed or refused everywhere within a second. What a key has ordered belongs to the account, and every key with the right `read` sees it.
";

const MONEY: &str = "\
These requests have something to show if we have agreed prices with you. All amounts are whole numbers of a currency's minor unit: 1250 is 12.50 USD, 1250 JPY or 1.250 JOD. An order is refused as a whole if it costs more than is available, and its `external_order_id` may be sent again after a deposit. Prices are held when an order is stored; each topup is charged when it is ready and costs nothing if it fails; an eSIM that you give back is refunded. `max_price` of an item refuses an order that would cost more. Later prices never change what you have ordered.
";

const SANDBOX: &str = "\
A sandbox account uses the same API as a live one, but its orders go to a test provider of ours that sells nothing real. It begins with 5 orders and 5 units per second and with at most 50 units in an order; ask us for more if you want to test your load. Each option below behaves as its name says, and every other one like `ready`. `details.outcome` of an option says the same, and `esim-partner trigger` lists the options and orders them. Order each of them once before you go live.

";

const SANDBOX_END: &str = "
The last three try what your program does without a definite answer. Only sandbox accounts can order them, and if an order has several items, the first such option decides.
";

/// The groups of requests with what is true of each, in the order of the reference.
pub(super) fn tags() -> Value {
    let groups = [
        ("Orders", ORDERS.to_owned()),
        ("Topups", TOPUPS.to_owned()),
        ("Options", OPTIONS.to_owned()),
        ("Money", MONEY.to_owned()),
        ("Webhook", WEBHOOK.to_owned()),
        ("Endpoints", ENDPOINTS.to_owned()),
        ("Notices", NOTICES.to_owned()),
        ("Account", ACCOUNT.to_owned()),
        (
            "Sandbox",
            [SANDBOX, &sandbox_options(), SANDBOX_END].concat(),
        ),
    ];
    groups
        .into_iter()
        .map(|(name, description)| json!({ "name": name, "description": description }))
        .collect()
}

/// The options of the sandbox as a table.
fn sandbox_options() -> String {
    let rows = sandbox::OPTIONS.map(|(name, outcome)| {
        let id = sandbox_option(name);
        format!("| `{name}` | `{id}` | {outcome} |\n")
    });
    format!(
        "| option | `option_id` | you see |\n|---|---|---|\n{}",
        rows.concat()
    )
}
