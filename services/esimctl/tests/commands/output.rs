//! What every command does with its output and its files, and who makes its changes. No command
//! here reaches a database.

use std::{
    fs::{self, File, OpenOptions},
    process::{Command, Output, Stdio},
};

fn esimctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esimctl"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Commands that print something without a database.
const PRINTING: [&[&str]; 5] = [
    &["--help"],
    &["partner", "--help"],
    &["--version"],
    &["config", "show"],
    &["completions", "bash"],
];

#[test]
fn a_closed_pipe_ends_quietly_and_a_failed_write_is_an_error() {
    for arguments in PRINTING {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = esimctl(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let text = said(&output);
        assert!(text.contains("cannot write to standard output"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");

        let mut command = esimctl(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(said(&output), "", "{arguments:?}");
        assert!(output.status.success(), "{arguments:?}");
    }
    let full: Stdio = File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into();
    let output = esimctl(&["partner", "list"]).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a panic would be 101");
}

#[test]
fn whoever_makes_a_change_must_be_named() {
    let open = ["provider", "open", "usimsa", "--for", "1h", "--reason", "x"];
    let confirmed = [
        "option",
        "set",
        "Japan",
        "--disabled",
        "--reason",
        "x",
        "--yes",
    ];
    for arguments in [&open[..], &confirmed] {
        for user in [None, Some(""), Some(" ")] {
            let mut command = esimctl(arguments);
            command.envs(user.map(|user| ("USER", user)));
            let output = command.output().unwrap();
            let text = said(&output);
            assert_eq!(output.status.code(), Some(2), "{text}");
            assert!(text.contains("--operator"), "{text}");
        }
        for (name, value) in [("USER", "ana"), ("ESIMCTL_OPERATOR", "ana")] {
            let output = esimctl(arguments).env(name, value).output().unwrap();
            let text = said(&output);
            assert!(text.contains("needs the database"), "{text}");
        }
    }
    let output = esimctl(&["option", "set", "Japan", "--disabled", "--dry-run"]).output();
    let text = said(&output.unwrap());
    assert!(text.contains("needs the database"), "{text}");
}

#[test]
fn files_are_read_as_editors_write_them_and_errors_name_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("options.json");
    let import = |text: &[u8]| {
        fs::write(&file, text).unwrap();
        let mut import = esimctl(&["option", "apply", "-f", file.to_str().unwrap()]);
        said(&import.env("ESIMCTL_OPERATOR", "ana").output().unwrap())
    };
    // It gets as far as the database, so the file was read.
    let text = import(b"\xef\xbb\xbf{\"options\": []}\r\n");
    assert!(text.contains("needs the database"), "{text}");
    let text = import(b"[\n {\"name\": 5}]");
    assert!(text.contains("options.json: line 2: options[0]"), "{text}");
    let text = import(b"\xff\xfe[\0]\0");
    assert!(
        text.contains("options.json is not UTF-8 but UTF-16"),
        "{text}"
    );
    let text = import(b"[\n\xe4]");
    assert!(
        text.contains("options.json, line 2: it is not UTF-8"),
        "{text}"
    );

    // A setting from a file: the URL is read, and nobody listens there.
    let url = folder.path().join("url");
    fs::write(
        &url,
        "\u{feff}\"postgres://esim:hush@127.0.0.1:1/esim\"\r\n",
    )
    .unwrap();
    let output = esimctl(&["partner", "list"])
        .env("DATABASE_URL_FILE", &url)
        .output()
        .unwrap();
    let text = said(&output);
    assert!(text.contains("cannot connect to PostgreSQL"), "{text}");
    assert!(!text.contains("hush"), "{text}");
    // What is wrong in a file is said of the file.
    for wrong in ["\u{feff}", "\u{feff}postgres:/", "hush@127.0.0.1:1/esim"] {
        fs::write(&url, wrong).unwrap();
        let list = esimctl(&["partner", "list"])
            .env("DATABASE_URL_FILE", &url)
            .output();
        let text = said(&list.unwrap());
        assert!(text.contains(url.to_str().unwrap()), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
}
