//! Opens links in the user's browser.

use std::process::{Command, Stdio};

/// Opens a link in a browser, if the user has a graphical session. Returns whether a program was started that opens links.
#[expect(clippy::disallowed_methods, reason = "these variables describe the session of the user and are not settings")]
pub(super) fn open(link: &str) -> bool {
    // A text that is not an http URL could be an option of the program or a local file.
    if !(link.starts_with("https://") || link.starts_with("http://")) {
        return false;
    }
    let is_mac = cfg!(target_os = "macos");
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !(is_mac || has_display) {
        return false;
    }
    let quiet = Stdio::null;
    let program = if is_mac { "open" } else { "xdg-open" };
    Command::new(program).arg(link).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_are_opened() {
        for text in ["--help", "/etc/passwd", "file:///etc/passwd", "javascript:alert(1)"] {
            assert!(!open(text), "{text}");
        }
    }
}
