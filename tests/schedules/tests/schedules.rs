//! Each scenario in `SCHEDULES` (10,000) schedules: half of them at random, and half by PCT, which
//! lets few tasks overtake each other and so finds what needs a certain order of few events. A
//! failure prints the schedule that repeats it, for `SCHEDULE=… cargo test … NAME`.

use schedules::scenarios::{answers, batches, commit, stage, tickets};
use shuttle::{
    Config, MaxSteps, Runner,
    scheduler::{PctScheduler, RandomScheduler},
};

/// The number of overtakings that PCT tries to find.
const DEPTH: usize = 3;

fn explore(scenario: fn()) {
    if let Ok(schedule) = std::env::var("SCHEDULE") {
        shuttle::replay(scenario, &schedule);
        return;
    }
    let schedules: usize = std::env::var("SCHEDULES").map_or(10_000, |number| {
        number.parse().expect("SCHEDULES must be a number")
    });
    let mut config = Config::new();
    // Whoever still waits after so many steps has been forgotten.
    config.max_steps = MaxSteps::FailAfter(100_000);
    let random = RandomScheduler::new(schedules.div_ceil(2));
    let ran = Runner::new(random, config.clone()).run(scenario);
    let pct = PctScheduler::new(DEPTH, schedules / 2);
    let ran = ran + Runner::new(pct, config).run(scenario);
    assert_eq!(ran, schedules);
}

#[test]
fn group_commit() {
    explore(commit::each_item_is_written_once_or_given_up);
}

#[test]
fn batcher() {
    explore(batches::a_stop_waits_until_each_item_is_sent_once_and_in_order);
}

#[test]
fn queues_and_permits() {
    explore(tickets::each_ticket_gets_its_permit_once_and_no_permit_is_lost);
}

#[test]
fn worker() {
    explore(stage::every_row_is_done_once);
}

#[test]
fn worker_that_stops() {
    explore(stage::a_stop_at_any_moment_ends_what_runs_and_leaves_the_rest);
}

#[test]
fn handshake() {
    explore(answers::readiness_follows_its_answer_once);
}
