//! The state of the further protocols.

use std::sync::Arc;

use axum::extract::FromRef;
use sandbox::{Sandbox, channel::CallbackChannel};

/// What the handlers of the further protocols share.
#[derive(Clone)]
pub(crate) struct Upstreams {
    pub(crate) sandbox: Sandbox,
    /// The token of the Airalo protocol. It ends with the process, as a token ends some day.
    pub(crate) token: Arc<str>,
    /// Where the callbacks of the protocol of eSIM Access go. That of Airalo has none.
    pub(crate) esim_access: Option<Arc<CallbackChannel>>,
}

impl FromRef<Upstreams> for Sandbox {
    fn from_ref(upstreams: &Upstreams) -> Self {
        upstreams.sandbox.clone()
    }
}
