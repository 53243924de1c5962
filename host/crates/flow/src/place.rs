//! Faults that a caller finds in a definition, such as an unknown bot.

use crate::fault::{Fault, Spot};
use crate::node;

/// Returns a fault of a definition that a caller has found. `path` is a JSON pointer into the definition. If the definition
/// has no such value, the place is that of the nearest value around it.
#[must_use]
pub fn fault_at(text: &str, path: &str, message: impl Into<String>) -> Fault {
    let (line, column) = node::read(text).map_or((1, 1), |root| root.locate(path));
    Spot { path: path.into(), line, column }.fault(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_the_place_of_its_value() {
        let text = "workflow: release\nbot:   nobody\nsteps: []\n";
        let fault = fault_at(text, "/bot", "the workspace has no bot `nobody`");
        assert_eq!(fault.to_string(), "2:8: /bot: the workspace has no bot `nobody`");
        let absent = fault_at(text, "/steps/3", "x");
        assert_eq!((absent.path.as_str(), absent.line, absent.column), ("/steps/3", 3, 8));
        let unread = fault_at("a: [", "/a", "x");
        assert_eq!((unread.line, unread.column), (1, 1));
    }
}
