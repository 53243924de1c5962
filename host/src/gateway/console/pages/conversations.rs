//! The conversations: the sandboxes of the workspace, and one sandbox with its commands and its files.
//!
//! Reading a file starts a stopped sandbox, so a page reads files only while the sandbox runs. To start it, a person
//! sends a form.

use std::time::Duration;

use askama::Template;
use axum::extract::{Path, Query};
use http::{HeaderMap, Method};
use monstrum_types::{UtcMillis, is_invisible};
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::hosts::is_from_other_site;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::bot::{self, Bot};
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::sessions::{self, SessionOf};
use crate::gateway::console::terminal;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The folder of a sandbox that has the files.
pub(super) const WORKSPACE: &str = "/workspace";
/// The route of the API for files.
pub(super) const FILES: &str = "/api/core/ai/sandbox/file";
/// The maximum number of commands on a page. Their answer stays within the size that the console reads, also if all texts
/// consist of control characters, which JSON writes with six bytes.
const COMMANDS: &str = "10";
/// The maximum size of a path in a sandbox, and the number of its folders that have a link, from the innermost.
const PATH_BYTES_MAX: usize = 4 << 10;
const CRUMBS_MAX: usize = 16;
/// The maximum number of files that a page shows.
const FILES_MAX: usize = 200;
/// The maximum size of the texts of a page, and of one command that is not the first, as they are written in the page.
const TEXTS_MAX: usize = 352 << 10;
const COMMAND_MAX: usize = 32 << 10;
/// The time within which a running sandbox lists a folder.
const LIST_MAX: Duration = Duration::from_secs(5);

/// The sandbox of a conversation.
#[derive(Deserialize)]
pub(super) struct Sandbox {
    pub id: String,
    pub bot_id: String,
    pub app_id: Option<Text>,
    pub user_id: Option<Text>,
    pub chat_id: Option<Text>,
    pub status: String,
    pub last_active_at: UtcMillis,
    pub error: Option<Text>,
}

#[derive(Deserialize)]
struct Sandboxes {
    items: Vec<Sandbox>,
    next_cursor: Option<String>,
}

impl Sandbox {
    fn class(&self) -> &'static str {
        match self.status.as_str() {
            "running" => "success",
            "creating" | "stopping" => "running",
            "stopped" | "deleting" => "stopped",
            _ => "error",
        }
    }

    /// Returns the name of the conversation.
    pub(super) fn name(&self) -> Text {
        let chat = self.chat_id.clone().filter(|chat| !chat.is_empty());
        chat.unwrap_or_else(|| self.id.as_str().into())
    }

    fn app(&self) -> Text {
        self.app_id.clone().unwrap_or_default()
    }

    fn user(&self) -> Text {
        self.user_id.clone().unwrap_or_default()
    }

    /// Returns whether the files can be read without starting the sandbox.
    pub(super) fn is_running(&self) -> bool {
        self.status == "running"
    }

    /// Returns whether the sandbox has files that can be read.
    fn has_files(&self) -> bool {
        self.chat_id.is_some() && !matches!(self.status.as_str(), "deleting" | "lost")
    }

    /// Returns the path of the page of the conversation.
    pub(super) fn base(&self, visit: &Visit) -> String {
        visit.to(&format!("conversations/{}", segment(&self.id)))
    }

    /// Returns a request of the API about a path in the sandbox.
    pub(super) fn about(&self, action: &str, path: &str) -> serde_json::Value {
        let raw = |text: &Option<Text>| text.as_ref().map(|text| text.raw().to_owned());
        json!({
            "action": action,
            "appId": raw(&self.app_id),
            "chatId": raw(&self.chat_id),
            "userId": raw(&self.user_id),
            "path": path,
        })
    }
}

/// A page of conversations.
struct Conversations {
    items: Vec<Sandbox>,
    bots: Vec<Named>,
    next: Option<String>,
}

impl Conversations {
    fn bot_name(&self, id: &str) -> Text {
        let named = self.bots.iter().find(|named| named.id == id);
        named.map_or_else(|| id.into(), |named| named.name.clone())
    }
}

async fn conversations(visit: &Visit, bot: &str, cursor: &str, page: &str) -> Result<Conversations, Failure> {
    #[derive(Deserialize)]
    struct Bots {
        items: Vec<Named>,
    }
    let path = with_query("/api/sandboxes", &[("limit", "50"), ("bot_id", bot), ("cursor", cursor)]);
    let (list, bots) =
        tokio::join!(visit.client.get::<Sandboxes>(&path), visit.client.get::<Bots>("/api/bots?limit=200"));
    let Sandboxes { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to(page), &[("cursor", &cursor)]));
    Ok(Conversations { items, bots: bots.map(|bots| bots.items).unwrap_or_default(), next })
}

#[derive(Template)]
#[template(path = "console/conversations.html")]
struct ListPage {
    frame: Frame,
    list: Conversations,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/bot_conversations.html")]
struct TabPage {
    frame: Frame,
    bot: Bot,
    tab: &'static str,
    list: Conversations,
    next: Option<String>,
}

/// Shows the conversations of the workspace.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    let (frame, list) = tokio::join!(
        visit.frame("conversations", visit.words().text("conversations.title")),
        conversations(&visit, "", &query.cursor, "conversations"),
    );
    let mut list = list?;
    let next = list.next.take();
    Ok(page::render(&ListPage { frame, list, next }))
}

/// Shows the conversations of a bot.
pub(in crate::gateway::console) async fn of_bot(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Page {
    let bot = bot::read_head(&visit, &id).await?;
    let path = format!("bots/{}/conversations", segment(&bot.id));
    let title = bot.name.to_string();
    let (frame, list) = tokio::join!(visit.frame("bots", &title), conversations(&visit, &bot.id, &query.cursor, &path));
    let mut list = list?;
    let next = list.next.take();
    Ok(page::render(&TabPage { frame, bot, tab: "conversations", list, next }))
}

/// What a page of a conversation shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Shown {
    #[serde(default)]
    pub cursor: String,
    /// The folder whose files are shown.
    #[serde(default)]
    pub path: String,
}

#[derive(Deserialize)]
struct Commands {
    items: Vec<Command>,
    next_cursor: Option<String>,
}

/// A command as the API tells it.
#[derive(Deserialize)]
struct Command {
    request_id: String,
    command: String,
    state: String,
    exit_code: Option<i64>,
    stdout: String,
    stderr: String,
    truncated: bool,
    started_at: UtcMillis,
    duration_ms: Option<u64>,
}

/// A command of a page.
struct CommandView {
    told: Command,
    first_line: Text,
    command: Text,
    stdout: Text,
    stderr: Text,
    /// Whether the page shows the texts shortened, and the page that shows this command first.
    is_cut: bool,
    whole: Option<String>,
}

impl CommandView {
    fn class(&self) -> &'static str {
        match self.told.state.as_str() {
            "success" => "success",
            "running" => "running",
            "refused" => "denied",
            "lost" => "stopped",
            _ => "error",
        }
    }

    /// Returns the exit code, if it says more than the state.
    fn exit_code(&self) -> Option<i64> {
        self.told.exit_code.filter(|_| self.told.state == "failed")
    }
}

/// Returns the commands of a page. The first command is shown whole; the texts of the others are shortened, and each has
/// a link to the page that begins with it.
fn views(commands: Vec<Command>, page: &str) -> Vec<CommandView> {
    let mut left = TEXTS_MAX;
    let mut before: Option<String> = None;
    let view = |told: Command| {
        let max = if before.is_some() { COMMAND_MAX.min(left) } else { left };
        let mut room = max;
        let mut is_cut = false;
        let mut shown = |text: &str| {
            let (start, is_whole) = within(text, &mut room);
            is_cut |= !is_whole;
            start
        };
        let command = shown(&told.command);
        let stderr = shown(&terminal::plain(&told.stderr));
        let stdout = shown(&terminal::plain(&told.stdout));
        left = left.saturating_sub(max - room);
        let whole = before.as_ref().filter(|_| is_cut).map(|newer| with_query(page, &[("cursor", newer)]));
        let first_line = Text::from(told.command.lines().next().unwrap_or_default()).start(120);
        before = Some(told.request_id.clone());
        CommandView { told, first_line, command, stdout, stderr, is_cut, whole }
    };
    commands.into_iter().map(view).collect()
}

/// Returns the start of a text that has room in a page, and whether this is the whole text. Markup and invisible
/// characters take more room in a page than in the text.
pub(in crate::gateway::console) fn within(text: &str, room: &mut usize) -> (Text, bool) {
    for (at, character) in text.char_indices() {
        let bytes = match character {
            '\n' | '\t' => 1,
            // An escape such as `&#60;`.
            '<' | '>' | '&' | '"' | '\'' => 5,
            // An escape such as `\u{10ffff}`.
            character if is_invisible(character) => 10,
            character => character.len_utf8(),
        };
        match room.checked_sub(bytes) {
            Some(rest) => *room = rest,
            None => return (Text::from(&text[..at]), false),
        }
    }
    (text.into(), true)
}

/// An entry of a folder.
#[derive(Deserialize)]
pub(super) struct File {
    pub name: Text,
    pub path: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub size: u64,
}

/// An entry of a folder with the links of a page.
struct FileView {
    file: File,
    /// The page of a folder or of a file.
    open: Option<String>,
    download: Option<String>,
}

impl FileView {
    /// Returns the key of the word for the kind of the entry.
    fn kind(&self) -> &'static str {
        match self.file.kind.as_str() {
            "file" => "kind_file",
            "directory" => "kind_directory",
            _ => "kind_other",
        }
    }

    fn size(&self) -> String {
        if self.file.kind == "file" { size(self.file.size) } else { String::new() }
    }
}

/// Returns a size in words.
pub(super) fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{}.{} KiB", bytes / KIB, bytes % KIB * 10 / KIB),
        _ => format!("{}.{} MiB", bytes / MIB, bytes % MIB * 10 / MIB),
    }
}

/// The files beside the commands.
enum Files {
    /// The sandbox is being deleted, or its files are missing.
    None,
    /// Reading the files starts the sandbox.
    Stopped,
    /// The sandbox runs, and its files were not asked for.
    Closed,
    Listed {
        files: Vec<FileView>,
        left_out: usize,
    },
    /// The API refused, with this reason; empty if it did not answer.
    Failed(Text),
}

/// Refuses a path that no file has, because a page contains it many times.
pub(super) fn check_path(path: &str) -> Result<(), Failure> {
    if path.len() > PATH_BYTES_MAX { Err(Failure::not_found()) } else { Ok(()) }
}

/// Returns the workspace and the innermost folders of `path`, each with its page.
pub(super) fn crumbs(base: &str, path: &str) -> Vec<(Text, String)> {
    let mut folder = WORKSPACE.to_owned();
    let mut crumbs = vec![(Text::from("workspace"), with_query(base, &[("path", WORKSPACE)]))];
    let below = path.strip_prefix(WORKSPACE).unwrap_or(path);
    let parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty()).collect();
    let left_out = parts.len().saturating_sub(CRUMBS_MAX);
    for (at, part) in parts.into_iter().enumerate() {
        folder.push('/');
        folder.push_str(part);
        if at >= left_out {
            crumbs.push((part.into(), with_query(base, &[("path", &folder)])));
        }
    }
    crumbs
}

#[derive(Template)]
#[template(path = "console/conversation.html")]
struct ConversationPage {
    frame: Frame,
    sandbox: Sandbox,
    base: String,
    bot: Option<Named>,
    session: Option<SessionOf>,
    /// Absent if the API did not answer.
    commands: Option<Vec<CommandView>>,
    next: Option<String>,
    files: Files,
    path: String,
    crumbs: Vec<(Text, String)>,
    download: String,
}

/// Reads a sandbox.
pub(super) async fn read(visit: &Visit, id: &str) -> Result<Sandbox, Failure> {
    visit.client.get::<Sandbox>(&format!("/api/sandboxes/{}", segment(id))).await
}

/// Lists a folder of a sandbox. A stopped sandbox starts.
pub(super) async fn list_folder(visit: &Visit, sandbox: &Sandbox, path: &str) -> Result<Vec<File>, Failure> {
    #[derive(Deserialize)]
    struct Listed {
        files: Vec<File>,
    }
    let body = sandbox.about("list", path);
    let listed = visit.client.send::<Listed>(Method::POST, FILES, &body, Conditions::default());
    Ok(listed.await?.files)
}

async fn files(visit: &Visit, sandbox: &Sandbox, path: &str) -> Files {
    if !sandbox.has_files() {
        return Files::None;
    }
    if !sandbox.is_running() {
        return Files::Stopped;
    }
    if path.is_empty() {
        return Files::Closed;
    }
    let base = sandbox.base(visit);
    match tokio::time::timeout(LIST_MAX, list_folder(visit, sandbox, path)).await {
        Ok(Ok(files)) => {
            let left_out = files.len().saturating_sub(FILES_MAX);
            let view = |file: File| {
                let at = [("path", file.path.as_str())];
                let open = match file.kind.as_str() {
                    "directory" => Some(with_query(&base, &at)),
                    "file" => Some(with_query(&format!("{base}/file"), &at)),
                    _ => None,
                };
                let download = open.as_ref().map(|_| with_query(&format!("{base}/download"), &at));
                FileView { open, download, file }
            };
            Files::Listed { files: files.into_iter().take(FILES_MAX).map(view).collect(), left_out }
        }
        Ok(Err(Failure::Refused(refusal))) => Files::Failed(refusal.detail.as_str().into()),
        Ok(Err(Failure::NoAnswer | Failure::TooMany)) | Err(_) => Files::Failed(Text::default()),
    }
}

/// Shows a conversation: its commands, and the files of its sandbox.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(mut shown): Query<Shown>,
    headers: HeaderMap,
) -> Page {
    check_path(&shown.path)?;
    // A list of files counts as a use of the sandbox, which a page of another site must not cause.
    if is_from_other_site(&headers) {
        shown.path.clear();
    }
    let sandbox = read(&visit, &id).await?;
    let base = sandbox.base(&visit);
    let commands = with_query(
        &format!("/api/sandboxes/{}/commands", segment(&sandbox.id)),
        &[("limit", COMMANDS), ("cursor", &shown.cursor)],
    );
    let bot = format!("/api/bots/{}", segment(&sandbox.bot_id));
    let title = sandbox.name().to_string();
    let (frame, commands, bot, session, files) = tokio::join!(
        visit.frame("conversations", &title),
        visit.client.get::<Commands>(&commands),
        visit.client.get::<Named>(&bot),
        sessions::of_conversation(&visit, &sandbox),
        files(&visit, &sandbox, &shown.path),
    );
    let here = with_query(&base, &[("path", &shown.path)]);
    let (commands, next) = match commands {
        Ok(Commands { items, next_cursor }) => {
            let next = next_cursor.map(|cursor| with_query(&base, &[("path", &shown.path), ("cursor", &cursor)]));
            (Some(views(items, &base)), next)
        }
        // A cursor that is not one of the list.
        Err(Failure::Refused(refusal)) if refusal.status == 422 => return Ok(page::see_other(&here)),
        Err(_) => (None, None),
    };
    let path = if shown.path.is_empty() { WORKSPACE.to_owned() } else { shown.path };
    let page = ConversationPage {
        frame,
        bot: bot.ok(),
        session,
        commands,
        next,
        files,
        crumbs: crumbs(&base, &path),
        download: with_query(&format!("{base}/download"), &[("path", &path)]),
        path,
        base,
        sandbox,
    };
    Ok(page::render(&page))
}

/// Starts a stopped sandbox and shows a folder.
pub(in crate::gateway::console) async fn look(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let sandbox = read(&visit, &id).await?;
    let path = visit.fields().value("path");
    check_path(path)?;
    let path = if path.is_empty() { WORKSPACE } else { path };
    let back = with_query(&sandbox.base(&visit), &[("path", path)]);
    match list_folder(&visit, &sandbox, path).await {
        Ok(_) => Ok(page::see_other(&back)),
        Err(Failure::Refused(refusal)) => Ok(visit.refused(refusal.detail, &sandbox.base(&visit)).await),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use monstrum_core::plugins::built_in::COMMAND_BYTES_MAX;
    use monstrum_core::sandboxes::outputs::OUTPUT_BYTES_MAX;

    use super::*;
    use crate::gateway::console::client::ANSWER_BYTES_MAX;

    fn command(id: &str, stdout: &str) -> Command {
        Command {
            request_id: id.to_owned(),
            command: "first\nsecond".to_owned(),
            state: "success".to_owned(),
            exit_code: Some(0),
            stdout: stdout.to_owned(),
            stderr: String::new(),
            truncated: false,
            started_at: UtcMillis(0),
            duration_ms: None,
        }
    }

    #[test]
    fn the_first_command_is_whole_and_the_others_have_a_link() {
        let long = "<".repeat(50_000);
        let views = views(vec![command("a", &long), command("b", &long), command("c", "short")], "/p");
        assert!(!views[0].is_cut && views[0].stdout.raw() == long && views[0].whole.is_none());
        assert!(views[1].is_cut && views[1].stdout.raw().len() < long.len());
        assert_eq!(views[1].whole.as_deref(), Some("/p?cursor=a"));
        assert_eq!((views[2].stdout.raw(), views[2].is_cut), ("short", false));
        assert_eq!(views[0].first_line.raw(), "first");
    }

    #[test]
    fn texts_of_a_page_are_bounded() {
        let long = "\u{202e}".repeat(21_000);
        let all = (0..20).map(|n| command(&n.to_string(), &long)).collect();
        let bytes: usize = views(all, "/p").iter().map(|view| view.stdout.to_string().len()).sum();
        assert!(bytes <= TEXTS_MAX, "{bytes}");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut room = 7;
        let (text, is_whole) = within("aé<", &mut room);
        assert_eq!((text.raw(), is_whole, room), ("aé", false, 4));
    }

    #[test]
    fn the_folders_of_a_path_are_links() {
        let paths = |path| crumbs("/c", path).into_iter().map(|(_, href)| href).collect::<Vec<_>>();
        assert_eq!(paths("/workspace"), ["/c?path=%2Fworkspace"]);
        let expected = ["/c?path=%2Fworkspace", "/c?path=%2Fworkspace%2Fa", "/c?path=%2Fworkspace%2Fa%2Fb"];
        assert_eq!(paths("/workspace/a/b"), expected);
        assert_eq!(paths("a/b"), expected);
        let deep = paths(&"/a".repeat(40));
        assert_eq!((deep.len(), deep[0].as_str()), (1 + CRUMBS_MAX, expected[0]));
        assert!(deep[CRUMBS_MAX].ends_with(&"%2Fa".repeat(40)));
        assert!(
            check_path(&"a".repeat(PATH_BYTES_MAX)).is_ok() && check_path(&"a".repeat(PATH_BYTES_MAX + 1)).is_err()
        );
    }

    #[test]
    fn the_largest_answer_can_be_read() {
        let commands: usize = COMMANDS.parse().unwrap();
        let texts = COMMAND_BYTES_MAX + OUTPUT_BYTES_MAX;
        assert!(commands * (texts * "\\u0001".len() + 1024) < ANSWER_BYTES_MAX);
    }

    #[test]
    fn sizes_are_rounded_down() {
        let sizes = [0, 1023, 1024, 1536, (1 << 20) - 1, 5 << 20].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1023.9 KiB", "5.0 MiB"]);
    }
}
