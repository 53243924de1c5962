//! The preview of a binding: the tools that it would grant or hide, as the server decides.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::gateway::console::text::Text;

/// What the draft would do.
#[derive(Deserialize)]
pub(super) struct Preview {
    pub(super) tools: Vec<PreviewTool>,
}

#[derive(Deserialize)]
pub(super) struct PreviewTool {
    pub(super) name: Text,
    pub(super) operation: Text,
    pub(super) visible: bool,
    #[serde(default)]
    rule: Option<Text>,
    #[serde(default)]
    was: Option<Was>,
}

#[derive(Deserialize)]
pub(super) struct Was {
    visible: bool,
}

impl PreviewTool {
    /// Returns the class of the change in the style sheet.
    pub(super) fn change(&self) -> &'static str {
        match (self.was.as_ref().is_some_and(|was| was.visible), self.visible) {
            (false, true) => "added",
            (true, false) => "removed",
            _ => "",
        }
    }
}

impl Preview {
    pub(super) fn count(&self, change: &str) -> usize {
        self.tools.iter().filter(|tool| tool.change() == change).count()
    }

    /// Returns the tools that no rule hides.
    pub(super) fn without_rule(&self) -> Vec<&PreviewTool> {
        self.tools.iter().filter(|tool| tool.rule.is_none()).collect()
    }

    /// Returns the tools that a rule hides, by rule, so that the reason is told once.
    pub(super) fn by_rule(&self) -> BTreeMap<&Text, Vec<&PreviewTool>> {
        let mut by_rule: BTreeMap<&Text, Vec<&PreviewTool>> = BTreeMap::new();
        for tool in &self.tools {
            if let Some(rule) = &tool.rule {
                by_rule.entry(rule).or_default().push(tool);
            }
        }
        by_rule
    }
}
