//! `/api/me` names the operations that a key may use. They are compared with the answers of the routes.

use anyhow::Result;
use serde_json::{Value, json};
use support::Api;

use super::Fresh;
use crate::world::text;

/// Returns the id of the operation of a route.
pub(super) fn operation(document: &Value, method: &str, path: &str) -> String {
    text(&document["paths"][path][method.to_lowercase()]["operationId"]).to_owned()
}

/// Fails unless `/api/me` names exactly the operations `allowed`.
pub(super) async fn names(api: &Api, mut allowed: Vec<String>) -> Result<()> {
    allowed.sort();
    let (_, me) = api.get("/api/me").await?;
    assert_eq!(me["may"], json!(allowed), "{}", me["kind"]);
    Ok(())
}

/// Compares the operations of each kind of key with the answers in the table of all routes.
pub(super) async fn of_table(fresh: &Fresh, document: &Value, table: &[String]) -> Result<()> {
    const OPERATOR: usize = 2;
    let bot_key = fresh.key_of(&fresh.world.bot).await?;
    let keys = [&fresh.world.api, &fresh.admin, &fresh.operator, &fresh.approver, &bot_key];
    for (column, api) in keys.into_iter().enumerate() {
        let allowed = table.iter().filter_map(|row| {
            let cells: Vec<&str> = row.split_whitespace().collect();
            // The resource of the request has a credential. An operator may delete a resource without one.
            // A request to a webhook needs no key, but a signature.
            let is_allowed = !matches!(cells[column + 4], "401" | "403")
                || cells[1] == "/hooks/{id}"
                || column == OPERATOR && cells[..2] == ["DELETE", "/api/resources/{id}"];
            is_allowed.then(|| operation(document, cells[0], cells[1]))
        });
        names(api, allowed.collect()).await?;
    }
    Ok(())
}
