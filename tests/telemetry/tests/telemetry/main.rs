//! What the services tell of themselves, as a collector hears it.
