//! What the command line shows and does, as JSON. Changes take JSON only, which no form of another site can send.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use outboxd_store::{KeySummary, MessageDetail, MessageSummary};
use serde::Deserialize;
use serde_json::json;

use super::actions::{self, Action, KeyAction, TopicAction};
use super::error::Problem;
use super::query::{ActRequest, KeysQuery, ListQuery, parse_id};
use super::topics::{self, Topic};
use super::{Admin, RelayInfo};
use crate::bulk::Done;
use crate::metrics::Failure;
use crate::plugin::PluginInfo;

/// Messages in one answer: the default, and at most.
const LIMIT: u32 = 100;
const LIMIT_MAX: u32 = 1000;

pub fn router() -> Router<Admin> {
    let api = Router::new()
        .route("/stats", get(stats))
        .route("/relay", get(relay))
        .route("/plugins", get(plugins))
        .route("/failures", get(failures))
        .route("/messages", get(list))
        .route("/messages/{id}", get(show))
        .route("/messages/actions/{action}", post(act))
        .route("/topics/actions/{action}", post(act_on_topic))
        .route("/keys", get(keys))
        .route("/keys/actions/{action}", post(act_on_key))
        .fallback(|| async { Problem::Missing("the API has no such path".into()) });
    Router::new().nest("/api", api)
}

type Answer<T> = Result<Json<T>, Problem>;

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = match self.changed() {
            0 => json!({ "error": self.text() }),
            changed => json!({ "error": self.text(), "changed": changed }),
        };
        (self.status(), Json(body)).into_response()
    }
}

async fn stats(State(admin): State<Admin>) -> Json<Vec<Topic>> {
    Json(topics::by_name(&admin))
}

async fn relay(State(admin): State<Admin>) -> Json<RelayInfo> {
    Json(admin.relay)
}

async fn plugins(State(admin): State<Admin>) -> Json<Vec<PluginInfo>> {
    Json((admin.plugins)())
}

async fn failures(State(admin): State<Admin>) -> Json<Vec<Failure>> {
    Json(admin.recent.failures())
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<u32>,
}

async fn list(
    State(admin): State<Admin>,
    query: Result<Query<ListQuery>, QueryRejection>,
    limit: Result<Query<Limit>, QueryRejection>,
) -> Answer<Vec<MessageSummary>> {
    let (Query(query), Query(Limit { limit })) = (query?, limit?);
    let (filter, after) = query.filter()?;
    Ok(Json(admin.store.list(&filter, after, limit.unwrap_or(LIMIT).min(LIMIT_MAX)).await?))
}

async fn keys(
    State(admin): State<Admin>,
    query: Result<Query<KeysQuery>, QueryRejection>,
    limit: Result<Query<Limit>, QueryRejection>,
) -> Answer<Vec<KeySummary>> {
    let (Query(query), Query(Limit { limit })) = (query?, limit?);
    Ok(Json(admin.store.keys(&query.filter()?, limit.unwrap_or(LIMIT).min(LIMIT_MAX)).await?))
}

async fn show(State(admin): State<Admin>, id: Result<Path<String>, PathRejection>) -> Answer<MessageDetail> {
    let Path(id) = id?;
    let message = admin.store.show(parse_id(&id)?).await?;
    message.map(Json).ok_or_else(|| Problem::Missing(format!("there is no message {id}")))
}

async fn act(
    State(admin): State<Admin>,
    action: Result<Path<Action>, PathRejection>,
    request: Result<Json<ActRequest>, JsonRejection>,
) -> Answer<Done> {
    let (Path(action), Json(asked)) = (action?, request?);
    actions::act(&admin, action, asked.selection()?).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicRequest {
    topic: String,
}

async fn act_on_topic(
    State(admin): State<Admin>,
    action: Result<Path<TopicAction>, PathRejection>,
    request: Result<Json<TopicRequest>, JsonRejection>,
) -> Answer<Done> {
    let (Path(action), Json(asked)) = (action?, request?);
    actions::act_on_topic(&admin, action, &asked.topic).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    topic: String,
    key: String,
}

async fn act_on_key(
    State(admin): State<Admin>,
    action: Result<Path<KeyAction>, PathRejection>,
    request: Result<Json<KeyRequest>, JsonRejection>,
) -> Answer<Done> {
    let (Path(action), Json(asked)) = (action?, request?);
    actions::act_on_key(&admin, action, &asked.topic, &asked.key).await.map(Json)
}
