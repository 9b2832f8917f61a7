//! What the command line shows and does, as JSON. Changes take JSON only, which no form of another site can send.

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use outboxd_store::{MessageDetail, MessageFilter, MessageSummary};
use serde::Deserialize;

use super::Admin;
use super::actions::{self, Action, Done, TopicAction, Which, given, parse_id, parse_reason, parse_state};
use super::error::Problem;
use super::topics::{self, Topic};
use crate::metrics::Failure;
use crate::plugin::PluginInfo;

/// Messages in one answer: the default, and at most.
const LIMIT: u32 = 100;
const LIMIT_MAX: u32 = 1000;

pub fn router() -> Router<Admin> {
    Router::new()
        .route("/api/stats", get(stats))
        .route("/api/plugins", get(plugins))
        .route("/api/failures", get(failures))
        .route("/api/messages", get(list))
        .route("/api/messages/{id}", get(show))
        .route("/api/messages/actions/{action}", post(act))
        .route("/api/topics/actions/{action}", post(act_on_topic))
}

type Answer<T> = Result<Json<T>, Problem>;

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status(), Json(serde_json::json!({ "error": self.text() }))).into_response()
    }
}

async fn stats(State(admin): State<Admin>) -> Json<Vec<Topic>> {
    Json(topics::by_name(&admin))
}

async fn plugins(State(admin): State<Admin>) -> Json<Vec<PluginInfo>> {
    Json((admin.plugins)())
}

async fn failures(State(admin): State<Admin>) -> Json<Vec<Failure>> {
    Json(admin.recent.failures())
}

/// Which messages to list; `after` is the last id of the page before.
#[derive(Deserialize)]
struct ListQuery {
    state: Option<String>,
    topic: Option<String>,
    reason: Option<String>,
    after: Option<String>,
    limit: Option<u32>,
}

async fn list(
    State(admin): State<Admin>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Answer<Vec<MessageSummary>> {
    let Query(query) = query.map_err(|rejection| Problem::Asked(rejection.body_text()))?;
    let filter = MessageFilter {
        state: given(query.state).as_deref().map(parse_state).transpose()?,
        topic: given(query.topic),
        reason: given(query.reason).as_deref().map(parse_reason).transpose()?.map(|reason| reason.as_str().into()),
    };
    let after = given(query.after).as_deref().map(parse_id).transpose()?;
    let limit = query.limit.unwrap_or(LIMIT).min(LIMIT_MAX);
    Ok(Json(admin.store.list(&filter, after, limit).await?))
}

async fn show(State(admin): State<Admin>, Path(id): Path<String>) -> Answer<MessageDetail> {
    let message = admin.store.show(parse_id(&id)?).await?;
    message.map(Json).ok_or_else(|| Problem::Missing(format!("there is no message {id}")))
}

/// Which messages to change: ids, or all that match.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActRequest {
    #[serde(default)]
    ids: Vec<String>,
    topic: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    all: bool,
}

async fn act(
    State(admin): State<Admin>,
    Path(action): Path<Action>,
    request: Result<Json<ActRequest>, JsonRejection>,
) -> Answer<Done> {
    let Json(asked) = request.map_err(|rejection| Problem::Asked(rejection.body_text()))?;
    let which = Which::asked(&asked.ids, asked.topic, asked.reason, asked.all)?;
    actions::act(&admin, action, which).await.map(Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicRequest {
    topic: String,
}

async fn act_on_topic(
    State(admin): State<Admin>,
    Path(action): Path<TopicAction>,
    request: Result<Json<TopicRequest>, JsonRejection>,
) -> Answer<Done> {
    let Json(asked) = request.map_err(|rejection| Problem::Asked(rejection.body_text()))?;
    actions::act_on_topic(&admin, action, &asked.topic).await.map(Json)
}
