//! `sandbox catalogue` when its output cannot be written: a closed pipe, as after `head`, ends it
//! quietly, and a full disk is an error, because half a catalogue must not be imported.

use std::{
    fs::OpenOptions,
    process::{Command, Stdio},
};

#[test]
fn a_closed_pipe_ends_quietly_and_a_failed_write_is_an_error() {
    let mut sandbox = Command::new(env!("CARGO_BIN_EXE_sandbox"));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    sandbox
        .arg("catalogue")
        .env_clear()
        .stdout(full)
        .stderr(Stdio::piped());
    let output = sandbox.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write to standard output"), "{text}");

    sandbox.stdout(Stdio::piped());
    let mut child = sandbox.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}
