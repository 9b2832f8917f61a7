//! Forms of the page: carried out, then 303 back to where the person was.

use axum::extract::rejection::{FormRejection, PathRejection};
use axum::extract::{Form, Path, State};
use axum::http::header::{LOCATION, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{Admin, Problem, Trouble};
use crate::admin::actions::{self, Action, KeyAction, TopicAction};
use crate::admin::query::ActRequest;
use crate::bulk::Done;

/// Fields by name, as often as they were sent: the chosen messages all are `id`.
type Fields = Form<Vec<(String, String)>>;

pub async fn act(
    State(admin): State<Admin>,
    action: Result<Path<Action>, PathRejection>,
    headers: HeaderMap,
    fields: Result<Fields, FormRejection>,
) -> Result<Response, Trouble> {
    let (Path(action), Form(fields)) = (action?, from_browser(&headers, fields)?);
    let one = |name: &'static str| values(&fields, name).next().filter(|text| !text.is_empty()).map(str::to_owned);
    let asked = ActRequest {
        ids: values(&fields, "id").map(str::to_owned).collect(),
        topic: one("topic"),
        reason: one("reason"),
        all: one("all").is_some(),
    };
    let done = actions::act(&admin, action, asked.selection()?).await?;
    Ok(back(&fields, action, done))
}

pub async fn act_on_topic(
    State(admin): State<Admin>,
    action: Result<Path<TopicAction>, PathRejection>,
    headers: HeaderMap,
    fields: Result<Fields, FormRejection>,
) -> Result<Response, Trouble> {
    let (Path(action), Form(fields)) = (action?, from_browser(&headers, fields)?);
    let topic = values(&fields, "topic").next().unwrap_or_default();
    let done = actions::act_on_topic(&admin, action, topic).await?;
    Ok(back(&fields, action, done))
}

pub async fn act_on_key(
    State(admin): State<Admin>,
    action: Result<Path<KeyAction>, PathRejection>,
    headers: HeaderMap,
    fields: Result<Fields, FormRejection>,
) -> Result<Response, Trouble> {
    let (Path(action), Form(fields)) = (action?, from_browser(&headers, fields)?);
    let value = |name| values(&fields, name).next().unwrap_or_default();
    let done = actions::act_on_key(&admin, action, value("topic"), value("key")).await?;
    Ok(back(&fields, action, done))
}

/// A form comes from a browser, and every browser names the site of the page that posts. One that hides it cannot be told from
/// a page elsewhere; what it names has been checked before. Programs use the API.
fn from_browser(headers: &HeaderMap, fields: Result<Fields, FormRejection>) -> Result<Fields, Problem> {
    if !headers.contains_key(ORIGIN) && !headers.contains_key("sec-fetch-site") {
        return Err(Problem::Asked("the form does not say where it comes from; programs use /api".into()));
    }
    Ok(fields?)
}

fn values<'a>(fields: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    fields.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
}

/// Back to the page of this server that the form names, with a notice.
fn back(fields: &[(String, String)], action: impl Serialize, done: Done) -> Response {
    let own = |path: &&str| {
        let rest = path.strip_prefix('/');
        rest.is_some_and(|rest| !rest.starts_with('/'))
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    let path = values(fields, "back").next().filter(own).unwrap_or("/");
    let separator = if path.contains('?') { '&' } else { '?' };
    let action = serde_json::to_value(action).ok();
    let action = action.as_ref().and_then(|action| action.as_str()).unwrap_or_default();
    let to = format!("{path}{separator}done={action}&changed={}&more={}", done.changed, done.more);
    (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response()
}
