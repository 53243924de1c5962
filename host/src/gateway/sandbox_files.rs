//! `/api/core/ai/sandbox/…`: the files of a conversation's sandbox, in the format of FastGPT's API. In this format,
//! field names are in camelCase and unknown fields are ignored. The provider ensures that no path leaves the sandbox.

mod delivery;
mod disposition;
mod download;

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::{FromRequest as _, Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Version, header};
use monstrum_api::sandbox_files::{Action, DownloadInput, FileAnswer, FileInput};
use monstrum_sandbox::FILE_BYTES_MAX;

use crate::gateway::http::extract::{Input, read_body, whole_body_of};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};
use monstrum_core::beside::Beside;
use monstrum_core::operations::Caller;
use monstrum_core::operations::sandbox_files::{Files, Place, guarded};
use monstrum_core::sandboxes::Turn;

/// The maximum size of a request body: the largest file, with room for JSON escapes.
const BODY_BYTES_MAX: usize = 2 * FILE_BYTES_MAX;

/// The threads that serialize file contents as JSON, so that serving threads stay free.
static CONTENTS: Beside = Beside::new();

/// Lists a folder, or reads or writes a text file, in the sandbox of a conversation
///
/// `write` creates missing folders. A stopped sandbox is resumed. A conversation without a sandbox gets 404.
#[utoipa::path(post, path = "/api/core/ai/sandbox/file", tag = "sandboxes", request_body = FileInput,
    responses((status = 200, body = FileAnswer),
        (status = 503, body = ProblemBody, description = "Sandboxes are temporarily unavailable")))]
pub(super) async fn file(
    app: Host,
    caller: Caller,
    InLanguage(language): InLanguage,
    request: Request,
) -> Result<Response, Problem> {
    let files = Files { app: &app, caller: &caller, language: &language };
    let asked = async {
        files.check_switch()?;
        let (body, turn) = body(&files, request).await?;
        let input: FileInput = read_body(body).await?;
        let FileInput { app_id, chat_id, user_id, path, .. } = &input;
        let row = files.find(&Place { app_id, chat_id, user_id: user_id.as_deref(), path }).await?;
        Ok::<_, Problem>((input, row, turn))
    };
    let (FileInput { action, path, content, .. }, row, turn) = guarded(&app, &caller, asked).await?;
    let answer = match action {
        Action::List => FileAnswer::List { action, files: files.list(&row, &path).await? },
        Action::Read => {
            // The turn for the request body is released before the file is read, because reading the file requires
            // another turn.
            drop(turn);
            let (content, turn) = files.read(&row, &path, BODY_BYTES_MAX).await?;
            let answer = FileAnswer::Read { action, content };
            let json = CONTENTS.run(move || serde_json::to_vec(&answer)).await;
            let json = json.map_err(|error| Problem::internal(&error))?.expect("an answer can be serialized as JSON");
            return Ok(delivery::held(json, turn, &app, &caller));
        }
        Action::Write => {
            let content =
                content.ok_or_else(|| Problem::invalid_at("/content", "required when `action` is `write`"))?;
            files.write(&row, &path, Bytes::from(content)).await?;
            FileAnswer::Write { action, success: true }
        }
    };
    Ok(Json(answer).into_response())
}

/// Reads the request body. A large body needs a turn, which is returned with the body.
async fn body(files: &Files<'_>, request: Request) -> Result<(Bytes, Option<Turn>), Problem> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let turn = files.turn(length.unwrap_or(BODY_BYTES_MAX)).await?;
    if turn.is_none() {
        return Ok((whole_body_of(request.into_body(), BODY_BYTES_MAX).await?, None));
    }
    let (body, is_late) = delivery::paced(request.into_body());
    let whole = whole_body_of(body, BODY_BYTES_MAX).await;
    if is_late.load(Ordering::Relaxed) {
        return Err(Problem::timeout("the body arrived too slowly; send at least 128 KiB/s"));
    }
    Ok((whole?, turn))
}

/// Downloads a file, or a folder as a ZIP archive, from the sandbox of a conversation
#[utoipa::path(post, path = "/api/core/ai/sandbox/download", tag = "sandboxes", request_body = DownloadInput,
    responses((status = 200, content((String = "application/octet-stream"), (String = "application/zip"))),
        (status = 503, body = ProblemBody, description = "Sandboxes are temporarily unavailable"),
        (status = 505, body = ProblemBody, description = "A folder was requested over HTTP/1.0")))]
pub(super) async fn download(
    State(state): State<HttpState>,
    caller: Caller,
    InLanguage(language): InLanguage,
    version: Version,
    request: Request,
) -> Result<Response, Problem> {
    let app = &state.app;
    let files = Files { app, caller: &caller, language: &language };
    // A bot key whose bot may not use sandboxes is rejected before the body is read.
    files.check_switch()?;
    let Input(DownloadInput { app_id, chat_id, user_id, path }) = Input::from_request(request, &state).await?;
    let begun = async {
        files.check_switch()?;
        let place = Place { app_id: &app_id, chat_id: &chat_id, user_id: user_id.as_deref(), path: &path };
        let row = files.find(&place).await?;
        files.download(&row, &path, version >= Version::HTTP_11).await
    };
    let download = guarded(app, &caller, begun).await?;
    Ok(download::answer(download, |content| delivery::delivered(content, app, &caller)))
}
