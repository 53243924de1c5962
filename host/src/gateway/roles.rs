//! `/api/roles`: named sets of permissions, which bindings use.

use axum::Json;
use http::StatusCode;
use monstrum_api::roles::{NewRole, Role, RoleChange, RoleList};
use monstrum_core::operations::{Admin, Operator, roles};
use monstrum_types::RoleId;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::Host;
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};

/// Creates a role
#[utoipa::path(post, path = "/api/roles", tag = "roles", request_body = NewRole,
    responses((status = 201, body = Role)))]
pub(super) async fn create(app: Host, caller: Admin, Input(new): Input<NewRole>) -> Created<Role> {
    Ok((StatusCode::CREATED, Json(roles::create(&app, &caller, new).await?)))
}

/// Lists roles
#[utoipa::path(get, path = "/api/roles", tag = "roles", params(PageQuery), responses((status = 200, body = RoleList)))]
pub(super) async fn list(app: Host, caller: Operator, Params(query): Params<PageQuery>) -> Answer<RoleList> {
    Ok(Json(roles::list(&app, &caller, &query.page()?).await?))
}

/// Shows a role
#[utoipa::path(get, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)),
    responses((status = 200, body = Role)))]
pub(super) async fn show(app: Host, caller: Operator, Id(id): Id<RoleId>) -> Versioned<Role> {
    Ok(versioned(roles::show(&app, &caller, id).await?))
}

/// Changes a role
#[utoipa::path(patch, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)), request_body = RoleChange,
    responses((status = 200, body = Role)))]
pub(super) async fn update(
    app: Host,
    caller: Admin,
    Id(id): Id<RoleId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<RoleChange>,
) -> Versioned<Role> {
    Ok(versioned(roles::update(&app, &caller, id, expected, change).await?))
}

/// Deletes a role; fails if a binding uses the role
#[utoipa::path(delete, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Admin, Id(id): Id<RoleId>, IfMatch(expected): IfMatch) -> Done {
    roles::delete(&app, &caller, id, expected).await?;
    Ok(StatusCode::NO_CONTENT)
}
