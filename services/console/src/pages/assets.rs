//! The style sheet, the icon and the scripts. They hold nothing secret, so they need no session.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

use crate::{problem::Problem, view::PathArgument};

/// Each file: its name, its type and its content.
const FILES: [(&str, &str, &str); 5] = [
    (
        "console.css",
        "text/css; charset=utf-8",
        include_str!("../../assets/console.css"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_str!("../../assets/icon.svg"),
    ),
    (
        "console.js",
        "text/javascript; charset=utf-8",
        include_str!("../../assets/console.js"),
    ),
    (
        "set-up.js",
        "text/javascript; charset=utf-8",
        include_str!("../../assets/set-up.js"),
    ),
    // The unchanged file of the npm package htmx.org; its licence is beside it.
    (
        "htmx-2.0.11.min.js",
        "text/javascript; charset=utf-8",
        include_str!("../../assets/htmx-2.0.11.min.js"),
    ),
];

pub(crate) async fn show(PathArgument(file): PathArgument) -> Result<Response, Problem> {
    let found = FILES.iter().find(|(name, ..)| *name == file);
    let Some((_, kind, content)) = found else {
        return Err(Problem::NotFound("The console has no such file.".into()));
    };
    // Short, because the style sheet keeps its name when its content changes.
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CACHE_CONTROL, "max-age=300"),
    ];
    Ok((headers, *content).into_response())
}
