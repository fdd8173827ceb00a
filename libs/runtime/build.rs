//! Sets the commit for `version.rs`. It is the value of `GIT_COMMIT`, or else the commit of the
//! checkout.
//!
//! A development build has no commit unless `GIT_COMMIT` is set, because otherwise each commit
//! would recompile every crate that depends on this one.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=GIT_COMMIT");
    let named = env::var("GIT_COMMIT")
        .ok()
        .filter(|commit| !commit.trim().is_empty());
    let released = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let build = match named.or_else(|| released.then(checked_out).flatten()) {
        Some(commit) => {
            println!("cargo::rustc-env=BUILD_COMMIT={}", commit.trim());
            format!("commit {}", commit.trim())
        }
        None if released => "commit unknown".to_owned(),
        None => "development build".to_owned(),
    };
    println!("cargo::rustc-env=BUILD={build}");
}

/// The commit of this checkout, followed by `-dirty` if files differ from it.
fn checked_out() -> Option<String> {
    let folder = PathBuf::from(git(&["rev-parse", "--absolute-git-dir"])?);
    let common = PathBuf::from(git(&[
        "rev-parse",
        "--path-format=absolute",
        "--git-common-dir",
    ])?);
    watch(&folder.join("HEAD"));
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
        watch(&common.join(branch));
        watch(&common.join("packed-refs"));
    }
    git(&[
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ])
}

/// Runs this script again when the file changes. A file that does not exist is left out, because
/// Cargo would run the script at every build.
fn watch(file: &Path) {
    if file.exists() {
        println!("cargo::rerun-if-changed={}", file.display());
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
