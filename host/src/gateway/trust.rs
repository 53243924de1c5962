//! `/api/trust`: whose signature counts for which plugins. Root keys only.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_package::PublicKey;
use monstrum_store::TrustRow;
use monstrum_types::{TrustId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::gateway::changes::Change;
use crate::gateway::extract::{Faults, Id, Input, PageQuery, Params, Root, given};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use monstrum_core::app::App;

/// A key whose signature counts for some plugins.
#[derive(Serialize, ToSchema)]
pub struct Trust {
    pub id: TrustId,
    /// `ed25519:` and 44 characters of base64.
    pub public_key: String,
    /// A glob over the names of plugins.
    pub name_glob: String,
    /// A glob over the resource types that these plugins may bring or take over; `-` and `_` count as the same.
    pub type_glob: String,
    pub created_at: UtcMillis,
}

/// A page of trust.
#[derive(Serialize, ToSchema)]
pub struct TrustList {
    pub items: Vec<Trust>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTrust {
    /// As `monstrum plugin pack` prints it.
    public_key: String,
    /// Which plugins the key may sign, such as `github` or `acme-*`.
    name_glob: String,
    /// Which resource types these plugins may bring or take over, such as `github` or `acme-*`, where `-` and `_` count as
    /// the same. The same as `name_glob` where it is left out. Updates of a plugin that owns its type need no match.
    #[serde(default, deserialize_with = "given")]
    type_glob: Option<String>,
}

impl From<TrustRow> for Trust {
    fn from(row: TrustRow) -> Self {
        let TrustRow { id, public_key, name_glob, type_glob, created_at } = row;
        Trust { id, public_key, name_glob, type_glob, created_at }
    }
}

/// Lists whose signatures count
#[utoipa::path(get, path = "/api/trust", tag = "trust", params(PageQuery),
    responses((status = 200, body = TrustList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    _: Root,
    Params(query): Params<PageQuery>,
) -> Result<Json<TrustList>, Problem> {
    let listed = app.store.trust(&query.page()?).await?;
    let items = listed.items.into_iter().map(Trust::from).collect();
    Ok(Json(TrustList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Trusts a key to sign packages of some plugins
#[utoipa::path(post, path = "/api/trust", tag = "trust", request_body = NewTrust,
    responses((status = 201, body = Trust), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Input(new): Input<NewTrust>,
) -> Result<(StatusCode, Json<Trust>), Problem> {
    let mut faults = Faults::default();
    if let Err(error) = new.public_key.parse::<PublicKey>() {
        faults.add("/public_key", error.to_string());
    }
    rules::name(&mut faults, "/name_glob", &new.name_glob);
    if let Some(type_glob) = &new.type_glob {
        rules::name(&mut faults, "/type_glob", type_glob);
    }
    faults.check()?;
    let NewTrust { public_key, name_glob, type_glob } = new;
    let type_glob = type_glob.unwrap_or_else(|| name_glob.clone());
    let row = TrustRow { id: TrustId::new(), public_key, name_glob, type_glob, created_at: app.clock.now() };
    let made = async { Ok(app.store.insert_trust(&row).await?) };
    Change::new("trust.create", &row.id).to(&Trust::from(row.clone())).made(&app, &caller, made).await?;
    let TrustRow { id, public_key, name_glob, type_glob, .. } = &row;
    tracing::info!(trust.id = %id, public_key, name_glob, type_glob, "a key is trusted");
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// Trusts a key no longer; what it has signed and is installed stays
#[utoipa::path(delete, path = "/api/trust/{id}", tag = "trust", params(("id" = TrustId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Id(id): Id<TrustId>,
) -> Result<StatusCode, Problem> {
    let before = app.store.trust_of_id(id).await?.ok_or_else(|| Problem::not_found("trust"))?;
    let made = async { if app.store.delete_trust(id).await? { Ok(()) } else { Err(Problem::not_found("trust")) } };
    Change::new("trust.delete", &id).from(&Trust::from(before)).made(&app, &caller, made).await?;
    tracing::info!(trust.id = %id, "a key is trusted no longer");
    Ok(StatusCode::NO_CONTENT)
}
