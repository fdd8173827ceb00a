//! The figures of the charts as CSV, in UTC.

use axum::{extract::State, response::Response};
use store::figures::{Measure, Within};

use crate::{
    App,
    access::{Viewer, Visit},
    looks::Range,
    pages::lists,
    problem::Problem,
};

/// What has a column.
const MEASURES: [Measure; 10] = [
    Measure::Answered,
    Measure::Refused,
    Measure::Bought,
    Measure::Ready,
    Measure::Parked,
    Measure::Failed,
    Measure::Call,
    Measure::Attempt,
    Measure::Delivered,
    Measure::Exhausted,
];

pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let range = Range::parse(visit.query.get("range"));
    let all = app.figures().bars(app.database(), range).await?;
    let names = MEASURES.iter().flat_map(|measure| {
        let name = measure.as_str();
        ["", "_failed", "_p50_within_s", "_p95_within_s"].map(|of| format!("{name}{of}"))
    });
    let head = ["from_utc".to_owned(), "seconds".to_owned()];
    let head: Vec<String> = head.into_iter().chain(names).collect();
    // The upper limit of what is known; beyond the last one there is none.
    let within = |value: Option<Within>| lists::or_empty(value.and_then(|within| within.most));
    let rows = all.iter().map(|(at, counts)| {
        let mut fields = vec![lists::instant(*at), range.step().to_string()];
        for measure in MEASURES {
            let count = counts.get(&measure).cloned().unwrap_or_default();
            fields.extend([
                count.n.to_string(),
                count.failed.to_string(),
                within(count.within(0.5)),
                within(count.within(0.95)),
            ]);
        }
        fields
    });
    Ok(lists::csv(&format!("figures-{}", range.key()), &head, rows))
}
