//! `esimctl status`: what waits, how long it has waited, when it is worked off, and the last hours.
//! The console's overview shows the same figures.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use store::{
    deliveries::endpoints::{self, Endpoint},
    operator::{
        figures::{self, Backlog, Drain, Figures, Queue},
        hourly::{self, Hour},
    },
};

use crate::{
    console::{Console, list},
    output::{Row, cells, or_dash, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl status
  esimctl status --over 30s --hours 24
  esimctl status --over 0s --json

The command looks twice, and estimates when a backlog is worked off from what became less in between. With `--over 0s` it
looks once and estimates nothing. Counts end at 100,000. The hours are hours of UTC; `done` and `failed` say what had become
of the purchases and webhooks of an hour a few seconds after they were stored, so what is in neither took longer.
Of webhook URLs only the host is shown, because partners put secrets into them; `esimctl endpoint list` has the URLs.";

#[derive(Args, Clone, Debug)]
pub struct Command {
    /// The time between the two looks, such as `5s`
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = runtime::config::duration)]
    over: Duration,
    /// How many hours to show
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..=744))]
    hours: i32,
}

/// A queue with its estimate.
struct Shown<'a> {
    queue: &'a Queue,
    backlog: Backlog,
    drain: Option<Drain>,
    /// The endpoint of a queue of webhooks. `None` if it was removed meanwhile.
    endpoint: Option<&'a Endpoint>,
}

pub async fn run(asked: &Command, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let first = figures::read(&mut connection).await?;
    let (now, earlier) = if asked.over.is_zero() {
        (first, None)
    } else {
        tokio::time::sleep(asked.over).await;
        (figures::read(&mut connection).await?, Some(first))
    };
    let hours = hourly::list(&mut connection, asked.hours).await?;
    let endpoints = endpoints::list(&mut connection, None).await?;
    let queues = shown(&now, earlier.as_ref(), &endpoints);
    let json: Vec<_> = queues.iter().map(as_json).collect();
    console.print(&json!({ "queues": json, "hours": hours }), || {
        let queues = list(&queues, "No provider and no endpoint has work.", row);
        let hours = list(&hours, "No hour has figures yet.", hour_row);
        format!("{queues}\n\n{hours}")
    })
}

fn shown<'a>(
    now: &'a Figures,
    earlier: Option<&Figures>,
    endpoints: &'a [Endpoint],
) -> Vec<Shown<'a>> {
    let endpoint = |queue: &Queue| match queue {
        Queue::Provider { .. } => None,
        Queue::Endpoint { endpoint_id, .. } => endpoints
            .iter()
            .find(|endpoint| endpoint.endpoint_id == *endpoint_id),
    };
    let queues = now.queues.iter().map(|(queue, backlog)| Shown {
        queue,
        backlog: *backlog,
        drain: earlier.map(|earlier| now.drain(queue, earlier)),
        endpoint: endpoint(queue),
    });
    queues.collect()
}

fn as_json(shown: &Shown<'_>) -> Value {
    let mut json = json!({ "queue": shown.queue, "backlog": shown.backlog, "drain": shown.drain });
    if let Some(endpoint) = shown.endpoint {
        json["partner"] = json!(endpoint.name);
        json["host"] = json!(endpoint.host());
        json["state"] = json!(endpoint.state);
    }
    json
}

fn row(shown: &Shown<'_>) -> Row<5> {
    let queue = match shown.queue {
        Queue::Provider { name } => format!("provider {name}"),
        Queue::Endpoint { endpoint_id, .. } => format!("endpoint {endpoint_id}"),
    };
    // An endpoint that is blocked or paused explains why its webhooks wait.
    let of = shown.endpoint.map(|one| {
        let state = one.state.replace('_', " ");
        let state = Some(state).filter(|state| state != "open");
        let state = state.map_or_else(String::new, |state| format!(" ({state})"));
        format!("{} at {}{state}", one.name, one.host())
    });
    let drain = match shown.drain {
        None | Some(Drain::Unknown) => "unknown".to_owned(),
        Some(Drain::Empty) => "-".to_owned(),
        Some(Drain::Never) => "does not become less".to_owned(),
        Some(Drain::Seconds { seconds }) => format!("about {seconds} s"),
    };
    [
        ("queue", queue),
        ("of", or_dash(of)),
        ("due", shown.backlog.due.to_string()),
        (
            "oldest overdue",
            format!("{:.0} s", shown.backlog.oldest_overdue),
        ),
        ("worked off in", drain),
    ]
}

fn hour_row(hour: &Hour) -> Row<5> {
    cells!(hour: hour = utc(hour.hour), stage, created, done, failed)
}
