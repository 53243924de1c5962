//! The built-in type `sandbox`: the Linux sandbox of a conversation. The switch of a bot grants the sandbox, so
//! resources of this type cannot be created. All tools except the shell are for plugins that import `sandbox`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Plugin, built_in, locales};

/// The name of the type and of its plugin.
pub const SANDBOX: &str = "sandbox";
/// The tool that runs a command.
pub const SHELL: &str = "sandbox_shell";
/// The tool that lists a folder, for plugins that import `sandbox`.
pub const LIST_FILES: &str = "sandbox_list_files";
/// The tool that reads a file, for plugins that import `sandbox`.
pub const READ_FILE: &str = "sandbox_read_file";
/// The tool that writes a file, for plugins that import `sandbox`.
pub const WRITE_FILE: &str = "sandbox_write_file";
/// All tools of the type.
pub const SANDBOX_TOOLS: [&str; 4] = [SHELL, LIST_FILES, READ_FILE, WRITE_FILE];

/// The maximum length of a command in bytes. A longer script must be written to a file, because the kernel accepts at
/// most 128 KiB as one argument.
pub const COMMAND_BYTES_MAX: usize = 32 << 10;

/// The message for callers if the provider is unavailable.
pub const UNAVAILABLE_TEXT: &str = "The sandbox service is temporarily unavailable, please try again later";
/// The key of [`UNAVAILABLE_TEXT`] in translations.
pub const UNAVAILABLE_KEY: &str = "unavailable";

/// The message for callers if the files of the sandbox are missing.
pub const LOST_TEXT: &str = "The files of this conversation's sandbox are missing on the server, so the request was \
    not carried out. An operator can restore the files from a backup or delete the sandbox. After a deletion, the next \
    command starts with an empty sandbox.";
/// The key of [`LOST_TEXT`] in translations.
pub const LOST_KEY: &str = "lost";

const SHELL_TEXT: &str = "Runs a command with bash in the Linux sandbox of this conversation, starting in /workspace. \
    Files under /workspace stay between commands; environment variables and the current folder do not. There is no \
    terminal and no standard input. Returns stdout, stderr and exitCode. A command that fails is a normal result; a \
    command that exceeds its timeout is ended with exitCode 124. If the output is too long, only its end is returned, \
    and outputFile names the file in the sandbox that contains all output that was kept.";

const CHINESE: &[(&str, &str)] = &[
    (UNAVAILABLE_KEY, "沙盒服务暂时不可用,请稍后重试"),
    (
        LOST_KEY,
        "服务器上找不到本次会话沙盒的文件，因此未执行任何操作。管理员可以从备份中恢复这些文件，或删除该沙盒：之后的下一条命令将使用一个空的沙盒。",
    ),
    ("description", "每个会话一台独立的 Linux 沙盒"),
    (
        "tools.sandbox_shell.description",
        "在本次会话的 Linux 沙盒中用 bash 执行命令，起始目录为 /workspace。/workspace 下的文件在多次命令之间保留；\
         环境变量和当前目录不保留。没有终端，也没有标准输入。返回 stdout、stderr 和 exitCode：命令失败也是正常的返回结果，\
         超过 timeout 的命令会被终止，exitCode 为 124。过长的输出只保留末尾部分，此时 outputFile 给出沙盒中保存完整输出的文件路径。",
    ),
];

pub(super) fn plugin() -> Plugin {
    let mut plugin = built_in(manifest(), locales(&[("zh-CN", CHINESE)]));
    for tool in plugin.tools.iter_mut().filter(|tool| tool.manifest.name.as_str() != SHELL) {
        Arc::get_mut(tool).expect("no other reference exists").is_hidden = true;
    }
    plugin
}

fn manifest() -> Value {
    let path = json!({
        "type": "string", "minLength": 1, "maxLength": monstrum_sandbox::PATH_BYTES_MAX,
        "description": "An absolute path under /workspace, or a path relative to it",
    });
    let of_path = json!({"type": "object", "properties": {"path": path}, "required": ["path"]});
    json!({
        "name": SANDBOX,
        "version": env!("CARGO_PKG_VERSION"),
        "description": "A Linux sandbox for each conversation",
        "author": "Monstrum",
        "resource_type": {
            "id": SANDBOX,
            "name": "Sandbox",
            "mode": "system",
            "description": "A Linux machine for each conversation of a bot whose switch use_agent_sandbox is on.",
            "icon": "sandbox",
            "auth_flow": "none",
            "tools": [
                shell(),
                {
                    "name": LIST_FILES,
                    "description": "Lists a folder of the sandbox.",
                    "operation": "sandbox.read",
                    "effect": "read",
                    "input_schema": of_path,
                },
                {
                    "name": READ_FILE,
                    "description": "Reads a file of the sandbox.",
                    "operation": "sandbox.read",
                    "effect": "read",
                    "input_schema": of_path,
                },
                {
                    "name": WRITE_FILE,
                    "description": "Writes a file of the sandbox. The content itself is not a parameter.",
                    "operation": "sandbox.write",
                    "input_schema": {
                        "type": "object",
                        "properties": {
                            "path": path,
                            "bytes": {"type": "integer", "minimum": 0},
                            "digest": {"type": "string", "description": "sha256 of the content"},
                        },
                        "required": ["path", "bytes", "digest"],
                    },
                },
            ],
        },
        "executor": {"capabilities": []},
    })
}

fn shell() -> Value {
    json!({
        "name": SHELL,
        "description": SHELL_TEXT,
        "operation": "sandbox.exec",
        "input_schema": {
            "type": "object",
            "properties": {
                "command": {
                    "type": "string", "minLength": 1, "maxLength": COMMAND_BYTES_MAX,
                    "description": "The command for bash",
                },
                "timeout": {
                    "type": "integer", "minimum": 1,
                    "maximum": monstrum_sandbox::EXEC_TIMEOUT_MAX.as_secs(),
                    "default": monstrum_sandbox::EXEC_TIMEOUT_DEFAULT.as_secs(),
                    "description": "Time-out in seconds; the command and all processes that it has started are then \
                                    ended",
                },
            },
            "required": ["command"],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shell_is_for_models() {
        let plugin = plugin();
        let seen: Vec<(&str, bool)> =
            plugin.tools.iter().map(|tool| (tool.manifest.name.as_str(), tool.is_hidden)).collect();
        assert_eq!(seen, [(SHELL, false), (LIST_FILES, true), (READ_FILE, true), (WRITE_FILE, true)]);
        let chinese = plugin.locales.best("zh-TW");
        assert_eq!(plugin.locales.text(chinese, UNAVAILABLE_KEY, UNAVAILABLE_TEXT), "沙盒服务暂时不可用,请稍后重试");
        assert_eq!(plugin.locales.text(plugin.locales.best("en"), UNAVAILABLE_KEY, UNAVAILABLE_TEXT), UNAVAILABLE_TEXT);
    }
}
