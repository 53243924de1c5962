//! The style sheet, the script and the icon. Their paths contain a digest of their content, so that browsers keep them
//! for ever and read a new version at once.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use sha2::{Digest, Sha256};

const CSS: &str = include_str!("../../../assets/console/console.css");
const JS: &str = include_str!("../../../assets/console/console.js");
const ICON: &str = include_str!("../../../assets/console/icon.svg");

/// The paths of the assets.
pub(super) struct Assets {
    pub css: String,
    pub js: String,
    pub icon: String,
    digest: String,
}

pub(super) static ASSETS: LazyLock<Assets> = LazyLock::new(|| {
    let mut sum = Sha256::new();
    for content in [CSS, JS, ICON] {
        sum.update(content.as_bytes());
    }
    let digest = hex::encode(sum.finalize());
    let path = |name: &str| format!("/console/assets/{digest}/{name}");
    Assets { css: path("console.css"), js: path("console.js"), icon: path("icon.svg"), digest: digest.clone() }
});

/// Serves an asset. A path with the digest of another version does not exist.
pub(super) async fn serve(Path((digest, name)): Path<(String, String)>) -> Response {
    let (kind, content) = match name.as_str() {
        _ if digest != ASSETS.digest => return StatusCode::NOT_FOUND.into_response(),
        "console.css" => ("text/css; charset=utf-8", CSS),
        "console.js" => ("text/javascript; charset=utf-8", JS),
        "icon.svg" => ("image/svg+xml", ICON),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    (headers, content).into_response()
}
