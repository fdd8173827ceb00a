//! The programs of a stack, and the keys by which the sandbox knows ours.

pub const SANDBOX_SECRET_KEY: &str = "c2FuZGJveC1zZWNyZXQta2V5LW9mLXRoZS10ZXN0cw==";
pub const SANDBOX_ACCESS_KEY: &str = "sandbox-test";
pub(super) const SANDBOX: &str = "sandbox";

/// The token in the URL of the sandbox's callbacks, see [`super::Builder::callbacks`].
pub const CALLBACK_TOKEN: &str = "callback-token-that-nobody-else-has";

/// A program of the stack: the sandbox provider, or one of the three stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Sandbox,
    Ingress,
    Provisioner,
    Notifier,
}

impl Stage {
    pub const ALL: [Self; 4] = [
        Self::Sandbox,
        Self::Ingress,
        Self::Provisioner,
        Self::Notifier,
    ];
    /// The stages of the pipeline, without the sandbox.
    pub const OURS: [Self; 3] = [Self::Ingress, Self::Provisioner, Self::Notifier];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Ingress => "ingress",
            Self::Provisioner => "provisioner",
            Self::Notifier => "notifier",
        }
    }
}

/// The program that sells as this provider: the sandbox, or the one for tests, which speaks further
/// protocols.
pub(super) fn seller(provider: &str) -> &'static str {
    if matches!(provider, SANDBOX | "usimsa") {
        "sandbox"
    } else {
        "upstreams"
    }
}
