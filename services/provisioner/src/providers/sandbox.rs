//! The adapter of the sandbox, our own provider for tests. The sandbox speaks the protocol of
//! USIMSA, so only the settings of the account are here.

use super::{
    account::{KnownProvider, Setting},
    usimsa,
};

pub(super) const KNOWN: KnownProvider = KnownProvider {
    name: "sandbox",
    heading: "Provider `sandbox`",
    settings: &[
        Setting {
            variable: "SANDBOX_URL",
            option: "sandbox-url",
            help: "Base URL of the sandbox, for example `http://sandbox:8090`",
        },
        Setting {
            variable: "SANDBOX_ACCESS_KEY",
            option: "sandbox-access-key",
            help: "Access key of our account at the sandbox",
        },
        Setting {
            variable: "SANDBOX_SECRET_KEY",
            option: "sandbox-secret-key",
            help: "Secret key of our account at the sandbox, Base64",
        },
        Setting::callback_token("SANDBOX_CALLBACK_TOKEN", "sandbox-callback-token"),
    ],
    connect: |account, paced| usimsa::adapter(account, paced, usimsa::Dialect::Sandbox),
};
