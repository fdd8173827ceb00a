//! A new migration file recompiles this crate: `sqlx::migrate!` alone only tracks the files it
//! knows.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
