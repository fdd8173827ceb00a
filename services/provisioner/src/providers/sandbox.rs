//! The adapter of the sandbox, our own provider for tests. The sandbox speaks the protocol of
//! USIMSA, so only the settings of the account are here.

use super::{
    account::{AccountSetting, KnownProvider},
    usimsa,
};

pub(super) const KNOWN: KnownProvider = KnownProvider {
    name: "sandbox",
    heading: "Provider `sandbox`",
    settings: &[
        AccountSetting {
            variable: "SANDBOX_URL",
            option: "sandbox-url",
            help: "Base URL of the sandbox, for example `http://sandbox:8090`",
        },
        AccountSetting {
            variable: "SANDBOX_ACCESS_KEY",
            option: "sandbox-access-key",
            help: "Access key of our account at the sandbox",
        },
        AccountSetting {
            variable: "SANDBOX_SECRET_KEY",
            option: "sandbox-secret-key",
            help: "Secret key of our account at the sandbox, Base64",
        },
        AccountSetting::callback_token("SANDBOX_CALLBACK_TOKEN", "sandbox-callback-token"),
    ],
    connect: |account, paced| usimsa::adapter(account, paced, usimsa::Dialect::Sandbox),
};
