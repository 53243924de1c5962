//! SQL statements for a table, generated from its columns.

use super::Spec;

/// The SQL statements of a table. Columns appear in this order: columns covered by the MAC, optional columns, columns not
/// covered by the MAC, the MAC, and (in `insert` only) the large content columns.
pub(crate) struct Statements {
    pub(crate) insert: String,
    /// Overwrites the covered columns, the optional columns and the MAC of the row with this key.
    pub(crate) update: String,
    pub(crate) delete: String,
    /// Deletes an SQLite row whose key is not text. The parameters are the bytes and the type name of each key
    /// column.
    pub(crate) delete_raw: String,
    pub(crate) by_key: String,
    pub(crate) all: String,
    /// Selects the rows of one workspace. Valid only for tables with a workspace column.
    pub(crate) of_workspace: String,
    /// Selects the rows whose workspace is NULL. Valid only for tables with a workspace column.
    pub(crate) of_no_workspace: String,
    pub(crate) count: String,
    /// Selects the key of one row, if the table has any rows.
    pub(crate) any: String,
    pub(crate) set_mac: String,
}

impl Statements {
    pub(super) fn of(spec: &Spec) -> Statements {
        let Spec { name, key, covered, optional, left_out, content, .. } = spec;
        // Column names are quoted, because `limit` is a keyword.
        let quoted = |column: &&str| format!("\"{column}\"");
        let covered: Vec<String> = covered.iter().chain(*optional).map(|(column, _)| quoted(column)).collect();
        let left_out: Vec<String> = left_out.iter().map(quoted).collect();
        let read = [covered.as_slice(), &left_out, &["mac".to_owned()]].concat();
        let content: Vec<String> = content.iter().map(quoted).collect();
        let written = [read.as_slice(), &content].concat();
        let numbers: Vec<String> = (1..=written.len()).map(|number| format!("${number}")).collect();
        let number = |column: &String| covered.iter().position(|own| own == column).unwrap_or_default() + 1;
        let key: Vec<String> = key.iter().map(quoted).collect();
        let set: Vec<String> = covered.iter().map(|column| format!("{column} = ${}", number(column))).collect();
        let set = set.join(", ");
        // The update sets the key columns to their own values, so that it uses every parameter.
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
