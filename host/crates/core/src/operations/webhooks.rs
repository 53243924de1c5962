//! Webhooks: routes by which systems outside make events. An admin decides which system may make which events; the secret
//! is shown once.

mod input;
mod receiving;

use monstrum_api::webhooks::{
    NewWebhook, ShownWebhook, Webhook, WebhookChange, WebhookList, WebhookVerify, WebhookVerifyKind,
};
use monstrum_store::{InsertedWebhook, Page, WebhookKind, WebhookRow};
use monstrum_types::{Secret, WebhookId};

use super::change::{Change, changed_at};
use super::{Admin, Caller, Expected, OperationError, list};
use crate::app::App;
use crate::webhooks::{generate_secret, seal_secret};

pub use receiving::{BODY_BYTES_MAX, Received, receive};

/// The maximum number of webhooks in a workspace. Each host keeps them in memory, about 1 KiB each.
const WEBHOOKS_MAX: i64 = 200;

/// The address of this server, as it is known to the server.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// The URL, without a slash at its end.
    pub base_url: String,
    /// Whether the URL is that of a setting. Otherwise, it is the address on which the server listens.
    pub is_public: bool,
}

impl ServerAddress {
    fn of_webhook(&self, id: WebhookId) -> String {
        format!("{}/hooks/{id}", self.base_url)
    }

    fn warnings(&self) -> Vec<String> {
        let unreachable = "systems outside may not reach this URL: start the server with --public-url";
        if self.is_public { Vec::new() } else { vec![unreachable.to_owned()] }
    }

    fn view(&self, row: &WebhookRow) -> Webhook {
        let kind = match row.kind {
            WebhookKind::HmacSha256 => WebhookVerifyKind::HmacSha256,
            WebhookKind::Token => WebhookVerifyKind::Token,
        };
        Webhook {
            id: row.id,
            url: self.of_webhook(row.id),
            name: row.name.clone(),
            event: row.event.clone(),
            bot_id: row.bot_id,
            verify: WebhookVerify { kind, header: row.signature_header.clone(), prefix: row.signature_prefix.clone() },
            headers: header_names(row),
            dedupe_header: row.dedupe_header.clone(),
            secret_created_at: row.secret_created_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }

    fn with_secret(&self, row: &WebhookRow, secret: &Secret) -> ShownWebhook {
        ShownWebhook { webhook: self.view(row), secret: secret.expose().to_owned(), warnings: self.warnings() }
    }
}

/// Returns the names of the headers that become part of the events of a webhook.
fn header_names(row: &WebhookRow) -> Vec<String> {
    let names = row.headers.as_array().into_iter().flatten();
    names.filter_map(serde_json::Value::as_str).map(str::to_owned).collect()
}

/// Creates a webhook. Only this answer shows the secret.
///
/// # Errors
///
/// The input is invalid, the name is used, or the workspace has too many webhooks.
pub async fn create(
    app: &App,
    caller: &Admin,
    address: &ServerAddress,
    new: NewWebhook,
) -> Result<ShownWebhook, OperationError> {
    let mut row = input::row(new, caller.workspace, app.clock.now());
    input::check(app, &row, None).await?;
    let secret = generate_secret().map_err(OperationError::internal)?;
    row.sealed = sealed(app, &row, &secret)?;
    let insert = async {
        match app.store.insert_webhook(&row, WEBHOOKS_MAX).await? {
            InsertedWebhook::Inserted => Ok(()),
            InsertedWebhook::Full => Err(OperationError::conflict(format!(
                "the workspace has {WEBHOOKS_MAX} webhooks, which is the maximum; delete one first"
            ))),
        }
    };
    let change = Change::new("webhook.create", &row.id).of_bot(row.bot_id).to(&address.view(&row));
    change.apply(app, caller, insert).await?;
    Ok(address.with_secret(&row, &secret))
}

/// Lists webhooks.
///
/// # Errors
///
/// The database failed.
pub async fn list(
    app: &App,
    caller: &Admin,
    address: &ServerAddress,
    page: &Page<WebhookId>,
) -> Result<WebhookList, OperationError> {
    Ok(list::page(app.store.webhooks(caller.workspace, page).await?, |row| address.view(&row)))
}

/// Shows a webhook.
///
/// # Errors
///
/// The webhook does not exist.
pub async fn show(
    app: &App,
    caller: &Admin,
    address: &ServerAddress,
    id: WebhookId,
) -> Result<Webhook, OperationError> {
    Ok(address.view(&webhook(app, caller, id).await?))
}

/// Changes a webhook. Its secret stays as it is.
///
/// # Errors
///
/// The input is invalid, or the webhook does not exist or does not have the expected version.
pub async fn update(
    app: &App,
    caller: &Admin,
    address: &ServerAddress,
    (id, expected): (WebhookId, Expected),
    change: WebhookChange,
) -> Result<Webhook, OperationError> {
    let before = webhook(app, caller, id).await?;
    expected.check(before.updated_at)?;
    let mut row = WebhookRow { updated_at: changed_at(app, before.updated_at), ..before.clone() };
    input::change(&mut row, change);
    input::check(app, &row, Some(&before)).await?;
    let recorded = Change::new("webhook.update", &id).of_bot(row.bot_id).from(&address.view(&before));
    let recorded = recorded.to(&address.view(&row)).at(expected);
    recorded.update(app, caller, app.store.update_webhook(&row, before.updated_at)).await?;
    Ok(address.view(&row))
}

/// Gives a webhook a new secret. The old secret ends at once, and only this answer shows the new one.
///
/// # Errors
///
/// The webhook does not exist, or another request changed it at the same time.
pub async fn rotate(
    app: &App,
    caller: &Admin,
    address: &ServerAddress,
    id: WebhookId,
) -> Result<ShownWebhook, OperationError> {
    let before = webhook(app, caller, id).await?;
    let secret = generate_secret().map_err(OperationError::internal)?;
    let updated_at = changed_at(app, before.updated_at);
    // The time identifies the secret, so no two secrets of a webhook have the same one.
    let mut row = WebhookRow { updated_at, secret_created_at: updated_at, ..before.clone() };
    row.sealed = sealed(app, &row, &secret)?;
    let change = Change::new("webhook.rotate", &id).of_bot(row.bot_id).from(&address.view(&before));
    let rotate = app.store.rotate_webhook(&row, before.updated_at);
    change.to(&address.view(&row)).update(app, caller, rotate).await?;
    Ok(address.with_secret(&row, &secret))
}

/// Deletes a webhook. The events that it has made are kept.
///
/// # Errors
///
/// The webhook does not exist or does not have the expected version.
pub async fn delete(
    app: &App,
    caller: &Admin,
    address: &ServerAddress,
    (id, expected): (WebhookId, Expected),
) -> Result<(), OperationError> {
    let before = webhook(app, caller, id).await?;
    expected.check(before.updated_at)?;
    let change = Change::new("webhook.delete", &id).of_bot(before.bot_id).from(&address.view(&before)).at(expected);
    change.update(app, caller, app.store.delete_webhook(caller.workspace, id, before.updated_at)).await
}

async fn webhook(app: &App, caller: &Caller, id: WebhookId) -> Result<WebhookRow, OperationError> {
    let row = app.store.webhook(caller.workspace, id).await?;
    row.ok_or_else(|| OperationError::not_found("webhook"))
}

fn sealed(app: &App, row: &WebhookRow, secret: &Secret) -> Result<String, OperationError> {
    Ok(seal_secret(&app.vault, row, secret).map_err(OperationError::internal)?.to_string())
}
