//! The tables whose rows have a MAC, and the columns that the MAC covers. A test compares these columns with the
//! database schema, so that every new table and column must be added here or to the type of its row.

mod statements;

use std::sync::LazyLock;

use super::Authentic;
use crate::db::{Column, Kind};
use crate::{
    AgentHostRow, AgentPresenceRow, ApprovalRow, BindingRow, BotRow, BudgetRow, ConsoleSessionRow, ConsoleTicketRow,
    CredentialRow, DiscoveryRow, FirstDiscoveryRow, GrantRow, KeyRow, MissingScopesRow, OauthFlowRow, OauthProposalRow,
    OauthProviderRow, OwnerRow, PluginRow, PluginVersionSummary, ResourceRow, ResourceToolRow, RoleRow, SandboxRow,
    ScheduleRow, SubscriptionRow, TrustRow, WebhookRow, WorkflowRow, WorkflowTriggerRow, WorkflowVersionRow,
    WorkspaceRow,
};

pub(crate) use statements::Statements;

/// The columns of a table.
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) key: &'static [&'static str],
    /// The columns that the MAC covers. The MAC depends on their order.
    pub(crate) covered: &'static [(&'static str, Kind)],
    /// Columns that were added after the first rows of the table were written. The MAC covers such a column only in rows
    /// in which it is not null, so that the MACs of older rows stay valid.
    pub(crate) optional: &'static [(&'static str, Kind)],
    /// The columns that the MAC does not cover.
    pub(crate) left_out: &'static [&'static str],
    /// Columns that are too large to read with every row. The MAC does not cover them.
    pub(crate) content: &'static [&'static str],
    /// Whether the seal of a scope counts the rows of this table. Rows that are created and deleted during normal use
    /// are not counted.
    pub(crate) is_counted: bool,
}

impl Spec {
    /// The default values for a table: the key is `id`, the MAC covers all columns, and the rows are counted.
    pub(crate) const COUNTED: Spec =
        Spec { name: "", key: &["id"], covered: &[], optional: &[], left_out: &[], content: &[], is_counted: true };
}

/// Returns the type of the column of a field.
pub(crate) const fn kind_of<R, C: Column>(_: fn(&R) -> &C) -> Kind {
    C::KIND
}

/// Declares the tables, with the type of their rows.
macro_rules! tables {
    ($($table:ident => $row:ty),+ $(,)?) => {
        /// A table whose rows have a MAC.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Table { $($table),+ }

        impl Table {
            /// All tables whose rows have a MAC. A table precedes the tables that reference it.
            pub const ALL: [Table; [$(Table::$table),+].len()] = [$(Table::$table),+];

            pub(crate) fn spec(self) -> &'static Spec {
                match self { $(Table::$table => &<$row as Authentic>::SPEC),+ }
            }
        }
    };
}

tables! {
    Workspaces => WorkspaceRow,
    ApiKeys => KeyRow,
    Roles => RoleRow,
    Bots => BotRow,
    Resources => ResourceRow,
    Credentials => CredentialRow,
    BotResources => BindingRow,
    OauthProviders => OauthProviderRow,
    Plugins => PluginRow,
    PluginVersions => PluginVersionSummary,
    Trust => TrustRow,
    Owners => OwnerRow,
    OauthFlows => OauthFlowRow,
    SandboxInstances => SandboxRow,
    Approvals => ApprovalRow,
    ApprovalGrants => GrantRow,
    ResourceTools => ResourceToolRow,
    FirstDiscoveries => FirstDiscoveryRow,
    Discoveries => DiscoveryRow,
    OauthProposals => OauthProposalRow,
    MissingScopes => MissingScopesRow,
    AgentHosts => AgentHostRow,
    AgentPresences => AgentPresenceRow,
    ConsoleSessions => ConsoleSessionRow,
    ConsoleTickets => ConsoleTicketRow,
    Budgets => BudgetRow,
    Schedules => ScheduleRow,
    Webhooks => WebhookRow,
    Workflows => WorkflowRow,
    WorkflowVersions => WorkflowVersionRow,
    WorkflowTriggers => WorkflowTriggerRow,
    Subscriptions => SubscriptionRow,
}

static STATEMENTS: LazyLock<Vec<Statements>> =
    LazyLock::new(|| Table::ALL.iter().map(|table| Statements::of(table.spec())).collect());

impl Table {
    /// Returns the name of the table in the database.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns every column of these tables, as `table.column`.
    pub fn columns() -> impl Iterator<Item = String> {
        Table::ALL.into_iter().flat_map(|table| {
            let Spec { name, covered, optional, left_out, content, .. } = table.spec();
            let covered = covered.iter().chain(*optional).map(|(column, _)| column);
            let columns = covered.chain(*left_out).chain(*content).chain(&["mac"]);
            columns.map(move |column| format!("{name}.{column}")).collect::<Vec<_>>()
        })
    }

    /// Returns whether all rows of this table belong to the scope of the instance. API keys without a workspace also
    /// belong to this scope.
    #[must_use]
    pub fn is_of_instance(self) -> bool {
        matches!(
            self,
            Table::Workspaces
                | Table::Plugins
                | Table::PluginVersions
                | Table::Trust
                | Table::Owners
                | Table::AgentHosts
                | Table::ConsoleSessions
                | Table::ConsoleTickets
        )
    }

    /// Returns whether the seal of a scope counts the rows of this table. Rows that are created and deleted during
    /// normal use are not counted.
    #[must_use]
    pub fn is_counted(self) -> bool {
        self.spec().is_counted
    }

    /// Returns the tables whose rows are counted by the seals of their scopes.
    pub(crate) fn counted() -> impl Iterator<Item = Table> {
        Table::ALL.into_iter().filter(|table| table.is_counted())
    }

    pub(crate) fn statements(self) -> &'static Statements {
        &STATEMENTS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn statements_name_the_columns_in_order() {
        let statements = Table::Plugins.statements();
        assert_eq!(
            statements.update,
            "update plugins set \"name\" = $1, \"version\" = $2, \"manifest_digest\" = $3, \"component_digest\" = $4, \
             \"updated_at\" = $5, mac = $6 where \"name\" = $1"
        );
        assert_eq!(statements.delete, "delete from plugins where \"name\" = $1");
        for table in Table::ALL {
            let known = Table::ALL[table as usize];
            assert_eq!(known, table, "STATEMENTS is indexed by the position in ALL");
        }
    }

    /// The MACs in existing databases are computed over these columns, in this order.
    #[test]
    fn the_columns_under_the_macs_never_change() {
        let (first, later) = Table::ALL.split_at(14);
        let (later, outside) = later.split_at(2);
        let (outside, discovered) = outside.split_at(3);
        let (discovered, hosts) = discovered.split_at(2);
        let (hosts, console) = hosts.split_at(2);
        let (console, budgets) = console.split_at(2);
        let (budgets, schedules) = budgets.split_at(1);
        let (schedules, webhooks) = schedules.split_at(1);
        let (webhooks, workflows) = webhooks.split_at(1);
        let (workflows, subscriptions) = workflows.split_at(3);
        for (tables, expected) in [
            (first, "c84ff4059f8daaec974d41430b95dc6fbd4c82cfb7a90b42841762bbdf0ac071"),
            (later, "3c58d0520aecfa045861a89b3e6e9f78479c0a334a67f5325aee899ba9cd1f36"),
            (outside, "5de44a5a055d54644c4f9382e835e64d3a304e09ae1835953482f8cce99314b8"),
            (discovered, "5bf772c4d7fe555c1c0b3f02720f96efb4c505347e582c26fcedfe61cd79e9e9"),
            (hosts, "99ed2fd2361b0eda20f911338d904e6699e5d16b2f765438a79a1f9ecf0314c0"),
            (console, "c827fd74c2a75ac07851538235e30b94424ba6b4ea5de1b528cdf23a1670c410"),
            (budgets, "0e50257b77f17b03648e868074c9d0920c4e4e9422de86532ac0f2da51896932"),
            (schedules, "77dd9d3c9616bf8b4f301fc3a39be5f9f3f2ff29fa7a24d6d0078416f00e1aa7"),
            (webhooks, "78879972e121a4d4b63cf8cf781cb52f34f505b959bf7f0e56d2e11fae1791f2"),
            (workflows, "b9729ae1ee1fd5bb56390b4b360f33625a3da068b03937f14a6ef3b2b886c61a"),
            (subscriptions, "de1d7822063863af7afc651831e1b77847979f5edcd20a8a88ee2c2d66e21cbd"),
        ] {
            let mut lines = String::new();
            for table in tables {
                let Spec { name, covered, .. } = table.spec();
                let covered: Vec<String> = covered.iter().map(|(column, kind)| format!("{column} {kind:?}")).collect();
                writeln!(lines, "{name}: {}", covered.join(", ")).unwrap();
            }
            assert_eq!(hex::encode(Sha256::digest(&lines)), expected, "{lines}");
        }
    }

    /// The MACs of rows with values in optional columns are computed over these columns, in this order. New columns can
    /// only be appended.
    #[test]
    fn the_optional_columns_under_the_macs_never_change() {
        let optional = Table::ALL.into_iter().map(Table::spec).filter(|spec| !spec.optional.is_empty());
        let columns = |spec: &Spec| spec.optional.iter().map(|(column, kind)| format!("{column} {kind:?}"));
        let lists: Vec<String> =
            optional.map(|spec| format!("{}: {}", spec.name, columns(spec).collect::<Vec<_>>().join(", "))).collect();
        assert_eq!(
            lists,
            [
                "api_keys: resource_id Text",
                "roles: gates Text",
                "bots: gates Text, mcp_subjects Text, model_fallbacks Text, task_limits Text, session_idle_s Int, \
                 client_tools Int",
                "resources: labels Text",
                "bot_resources: gates Text",
                "oauth_providers: resource_id Text, server Text",
                "oauth_flows: subject Text, return_to Text",
                "sandbox_instances: labels Text",
                "approvals: run_id Text, run_step Text, item Text, targets Text, starters Text",
            ]
        );
    }
}
