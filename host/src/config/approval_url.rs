//! The URL at which people decide about approvals.

use monstrum_core::approvals::ApprovalUrl;
use url::{Host, Url};

use super::Settings;

/// The page of an approval in the console.
const CONSOLE_PAGE: &str = "/console/w/{workspace}/approvals/{id}";

impl Settings {
    /// Returns the URL at which people decide about approvals: the URL of the settings, or else the console's page at the
    /// public URL. The listen address does not take the place of a public URL, because callers and approvers can be on
    /// other machines.
    pub fn url_for_approvals(&self) -> Option<ApprovalUrl> {
        let page = || {
            let public = self.public_url.as_ref().filter(|public| self.console && admits_browsers(public.url()))?;
            format!("{public}{CONSOLE_PAGE}").parse().ok()
        };
        self.approval_url.clone().or_else(page)
    }
}

/// Returns whether browsers can log in to the console at this URL. The console takes keys only over https or from the
/// machine itself.
fn admits_browsers(url: &Url) -> bool {
    url.scheme() == "https"
        || match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
}

#[cfg(test)]
mod tests {
    use monstrum_types::{ApprovalId, WorkspaceId};

    use super::*;
    use crate::config::{FILE, ServeFlags};

    #[test]
    fn people_decide_in_the_console_unless_another_page_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let (workspace, id) = (WorkspaceId::new(), ApprovalId::new());
        let url = |text: &str| {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            let settings = Settings::resolve(ServeFlags::default(), folder.path()).unwrap();
            settings.url_for_approvals().map(|url| url.of(workspace, id))
        };
        let page = |base: &str| Some(format!("{base}/console/w/{workspace}/approvals/{id}"));
        let own = "approval_url = \"https://people.example/{workspace}/{id}\"";
        let public = "public_url = \"https://monstrum.example/base/\"";
        assert_eq!(url(public), page("https://monstrum.example/base"));
        assert_eq!(url(&format!("{public}\n{own}")), Some(format!("https://people.example/{workspace}/{id}")));
        for loopback in ["http://localhost:8080", "http://127.0.0.1:8080", "http://[::1]:8080"] {
            assert_eq!(url(&format!("public_url = \"{loopback}\"")), page(loopback));
        }
        for none in ["", "public_url = \"http://monstrum.example\"", "public_url = \"http://10.0.0.7:8080\""] {
            assert_eq!(url(none), None, "{none}");
        }
        assert_eq!(url(&format!("{public}\nconsole = \"off\"")), None);
    }
}
