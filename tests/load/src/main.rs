//! Load generator and webhook sink in one process.
//!
//! # What is measured
//! - **Accepted orders/s**: 201 answers read within the window (`--seconds`, from the first send),
//!   divided by its length.
//! - **Webhooks/s**: first webhooks of topups that came within the window, divided by its length.
//! - **Drain/s**: see `--mode drain` below.
//! - **Answer latency**: from the send until the whole answer was read. In the open loop from the
//!   *intended* send, so a generator that stalls doesn't hide waiting time (coordinated omission);
//!   the timer's granularity of 1 ms is part of it.
//! - **Order-to-webhook latency**: from the same moment until the topup's first webhook was read by
//!   the sink; one value per topup.
//! - **Processor time**: user and system time of each process and its children, from before the
//!   first send until the last webhook; per order it is divided by the accepted orders.
//! - **Peak memory**: see [`system::Usage`].
//! - **pgbench**: see [`pgbench`]; rates are also given as a ratio to it.
//! - **Verdicts**: how many of them ingress waited for, by its own metric. A run that waits and one
//!   that doesn't can't be compared.
//!
//! # Modes
//! - `accept`: a connection sends its next order as soon as the last one is answered. Orders accepted
//!   faster than they are delivered queue up and drain afterwards, so order-to-webhook latency measures
//!   that queue, not the pipeline.
//! - `deliver`: the same, but a connection waits while `--outstanding` units have no webhook yet.
//!   The pipeline stays busy and no queue grows, so webhooks/s is what the pipeline sustains, and
//!   latency is about outstanding / rate.
//! - `drain`: the provisioner is paused while `--backlog` units are accepted. Then it resumes, and the
//!   rate of webhooks between the first and the last twentieth is drain/s.
//!
//! All end only when every accepted topup's webhook came, or none came for `--patience`, or after 10 min.
//! SIGINT ends the sending, not the waiting for webhooks.
//! With `--rate` and in the steps of `--ladder` nothing waits for anything: that is the point of an
//! open loop.
//!
//! One thread, no HTTP library and no checks in the sink: the generator shares the machine with what
//! it measures.

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
