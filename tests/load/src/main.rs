//! Load generator and webhook sink in one process.
//!
//! # What is measured
//! - **Accepted orders/s**: 201 responses read within the window (`--seconds`, from the first send), divided
//!   by its length.
//! - **Webhooks/s**: first webhooks of topups that arrived within the window, divided by its length.
//! - **Drain/s**: see `--mode drain` below.
//! - **Answer latency**: from the send until the end of the response. In the open loop it counts from the
//!   *intended* send, so a stalled generator does not hide waiting time (coordinated omission). It includes
//!   the timer's granularity of 1 ms.
//! - **Order-to-webhook latency**: from the same moment until the sink read the topup's first webhook; one
//!   value per topup.
//! - **Processor time**: user and system time of each process and its children, from before the first send
//!   until the last webhook. Per order, it is divided by the accepted orders.
//! - **Peak memory**: see [`system::Usage`].
//! - **pgbench**: see [`pgbench`]; rates are also given as a ratio to it.
//! - **Verdicts**: how many of them ingress waited for, by its own metric. A run with waits and a run without
//!   cannot be compared.
//!
//! # Modes
//! - `accept`: a connection sends its next order after the response to the last one. Orders that are accepted
//!   faster than delivered queue and drain afterwards, so order-to-webhook latency measures that queue, not
//!   the pipeline.
//! - `deliver`: the same, but a connection waits while `--outstanding` units have no webhook. The pipeline
//!   stays busy and no queue grows, so webhooks/s is the sustained rate, and latency is about outstanding /
//!   rate.
//! - `drain`: the provisioner is paused while `--backlog` units are accepted. Then it resumes, and drain/s is
//!   the rate of webhooks between the first and the last twentieth.
//!
//! All modes end when every accepted topup's webhook arrived, when none arrived for `--patience`, or after 10
//! min. SIGINT ends the sending, not the wait for webhooks. With `--rate` and in the steps of `--ladder`,
//! sending never waits: the loop is open.
//!
//! One thread, no HTTP library and no checks in the sink: the generator shares the machine with the measured
//! system.

mod beside;
mod book;
mod chart;
mod compare;
mod document;
mod fill;
mod generator;
mod grow;
mod ladder;
mod measurement;
mod pgbench;
mod report;
mod run;
mod settings;
mod sink;
mod system;
mod verdicts;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    measurement::main().unwrap_or_else(|error| {
        eprintln!("load: {error:#}");
        ExitCode::FAILURE
    })
}
