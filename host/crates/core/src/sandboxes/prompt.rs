//! The system prompt of a bot: the text that was saved for the bot, and a paragraph about its sandbox that the platform
//! appends.
//!
//! The paragraph describes the actual capabilities of the provider, because a model that tries a missing program or a
//! closed network wastes time.

use monstrum_sandbox::{
    Capabilities, EXEC_TIMEOUT_DEFAULT, EXEC_TIMEOUT_MAX, Limits, Network, SandboxError, Spec, WORKSPACE,
};

use crate::language::UiLanguage;
use crate::plugins::built_in::SHELL;

/// Returns the prompt of a bot: the saved text `own`, followed by the paragraph about the bot's sandbox, if any.
pub fn with_sandbox(own: &str, paragraph: Option<&str>) -> String {
    match paragraph {
        None => own.to_owned(),
        Some(paragraph) if own.trim().is_empty() => paragraph.to_owned(),
        Some(paragraph) => format!("{}\n\n{paragraph}", own.trim_end()),
    }
}

/// Returns the paragraph about a sandbox with this `spec`.
pub fn sandbox_paragraph(
    capabilities: Result<&Capabilities, SandboxError>,
    spec: Spec,
    language: UiLanguage,
) -> String {
    match (capabilities, language) {
        (Ok(capabilities), UiLanguage::English) => english(capabilities, spec),
        (Ok(capabilities), UiLanguage::Chinese) => chinese(capabilities, spec),
        (Err(_), UiLanguage::English) => format!(
            "This conversation has its own Linux sandbox, which the tool {SHELL} uses, but the sandbox service is \
             not available at the moment: commands fail until it is available again. Tell the user so instead of \
             pretending that they ran."
        ),
        (Err(_), UiLanguage::Chinese) => format!(
            "本次会话有一台独立的 Linux 沙盒，由工具 {SHELL} 使用，但沙盒服务目前不可用：在恢复之前命令都会失败。\
             请如实说明，不要假装命令已经执行。"
        ),
    }
}

fn english(capabilities: &Capabilities, spec: Spec) -> String {
    let Capabilities { system, programs, can_install_system_packages, .. } = capabilities;
    let network = match (reaches_out(capabilities, spec), can_install_system_packages) {
        (false, _) => "It has no network: nothing can be downloaded or installed from outside.",
        (true, true) => {
            "It can reach public addresses on the internet. Packages can be installed; use apt for system packages."
        }
        (true, false) => {
            "It can reach public addresses on the internet. System packages cannot be installed; packages of a \
             programming language can, if its package manager is installed."
        }
    };
    let Limits { cpu_millis, memory_mib, disk_mib, .. } = spec.limits;
    format!(
        "This conversation has its own Linux sandbox, which the tool {SHELL} uses: {system}, with {}. Commands \
         run with bash as root inside it and start in {WORKSPACE}. Files under {WORKSPACE} are kept as long as the \
         conversation exists; running programs are ended when the sandbox has been idle for a while. {network} Limits: \
         {} CPU, {memory_mib} MiB of memory, {disk_mib} MiB of disk, {} seconds for a command by default and at most \
         {}.",
        list(programs, ", ", " and "),
        cpus(cpu_millis),
        EXEC_TIMEOUT_DEFAULT.as_secs(),
        EXEC_TIMEOUT_MAX.as_secs(),
    )
}

fn chinese(capabilities: &Capabilities, spec: Spec) -> String {
    let Capabilities { system, programs, can_install_system_packages, .. } = capabilities;
    let network = match (reaches_out(capabilities, spec), can_install_system_packages) {
        (false, _) => "沙盒没有网络：不能从外部下载或安装任何东西。",
        (true, true) => "沙盒可以访问互联网上的公共地址，可以安装软件包，系统软件包用 apt 安装。",
        (true, false) => "沙盒可以访问互联网上的公共地址；不能安装系统软件包，各语言的软件包在其工具存在时可以安装。",
    };
    let Limits { cpu_millis, memory_mib, disk_mib, .. } = spec.limits;
    format!(
        "本次会话有一台独立的 Linux 沙盒，由工具 {SHELL} 使用：{system}，其中有 {}。命令在沙盒内以 root 身份由 bash 执行，\
         起始目录为 {WORKSPACE}。{WORKSPACE} 下的文件在会话存在期间一直保留；沙盒闲置一段时间后会停止，正在运行的程序随之结束。\
         {network}限制：{} 个 CPU，内存 {memory_mib} MiB，磁盘 {disk_mib} MiB，每条命令默认 {} 秒，最多 {} 秒。",
        list(programs, "、", "和 "),
        cpus(cpu_millis),
        EXEC_TIMEOUT_DEFAULT.as_secs(),
        EXEC_TIMEOUT_MAX.as_secs(),
    )
}

/// Returns whether a sandbox can reach public addresses: `spec` must allow them, and the provider must support them.
fn reaches_out(capabilities: &Capabilities, spec: Spec) -> bool {
    spec.network == Network::Full && capabilities.networks.contains(&Network::Full)
}

fn cpus(millis: u32) -> String {
    if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{}", f64::from(millis) / 1000.0) }
}

fn list(words: &[String], between: &str, last: &str) -> String {
    match words {
        [] => "bash".to_owned(),
        [only] => only.clone(),
        [first @ .., end] => format!("{}{last}{end}", first.join(between)),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn capabilities(can_install_system_packages: bool) -> Capabilities {
        Capabilities {
            system: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            programs: ["bash", "python3", "git"].map(str::to_owned).to_vec(),
            networks: vec![Network::None, Network::Full],
            can_install_system_packages,
            degraded: Vec::new(),
        }
    }

    #[test]
    fn the_paragraph_describes_the_sandbox_in_the_users_language() {
        let none = Spec::default();
        let full = Spec { network: Network::Full, limits: Limits { cpu_millis: 1500, ..Limits::default() } };
        let told = |spec, tongue| sandbox_paragraph(Ok(&capabilities(true)), spec, tongue);
        assert_snapshot!(told(none, UiLanguage::English), @"This conversation has its own Linux sandbox, which the tool sandbox_shell uses: Debian GNU/Linux 12 (bookworm), with bash, python3 and git. Commands run with bash as root inside it and start in /workspace. Files under /workspace are kept as long as the conversation exists; running programs are ended when the sandbox has been idle for a while. It has no network: nothing can be downloaded or installed from outside. Limits: 1 CPU, 1024 MiB of memory, 2048 MiB of disk, 60 seconds for a command by default and at most 300.");
        assert_snapshot!(told(full, UiLanguage::English), @"This conversation has its own Linux sandbox, which the tool sandbox_shell uses: Debian GNU/Linux 12 (bookworm), with bash, python3 and git. Commands run with bash as root inside it and start in /workspace. Files under /workspace are kept as long as the conversation exists; running programs are ended when the sandbox has been idle for a while. It can reach public addresses on the internet. Packages can be installed; use apt for system packages. Limits: 1.5 CPU, 1024 MiB of memory, 2048 MiB of disk, 60 seconds for a command by default and at most 300.");
        assert_snapshot!(told(none, UiLanguage::Chinese), @"本次会话有一台独立的 Linux 沙盒，由工具 sandbox_shell 使用：Debian GNU/Linux 12 (bookworm)，其中有 bash、python3和 git。命令在沙盒内以 root 身份由 bash 执行，起始目录为 /workspace。/workspace 下的文件在会话存在期间一直保留；沙盒闲置一段时间后会停止，正在运行的程序随之结束。沙盒没有网络：不能从外部下载或安装任何东西。限制：1 个 CPU，内存 1024 MiB，磁盘 2048 MiB，每条命令默认 60 秒，最多 300 秒。");
        assert_snapshot!(told(full, UiLanguage::Chinese), @"本次会话有一台独立的 Linux 沙盒，由工具 sandbox_shell 使用：Debian GNU/Linux 12 (bookworm)，其中有 bash、python3和 git。命令在沙盒内以 root 身份由 bash 执行，起始目录为 /workspace。/workspace 下的文件在会话存在期间一直保留；沙盒闲置一段时间后会停止，正在运行的程序随之结束。沙盒可以访问互联网上的公共地址，可以安装软件包，系统软件包用 apt 安装。限制：1.5 个 CPU，内存 1024 MiB，磁盘 2048 MiB，每条命令默认 60 秒，最多 300 秒。");
        let gone = || Err(SandboxError::unavailable("/dev/loop0 is gone"));
        assert_snapshot!(sandbox_paragraph(gone(), full, UiLanguage::English), @"This conversation has its own Linux sandbox, which the tool sandbox_shell uses, but the sandbox service is not available at the moment: commands fail until it is available again. Tell the user so instead of pretending that they ran.");
        assert_snapshot!(sandbox_paragraph(gone(), full, UiLanguage::Chinese), @"本次会话有一台独立的 Linux 沙盒，由工具 sandbox_shell 使用，但沙盒服务目前不可用：在恢复之前命令都会失败。请如实说明，不要假装命令已经执行。");
    }

    #[test]
    fn a_network_without_support_of_the_provider_is_not_mentioned() {
        let closed = Capabilities { networks: vec![Network::None], ..capabilities(true) };
        let full = Spec { network: Network::Full, ..Spec::default() };
        assert!(sandbox_paragraph(Ok(&closed), full, UiLanguage::English).contains("It has no network"));
        let words = sandbox_paragraph(Ok(&capabilities(false)), full, UiLanguage::English);
        assert!(words.contains("System packages cannot be installed"), "{words}");
    }

    #[test]
    fn the_paragraph_comes_last() {
        assert_eq!(with_sandbox("Be kind.\n", Some("A machine.")), "Be kind.\n\nA machine.");
        assert_eq!(with_sandbox("", Some("A machine.")), "A machine.");
        assert_eq!(with_sandbox("Be kind.\n", None), "Be kind.\n");
    }
}
