//! The scripted options of the sandbox, as a partner sees them: what each is called, and what
//! follows an order of it. How the sandbox brings that about is in its own crate. The catalogue
//! shows these texts, and the reference for partners lists them.

/// The name of each option with what a partner sees after it has ordered it. `esim-partner trigger`
/// expects a 422 if the text begins with one.
pub const OPTIONS: [(&str, &str); 25] = [
    ("ready", "201, and the webhook at once"),
    ("delayed", "201, and the webhook about 2 s later"),
    (
        "refused",
        "422 `eSIM Request failed …`, and nothing is bought",
    ),
    (
        "out-of-stock",
        "422 `eSIM Request failed …`, and nothing is bought",
    ),
    (
        "bought-then-error",
        "201; the provider sold the eSIM but said that it failed, so the webhook comes after we looked the purchase up there",
    ),
    (
        "bought-then-silent",
        "201; the provider sold the eSIM but never answered, so the webhook comes after we looked the purchase up there, later",
    ),
    (
        "never-ready",
        "201 and no webhook; the topup stays `processing`, and is `on_hold` after about 30 minutes",
    ),
    (
        "partly",
        "201; with 2 or more units one topup is `failed`, and the others get webhooks",
    ),
    (
        "duplicate-callback",
        "201, and one webhook for each unit, although the provider calls us back twice",
    ),
    (
        "slow",
        "201 after about 2 s, and the webhook some seconds later",
    ),
    (
        "flapping",
        "201; the provider fails at first, and the webhook comes within minutes",
    ),
    (
        "rate-limited",
        "201; the provider is busy at first, and the webhook comes within a minute or so",
    ),
    (
        "cancellable",
        "201; the provider is busy for a minute, in which you can cancel the order",
    ),
    (
        "in-use",
        "201, and the webhook at once; the eSIM is installed and has used 1.5 of 5 GB, so it cannot be given back",
    ),
    (
        "runs-out",
        "201, and the webhook at once; the eSIM is installed, has used a tenth of its data, and more in each step of 5 minutes: 80 %, 95 %, all; it ends after 19 minutes. Ask for its usage to have it read at once",
    ),
    (
        "return-lost",
        "201, and the webhook at once; a give-back gets no answer at first and succeeds a moment later",
    ),
    (
        "return-unclear",
        "201, and the webhook at once; a give-back stays `under_way`, and is `on_hold` after about 30 minutes",
    ),
    (
        "extension",
        "201, and the webhook at once; as an extension it adds 5 GB and 30 days",
    ),
    (
        "extension-lost",
        "201, and the webhook a little later; as an extension it adds the same, and we find it although the provider's answer is lost",
    ),
    (
        "extension-late",
        "201, and the webhook a little later; as an extension it adds the same 5 s after the provider's answer is lost",
    ),
    (
        "extension-expired",
        "201, and the webhook at once; as an extension it is refused, because the eSIM has expired meanwhile",
    ),
    (
        "extension-other",
        "201, and the webhook at once; as an extension it sells another eSIM instead",
    ),
    (
        "stored-then-500",
        "500, although the order is stored; a repeat gets `external_order_id_taken`, and the webhook comes",
    ),
    (
        "answer-lost",
        "no answer, although the order is stored: the connection is closed, of which a proxy may make a 502",
    ),
    (
        "limited-first",
        "429 with `Retry-After: 2` until 2 s are over, then 201",
    ),
];

/// What a partner sees after it has ordered the option of this name.
pub fn outcome(name: &str) -> Option<&'static str> {
    let found = OPTIONS.iter().find(|(option, _)| *option == name)?;
    Some(found.1)
}
