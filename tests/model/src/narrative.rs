//! Steps in words.

use crate::{
    actions::{Action, Does, Found},
    state::{Ingress, Job, Settlement, State, Work},
};

/// A path, step by step.
pub fn tell(path: &[(State, Option<Action>)]) -> Vec<String> {
    let mut names = ["provisioner A", "provisioner B"];
    let mut steps = Vec::new();
    for (index, (state, action)) in path.iter().enumerate() {
        let Some(action) = action else { continue };
        steps.push(step(state, action, names));
        let (Some((next, _)), [first, second]) = (path.get(index + 1), state.provisioners) else {
            continue;
        };
        // Provisioners are sorted after each step; an idle one may have changed its index.
        let stayed = match actor(action) {
            Some(0) => next.provisioners[1] == second,
            Some(_) => next.provisioners[0] == first,
            None => next.provisioners[0] == first || next.provisioners[1] == second,
        };
        let moved = next.provisioners[0] == second || next.provisioners[1] == first;
        if moved && !stayed {
            names.swap(0, 1);
        }
    }
    steps
}

/// The provisioner that acts.
fn actor(action: &Action) -> Option<usize> {
    match *action {
        Action::TakeJob(by, _)
        | Action::TakeDue(by, _)
        | Action::LookUp(by, ..)
        | Action::Collect(by, _)
        | Action::StartClock(by)
        | Action::Send(by)
        | Action::Abandon(by)
        | Action::TimeOut(by)
        | Action::Record(by)
        | Action::Claim(by)
        | Action::Release(by)
        | Action::LoseRelease(by)
        | Action::Announce(by)
        | Action::CrashProvisioner(by) => Some(by),
        _ => None,
    }
}

fn step(state: &State, action: &Action, names: [&'static str; 2]) -> String {
    let one = |row: usize| placement(state, row);
    let name = |by: usize| names[by];
    match *action {
        Action::Store { waits: true } => "ingress stores the order and is going to wait for a verdict".into(),
        Action::Store { waits: false } => "ingress stores the order and doesn't wait for a verdict".into(),
        Action::Publish => "ingress publishes the jobs".into(),
        Action::Decide { refuses: true } => {
            "ingress ends its wait for verdicts and tries to refuse the order".into()
        }
        Action::Decide { refuses: false } => {
            "ingress ends its wait for verdicts and lets the order stand".into()
        }
        Action::Repeat => "the partner posts the order once more and is answered \"already taken\"".into(),
        Action::Answer if state.ingress == Ingress::Refusing => "the partner is answered 422".into(),
        Action::Answer => "the partner is answered 201".into(),
        Action::GiveUp => "ingress sends no response: the partner hung up, or answer_by has passed".into(),
        Action::AnswerBy => "answer_by passes".into(),
        Action::Tick => "SETTLE/2 passes".into(),
        Action::LoseJob(row) => format!("the stream loses the job of {}, or has it acknowledged", one(row)),
        Action::LoseEvent(row) => format!(
            "the stream loses the readiness event of {}, or has it acknowledged",
            one(row)
        ),
        Action::SweepPlacement(row) => format!("the sweep gives {} a due row", one(row)),
        Action::SweepDelivery(row) => format!("the sweep gives the delivery of {} a due row", one(row)),
        Action::TakeJob(by, row) => format!("{} gets the job of {}", name(by), one(row)),
        Action::Claim(by) => format!("{} claims {}", name(by), work(state, by)),
        Action::TakeDue(by, row) => format!("{} claims {}, which is due", name(by), one(row)),
        Action::LookUp(by, row, found) => {
            let found = match found {
                Found::Purchase { ready: true } => "finds the purchase and its profile",
                Found::Purchase { ready: false } => "finds the purchase, without its profile",
                Found::Nothing => "learns that there is no such purchase",
                Found::Unknown => "gets no definite response, and it is overdue",
            };
            format!(
                "{} claims {}, which is due, looks it up and {found}",
                name(by),
                one(row)
            )
        }
        Action::Collect(by, row) => format!(
            "{} claims {}, which is due, and collects its profile",
            name(by),
            one(row)
        ),
        Action::StartClock(by) => format!("{} gets the response to its claim and counts from here", name(by)),
        Action::Send(by) => format!("{} sends the purchase of {}", name(by), work(state, by)),
        Action::Abandon(by) => format!("{} is too late and abandons {}", name(by), work(state, by)),
        Action::Arrive {
            request,
            does,
            answered,
        } => {
            let sent = state.requests[request];
            let does = match does {
                Does::Buy { ready: true } => "buys and has the profile",
                Does::Buy { ready: false } => "buys, the profile comes later",
                Does::Reject => "rejects it",
                Does::Defer => "is too busy",
            };
            let answer = if answered {
                "its response arrives"
            } else {
                "its response is lost"
            };
            let what = attempt(state, sent.row, sent.attempt);
            format!("the provider gets {what}: it {does}; {answer}")
        }
        Action::Show(request) => {
            let shown = state.requests[request];
            let what = attempt(state, shown.row, shown.attempt);
            format!("the provider's look-ups show {what} from now on")
        }
        Action::Vanish { request, noticed } => {
            let lost = state.requests[request];
            let known = if noticed { ", as its sender notices" } else { "" };
            let what = attempt(state, lost.row, lost.attempt);
            format!("{what} never reaches the provider{known}")
        }
        Action::TimeOut(by) => format!(
            "{} stops waiting for the response to {}",
            name(by),
            work(state, by)
        ),
        Action::Record(by) => format!("{} records {}: {}", name(by), work(state, by), outcome(state, by)),
        Action::Release(by) => format!("{} is released, and publishes what it held back", name(by)),
        Action::LoseRelease(by) => format!("{} is never released: a message was lost", name(by)),
        Action::Announce(by) => format!("{} publishes that {} is ready", name(by), work(state, by)),
        Action::TakeEvent(row) => format!("the notifier gets the readiness event of {}", one(row)),
        Action::TakeDelivery(row) => {
            format!("the notifier claims the delivery of {}, which is due", one(row))
        }
        Action::Post { acknowledged: true } => "the webhook is sent, and the endpoint acknowledges it".into(),
        Action::Post { acknowledged: false } => "the webhook is sent, and the endpoint fails".into(),
        Action::RecordDelivery => "the notifier records the delivery".into(),
        Action::CrashIngress => "ingress dies".into(),
        Action::CrashProvisioner(by) => format!("{} dies, busy with {}", name(by), work(state, by)),
        Action::CrashNotifier => "the notifier dies".into(),
    }
}

fn placement(state: &State, row: usize) -> String {
    if state.rows.len() == 1 {
        "the placement".into()
    } else {
        format!("placement {}", row + 1)
    }
}

fn attempt(state: &State, row: usize, number: u32) -> String {
    format!("attempt {number} of {}", placement(state, row))
}

fn job(state: &State, by: usize) -> Option<Job> {
    match state.provisioners[by].work {
        Work::Idle | Work::Ticket { .. } => None,
        Work::Fresh { job, .. } | Work::Sent(job) | Work::Settling(job, _) | Work::Announcing(job) => {
            Some(job)
        }
    }
}

fn work(state: &State, by: usize) -> String {
    if let Work::Ticket { row, .. } = state.provisioners[by].work {
        return placement(state, row);
    }
    job(state, by).map_or_else(|| "nothing".into(), |job| attempt(state, job.row, job.attempt))
}

fn outcome(state: &State, by: usize) -> &'static str {
    let Work::Settling(_, outcome) = state.provisioners[by].work else {
        return "nothing";
    };
    match outcome {
        Settlement::Bought { ready: true } => "bought, with its profile",
        Settlement::Bought { ready: false } => "bought, its profile comes later",
        Settlement::Rejected => "rejected by the provider",
        Settlement::NotSent => "certainly not sent",
        Settlement::Busy => "not bought, the provider was busy",
        Settlement::NotFound { settled: true } => "not found, and settled",
        Settlement::NotFound { settled: false } => "not found, too early to tell",
        Settlement::Hopeless => "parked, its outcome is unknown",
    }
}
