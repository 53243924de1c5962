//! Which columns of which tables are under a MAC. A test compares these lists with the schema of the database, so that
//! every new table and column is put into one of them.

use std::sync::LazyLock;

/// A table whose rows carry a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    Workspaces,
    ApiKeys,
    Roles,
    Bots,
    Resources,
    Credentials,
    BotResources,
    OauthProviders,
    Plugins,
    PluginVersions,
    Trust,
    Owners,
    OauthFlows,
    SandboxInstances,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text, and JSON as its text.
    Text,
    Int,
    Flag,
}

/// The columns of a table.
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) key: &'static [&'static str],
    /// The columns under the MAC. Their order is part of what is authenticated.
    pub(crate) covered: &'static [(&'static str, Kind)],
    /// The columns that are not.
    pub(crate) left_out: &'static [&'static str],
    /// Columns that are too large to be read with every row.
    pub(crate) content: &'static [&'static str],
    /// Whether the rows are in the sum of their scope. Rows that come and go with use are not.
    pub(crate) is_counted: bool,
}

/// The statements of a table, in the order of its columns: those under the MAC, those that are left out, the MAC.
pub(crate) struct Statements {
    pub(crate) insert: String,
    /// Writes all columns under the MAC, and the MAC, over the row of the key.
    pub(crate) update: String,
    pub(crate) delete: String,
    /// The same by a key of any type, on SQLite. Parameters: of each column of the key its bytes and the name of its type.
    pub(crate) delete_raw: String,
    pub(crate) by_key: String,
    pub(crate) all: String,
    /// Of tables that have a workspace: the rows of one.
    pub(crate) of_workspace: String,
    /// Of tables that have a workspace: the rows without one.
    pub(crate) of_no_workspace: String,
    pub(crate) count: String,
    /// Whether there is a row.
    pub(crate) any: String,
    pub(crate) set_mac: String,
}

use Kind::{Flag, Int, Text};

const ID: &[&str] = &["id"];

const WORKSPACES: Spec = Spec {
    name: "workspaces",
    key: ID,
    covered: &[("id", Text), ("name", Text), ("sandbox", Text), ("created_at", Int), ("updated_at", Int)],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const API_KEYS: Spec = Spec {
    name: "api_keys",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("name", Text),
        ("kind", Text),
        ("bot_id", Text),
        ("prefix", Text),
        ("hash", Text),
        ("created_at", Int),
    ],
    // Only shown.
    left_out: &["last_used_at"],
    content: &[],
    is_counted: true,
};

const ROLES: Spec = Spec {
    name: "roles",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("name", Text),
        ("allowed_operations", Text),
        ("allowed_tools", Text),
        ("scope_constraints", Text),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const BOTS: Spec = Spec {
    name: "bots",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("name", Text),
        ("description", Text),
        ("system_prompt", Text),
        ("model", Text),
        ("use_agent_sandbox", Flag),
        ("monthly_token_budget", Int),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const RESOURCES: Spec = Spec {
    name: "resources",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_type", Text),
        ("name", Text),
        ("config", Text),
        ("network", Text),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const CREDENTIALS: Spec = Spec {
    name: "credentials",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_id", Text),
        ("subject_kind", Text),
        ("subject_id", Text),
        ("auth_method", Text),
        ("given_for", Text),
        ("created_at", Int),
    ],
    // The sealed record authenticates itself, and a refresh, which changes all of these, is no change of policy.
    left_out: &["sealed", "key_version", "status", "expires_at", "refreshing_until", "updated_at"],
    content: &[],
    is_counted: true,
};

const BOT_RESOURCES: Spec = Spec {
    name: "bot_resources",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("bot_id", Text),
        ("resource_id", Text),
        ("role_id", Text),
        ("permissions", Text),
        ("scope_constraints", Text),
        ("delegate", Text),
        ("allow_calls", Text),
        ("allow_subscribe", Flag),
        ("limits", Text),
        ("calls_per_minute", Int),
        ("enabled", Flag),
        ("expires_at", Int),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const OAUTH_PROVIDERS: Spec = Spec {
    name: "oauth_providers",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_type", Text),
        ("client_id", Text),
        ("authorization_url", Text),
        ("token_url", Text),
        ("device_authorization_url", Text),
        ("scopes", Text),
        ("created_at", Int),
        ("updated_at", Int),
    ],
    // Sealed, and bound to the client and its endpoints.
    left_out: &["client_secret"],
    content: &[],
    is_counted: true,
};

const PLUGINS: Spec = Spec {
    name: "plugins",
    key: &["name"],
    covered: &[
        ("name", Text),
        ("version", Text),
        ("manifest_digest", Text),
        ("component_digest", Text),
        ("updated_at", Int),
    ],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const PLUGIN_VERSIONS: Spec = Spec {
    name: "plugin_versions",
    key: &["plugin", "manifest_digest", "component_digest"],
    covered: &[
        ("plugin", Text),
        ("version", Text),
        ("manifest_digest", Text),
        ("component_digest", Text),
        ("locales_digest", Text),
        ("created_at", Int),
    ],
    left_out: &[],
    // Compared with its digests when it is read.
    content: &["manifest", "component", "locales"],
    is_counted: true,
};

const TRUST: Spec = Spec {
    name: "trust",
    key: ID,
    covered: &[("id", Text), ("public_key", Text), ("name_glob", Text), ("type_glob", Text), ("created_at", Int)],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const OWNERS: Spec = Spec {
    name: "owners",
    key: &["kind", "name"],
    covered: &[("kind", Text), ("name", Text), ("plugin", Text), ("legacy_plugin", Text), ("created_at", Int)],
    left_out: &[],
    content: &[],
    is_counted: true,
};

const OAUTH_FLOWS: Spec = Spec {
    name: "oauth_flows",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("resource_id", Text),
        ("provider_id", Text),
        ("key_id", Text),
        ("auth_method", Text),
        ("given_for", Text),
        ("ticket_hash", Text),
        ("created_at", Int),
        ("expires_at", Int),
    ],
    // How far the authorization has come.
    left_out: &["status", "state_hash", "browser_hash", "sealed", "message", "poll_interval_s", "next_poll_at"],
    content: &[],
    is_counted: false,
};

const SANDBOX_INSTANCES: Spec = Spec {
    name: "sandbox_instances",
    key: ID,
    covered: &[
        ("id", Text),
        ("workspace_id", Text),
        ("bot_id", Text),
        ("provider", Text),
        ("sandbox_id", Text),
        ("app_id", Text),
        ("user_id", Text),
        ("chat_id", Text),
        ("node", Text),
    ],
    // Where the sandbox stands and since when.
    left_out: &[
        "status",
        "operation",
        "operation_until",
        "last_active_at",
        "created_at",
        "limit",
        "network",
        "error",
        "attempts",
        "next_attempt_at",
        "lost",
    ],
    content: &[],
    is_counted: false,
};

static STATEMENTS: LazyLock<Vec<Statements>> =
    LazyLock::new(|| Table::ALL.iter().map(|table| Statements::of(table.spec())).collect());

impl Table {
    /// Every table whose rows carry a MAC; a table stands before those whose rows refer to it.
    pub const ALL: [Table; 14] = [
        Table::Workspaces,
        Table::ApiKeys,
        Table::Roles,
        Table::Bots,
        Table::Resources,
        Table::Credentials,
        Table::BotResources,
        Table::OauthProviders,
        Table::Plugins,
        Table::PluginVersions,
        Table::Trust,
        Table::Owners,
        Table::OauthFlows,
        Table::SandboxInstances,
    ];

    /// The name of the table in the database.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Every column of these tables, as `table.column`.
    pub fn columns() -> impl Iterator<Item = String> {
        Table::ALL.into_iter().flat_map(|table| {
            let Spec { name, covered, left_out, content, .. } = table.spec();
            let covered = covered.iter().map(|(column, _)| column);
            let columns = covered.chain(*left_out).chain(*content).chain(&["mac"]);
            columns.map(move |column| format!("{name}.{column}")).collect::<Vec<_>>()
        })
    }

    /// Whether its rows are of the instance's scope, whatever they say. Of API keys, those without a workspace are too.
    #[must_use]
    pub fn is_of_instance(self) -> bool {
        matches!(self, Table::Workspaces | Table::Plugins | Table::PluginVersions | Table::Trust | Table::Owners)
    }

    /// Whether its rows are in the sum of their scope. Rows that come and go with use are not.
    #[must_use]
    pub fn is_counted(self) -> bool {
        self.spec().is_counted
    }

    /// The tables whose rows are in the sum of their scope.
    pub(crate) fn counted() -> impl Iterator<Item = Table> {
        Table::ALL.into_iter().filter(|table| table.spec().is_counted)
    }

    pub(crate) fn spec(self) -> &'static Spec {
        match self {
            Table::Workspaces => &WORKSPACES,
            Table::ApiKeys => &API_KEYS,
            Table::Roles => &ROLES,
            Table::Bots => &BOTS,
            Table::Resources => &RESOURCES,
            Table::Credentials => &CREDENTIALS,
            Table::BotResources => &BOT_RESOURCES,
            Table::OauthProviders => &OAUTH_PROVIDERS,
            Table::Plugins => &PLUGINS,
            Table::PluginVersions => &PLUGIN_VERSIONS,
            Table::Trust => &TRUST,
            Table::Owners => &OWNERS,
            Table::OauthFlows => &OAUTH_FLOWS,
            Table::SandboxInstances => &SANDBOX_INSTANCES,
        }
    }

    pub(crate) fn statements(self) -> &'static Statements {
        &STATEMENTS[self as usize]
    }
}

impl Statements {
    fn of(spec: &Spec) -> Statements {
        let Spec { name, key, covered, left_out, content, .. } = spec;
        // Quoted: `limit` is a word of SQL.
        let quoted = |column: &&str| format!("\"{column}\"");
        let covered: Vec<String> = covered.iter().map(|(column, _)| quoted(column)).collect();
        let left_out: Vec<String> = left_out.iter().map(quoted).collect();
        let read = [covered.as_slice(), &left_out, &["mac".to_owned()]].concat();
        let content: Vec<String> = content.iter().map(quoted).collect();
        let written = [read.as_slice(), &content].concat();
        let numbers: Vec<String> = (1..=written.len()).map(|number| format!("${number}")).collect();
        let number = |column: &String| covered.iter().position(|own| own == column).unwrap_or_default() + 1;
        let key: Vec<String> = key.iter().map(quoted).collect();
        let set: Vec<String> = covered.iter().map(|column| format!("{column} = ${}", number(column))).collect();
        let set = set.join(", ");
        // A key column is set to what it is, so that the statement has every number.
        let of_row: Vec<String> = key.iter().map(|column| format!("{column} = ${}", number(column))).collect();
        let by_key: Vec<String> =
            key.iter().enumerate().map(|(at, column)| format!("{column} = ${}", at + 1)).collect();
        let raw = |(at, column): (usize, &String)| {
            format!("cast({column} as blob) is ${} and typeof({column}) = ${}", 2 * at + 1, 2 * at + 2)
        };
        let by_raw_key = key.iter().enumerate().map(raw).collect::<Vec<_>>().join(" and ");
        let (of_row, by_key, mac) = (of_row.join(" and "), by_key.join(" and "), covered.len() + 1);
        let (read, order) = (read.join(", "), key.join(", "));
        Statements {
            insert: format!("insert into {name} ({}) values ({})", written.join(", "), numbers.join(", ")),
            update: format!("update {name} set {set}, mac = ${mac} where {of_row}"),
            delete: format!("delete from {name} where {by_key}"),
            delete_raw: format!("delete from {name} where {by_raw_key}"),
            by_key: format!("select {read} from {name} where {by_key}"),
            count: format!("select count(*) as value from {name}"),
            any: format!("select {order} from {name} limit 1"),
            all: format!("select {read} from {name} order by {order}"),
            of_workspace: format!("select {read} from {name} where workspace_id = $1 order by {order}"),
            of_no_workspace: format!("select {read} from {name} where workspace_id is null order by {order}"),
            set_mac: format!("update {name} set mac = ${} where {by_key}", key.len() + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_of_a_table_name_its_columns_in_order() {
        let statements = Table::Plugins.statements();
        assert_eq!(
            statements.update,
            "update plugins set \"name\" = $1, \"version\" = $2, \"manifest_digest\" = $3, \"component_digest\" = $4, \
             \"updated_at\" = $5, mac = $6 where \"name\" = $1"
        );
        assert_eq!(statements.delete, "delete from plugins where \"name\" = $1");
        for table in Table::ALL {
            let known = Table::ALL[table as usize];
            assert_eq!(known, table, "the statements stand in the order of the tables");
        }
    }
}
