//! The page for people: rendered here, whole without script; the little script only refreshes what is on the screen.
//! Every text goes through the template's escaping, and forms are answered by 303 so that a reload repeats nothing.

mod forms;
mod keys;
mod layout;
mod messages;
mod overview;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::html;

use super::Admin;
use super::error::Problem;
use layout::page;

pub fn router() -> Router<Admin> {
    let file = |kind: &'static str, text: &'static str| get(move || async move { ([(CONTENT_TYPE, kind)], text) });
    Router::new()
        .route("/", get(overview::show))
        .route("/messages", get(messages::list))
        .route("/messages/{id}", get(messages::show))
        .route("/keys", get(keys::show))
        .route("/do/messages/{action}", post(forms::act))
        .route("/do/topics/{action}", post(forms::act_on_topic))
        .route("/do/keys/{action}", post(forms::act_on_key))
        .route("/assets/style.css", file("text/css; charset=utf-8", include_str!("../assets/style.css")))
        .route("/assets/page.js", file("text/javascript; charset=utf-8", include_str!("../assets/page.js")))
        .route("/assets/icon.svg", file("image/svg+xml", include_str!("../assets/icon.svg")))
}

/// A problem as a page.
struct Trouble(Problem);

impl<E: Into<Problem>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Trouble(error.into())
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let body = html! {
            h1 { "That did not work" }
            p { (self.0.text()) }
            p { a href="/" { "Back to the overview" } }
        };
        (self.0.status(), page("outboxd", None, body)).into_response()
    }
}
