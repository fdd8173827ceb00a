//! Fuzz targets for everything that reads bytes of partners, devices, providers and endpoints.
//! `FUZZ_TARGET` names one of [`targets::ALL`]; `tests/fuzz/run` builds and runs them.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Box<dyn Fn(&[u8]) + Send + Sync>> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    targets::named(&name)
        .unwrap_or_else(|| panic!("FUZZ_TARGET={name}: the targets are {:?}", targets::ALL))
});

fuzz_target!(|data: &[u8]| TARGET(data));
