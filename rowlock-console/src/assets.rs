//! The files that pages ask for. They are in the program.

use axum::Extension;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{StatusCode, Uri};

use crate::layout::refusal;
use crate::viewer::{Viewer, last_segment};

pub(crate) async fn file(Extension(viewer): Extension<Viewer>, uri: Uri) -> Response {
    let (media, text) = match last_segment(&uri) {
        "console.css" => (
            "text/css; charset=utf-8",
            include_str!("../assets/console.css"),
        ),
        "console.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../assets/console.js"),
        ),
        "icon.svg" => ("image/svg+xml", include_str!("../assets/icon.svg")),
        _ => return refusal(&viewer, StatusCode::NOT_FOUND, "There is no such file."),
    };
    ([(CONTENT_TYPE, media)], text).into_response()
}
